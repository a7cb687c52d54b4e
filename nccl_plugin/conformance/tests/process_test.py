"""fabric-conformance against our plugin, the plain one, and one with breaches of the contract."""

# ruff: noqa: D102
from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from typing import Any

CONFORMANCE = os.environ["FABRIC_CONFORMANCE"]
PLAIN = os.environ["FABRIC_PLAIN"]
FAULTY = os.environ["FABRIC_FAULTY"]
FABRIC = os.environ.get("FABRIC_PLUGIN", "")
SANITIZED = os.environ.get("FABRIC_SANITIZED") == "1"
LONG = os.environ.get("FABRIC_LONG") == "1"  # cmake/testing/rounds.h
ENDS = ["v8", "v12"]
VERSIONS = ["v8", "v9", "v10", "v11", "v12"] if LONG and not SANITIZED else ENDS
"""Tables to go through: the oldest and the newest stand for all five; nightly all."""
LEVELS = ["nccl", "strict"]
PEER = os.environ.get("FABRIC_PEER", "")
"""NCCL's own socket transport, where the build had NCCL's source (FABRIC_NCCL_SOURCE)."""


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program over loopback, with these variables added."""
    with tempfile.TemporaryDirectory() as directory:
        return subprocess.run(
            [CONFORMANCE, *args],
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
            env={
                **os.environ,
                "NCCL_SOCKET_IFNAME": "lo",
                "FABRIC_RUN_DIR": directory,
                "FAULTY_INNER": PLAIN,
                **environment,
            },
        )


def played(*args: str, status: int = 0, **environment: str) -> dict[str, Any]:
    """The report of a run that has to end with ``status``."""
    done = run("--json", *args, **environment)
    assert done.returncode == status, (done.stdout, done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def names(report: dict[str, Any], outcome: str) -> set[str]:
    """Cases with this outcome."""
    return {case["case"] for case in report["cases"] if case["outcome"] == outcome}


class Conforming(unittest.TestCase):
    """Every case passes at both levels, by every table there is."""

    def check(self, plugin: str, level: str) -> None:
        """The tables with two ranks, and with four the newest, nightly all."""
        for ranks, versions in (("2", VERSIONS), ("4", VERSIONS if LONG else ENDS[-1:])):
            abis = [word for version in versions for word in ("--abi", version)]
            args = ("--plugin", plugin, "--level", level, "--ranks", ranks, *abis)
            report = played(*args, "--timeout", "120")
            assert (report["level"], report["abis"]) == (level, versions)
            assert {case["abi"] for case in report["cases"]} == set(versions)
            unasked = {"iflush"} if level == "nccl" else set()
            assert names(report, "not offered") == unasked
            assert report["failed"] == 0
            assert report["passed"] == len(report["cases"]) - len(unasked) * len(versions)
            assert report["passed"] >= len(versions) * 30

    def test_plain(self) -> None:
        for level in LEVELS:
            self.check(PLAIN, level)

    @unittest.skipUnless(FABRIC, "the plugin is not built")
    def test_fabric(self) -> None:
        for level in LEVELS:
            self.check(FABRIC, level)

    def test_a_plugin_without_groups(self) -> None:
        args = ("--plugin", FAULTY, "--ranks", "2", "--case", "tags", "--case", "groups")
        report = played(*args, FAULTY_MODE="single")
        assert "single-tags-100B-sends-first" in names(report, "ok")
        assert "grouped-tags-100B-sends-first" in names(report, "not offered")
        assert report["failed"] == 0


class Breaches(unittest.TestCase):
    """Each breach fails the cases about it, by name, and says what was wrong."""

    def check(self, mode: str, case: str, text: str, timeout_s: int = 20) -> dict[str, Any]:
        args = ("--plugin", FAULTY, "--ranks", "2", "--case", case, "--timeout", str(timeout_s))
        report = played(*args, status=1, FAULTY_MODE=mode)
        failed = [one for one in report["cases"] if one["outcome"] == "FAILED"]
        assert failed, report
        assert any(text in one["reason"] for one in failed), failed
        return report

    def test_ignored_tags(self) -> None:
        report = self.check("untagged", "tags", "the buffer for tag 8 #0 (100 B) holds tag 9 #0")
        failed = names(report, "FAILED")
        for size in ("100B", "5kB", "100kB"):
            for order in ("receives-first", "sends-first"):
                assert f"single-tags-{size}-{order}" in failed
                assert f"grouped-tags-{size}-{order}" in failed
        assert "uneven-all-to-all-small" in names(
            self.check("untagged", "uneven", "holds"), "FAILED"
        )
        self.check("untagged", "shrinking", "holds")

    def test_a_send_without_its_size(self) -> None:
        self.check("sizeless", "size-after-arrival", "says a size of 0 B for the send of tag 4")

    def test_a_send_done_before_its_time(self) -> None:
        self.check("hasty", "in-flight-1MB", "bytes are wrong")

    def test_fewer_sends_in_flight(self) -> None:
        text = "13 sends and 32 receives were taken"
        self.check("budget", "in-flight-5000B", text, timeout_s=3)

    def test_bytes_past_the_end(self) -> None:
        self.check("overrun", "larger-room", "bytes past the end of tag 0")

    def test_optional_completion_refused(self) -> None:
        self.check("optional", "optional-completion", "irecv left 0x1")

    def test_iflush(self) -> None:
        self.check("flushless", "iflush", "iflush returned internal error")

    def test_close_with_requests_open(self) -> None:
        self.check("unclosable", "close-in-flight", "closeRecv returned internal error")

    def test_corrupt_bytes_and_errors(self) -> None:
        for mode, text in (("corrupt", "1 bytes are wrong"), ("error", "remote error (6)")):
            self.check(mode, "order-within-tag", text)

    def test_not_yet_is_offered_again(self) -> None:
        report = played("--plugin", FAULTY, "--ranks", "2", FAULTY_MODE="busy")
        assert report["failed"] == 0


class Levels(unittest.TestCase):
    """Level `nccl` asks for what NCCL's own socket transport keeps, and for no less."""

    FAILS = ("single-tags-100B-sends-first", "order-within-tag", "beyond-limits-5000B", "iflush")
    """Cases in which `strict` asks for more."""

    def check(self, plugin: str) -> None:
        for ranks in ("2", "4"):
            args = ("--plugin", plugin, "--ranks", ranks, "--level", "nccl", "--timeout", "60")
            report = played(*args, FAULTY_MODE="ordered")
            assert report["failed"] == 0, names(report, "FAILED")
            assert report["passed"] >= 20
            assert "in-flight-1MB" in names(report, "ok")
            assert "single-tags-5kB-sends-first" in names(report, "not offered")
        cases = [word for name in self.FAILS for word in ("--case", name)]
        args = ("--plugin", plugin, "--ranks", "2", *cases, "--timeout", "20")
        strict = played(*args, status=1, FAULTY_MODE="ordered")
        assert names(strict, "FAILED") == set(self.FAILS)

    def test_a_plugin_that_does_as_nccls_sockets_do(self) -> None:
        self.check(FAULTY)

    @unittest.skipUnless(PEER, "the build has no source of NCCL (FABRIC_NCCL_SOURCE)")
    def test_nccls_own_sockets(self) -> None:
        self.check(PEER)

    def test_breaches_fail_at_level_nccl_too(self) -> None:
        for mode, case in (
            ("untagged", "grouped-tags-5kB-sends-first"),
            ("budget", "in-flight-5000B"),
            ("sizeless", "size-after-arrival"),
            ("corrupt", "sizes"),
            ("overrun", "larger-room"),
        ):
            with self.subTest(mode=mode):
                args = ("--plugin", FAULTY, "--ranks", "2", "--level", "nccl", "--case", case)
                report = played(*args, "--timeout", "5", status=1, FAULTY_MODE=mode)
                assert names(report, "FAILED") == {case}


class Usage(unittest.TestCase):
    """What the user got wrong is status 2, and says so."""

    def test_usage(self) -> None:
        for args, text in (
            ((), "--plugin"),
            (("--plugin", "/nowhere.so"), "cannot load the plugin"),
            (("--plugin", FAULTY, "--abi", "v8"), "exports no ncclNetPlugin_v8"),
            (("--plugin", PLAIN, "--case", "nothing-of-that-name"), "no case has such a name"),
            (("--plugin", PLAIN, "--rank", "0"), "--rank"),
            (("--plugin", PLAIN, "--level", "lax"), "--level"),
        ):
            with self.subTest(args=args):
                done = run(*args)
                assert done.returncode == 2, (done.stdout, done.stderr)
                assert text in done.stderr
        listed = run("--list")
        assert listed.returncode == 0
        assert len(listed.stdout.splitlines()) >= 30


if __name__ == "__main__":
    unittest.main(verbosity=2)
