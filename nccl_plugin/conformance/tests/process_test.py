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
ENDS = os.environ.get("FABRIC_SANITIZED") == "1" or os.environ.get("FABRIC_LONG") != "1"
"""Whether the oldest and the newest table stand for all five (cmake/testing/rounds.h)."""
VERSIONS = ["v8", "v9", "v10", "v11", "v12"]


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
    """Every case passes with the oldest and the newest table; nightly with every one there is."""

    def check(self, plugin: str) -> None:
        versions = ["v8", "v12"] if ENDS else VERSIONS
        abis = [word for version in versions for word in ("--abi", version)]
        report = played("--plugin", plugin, *(abis if ENDS else ()), "--timeout", "120")
        assert report["abis"] == versions
        assert {(case["abi"], case["ranks"]) for case in report["cases"]} == {
            (version, ranks) for version in versions for ranks in (2, 4)
        }
        assert (report["failed"], report["not_offered"]) == (0, 0)
        assert report["passed"] == len(report["cases"]) >= len(versions) * 2 * 30

    def test_plain(self) -> None:
        self.check(PLAIN)

    @unittest.skipUnless(FABRIC, "the plugin is not built")
    def test_fabric(self) -> None:
        self.check(FABRIC)

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


class Usage(unittest.TestCase):
    """What the user got wrong is status 2, and says so."""

    def test_usage(self) -> None:
        for args, text in (
            ((), "--plugin"),
            (("--plugin", "/nowhere.so"), "cannot load the plugin"),
            (("--plugin", FAULTY, "--abi", "v8"), "exports no ncclNetPlugin_v8"),
            (("--plugin", PLAIN, "--case", "nothing-of-that-name"), "no case has such a name"),
            (("--plugin", PLAIN, "--rank", "0"), "--rank"),
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
