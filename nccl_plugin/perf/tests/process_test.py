"""fabric-perf as a process: two to four ranks on loopback, with and without faults put in."""

# ruff: noqa: D102
from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

PERF = os.environ["FABRIC_PERF"]
PLAIN = os.environ["FABRIC_PLAIN"]
FAULTY = os.environ["FABRIC_FAULTY"]
FABRIC = os.environ.get("FABRIC_PLUGIN", "")
Row = dict[str, Any]


class Ranks:
    """Runs all ranks of one job; ``faults`` are FAULTY_* variables of the last rank."""

    def __init__(
        self,
        world: int,
        *args: str,
        faults: dict[str, str] | None = None,
        plugin: str | None = None,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.root = Path(self._directory.name)
        self.processes: list[subprocess.Popen[str]] = []
        for rank in range(world):
            environment = {**os.environ, "NCCL_SOCKET_IFNAME": "lo", "FAULTY_INNER": PLAIN}
            environment["FABRIC_RUN_DIR"] = str(self.root)
            if rank == world - 1:
                environment.update(faults or {})
            command = [PERF, *args, "--rank", str(rank), "--world", str(world)]
            command += ["--rendezvous", f"file:{self.root / 'rendezvous'}", "--timeout", "60"]
            command += ["--plugin", plugin or (FAULTY if faults else PLAIN), "--interval-ms", "20"]
            command += ["--jsonl", str(self.root / f"{rank}.jsonl")]
            self.processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def rows(self, rank: int) -> list[Row]:
        text = (self.root / f"{rank}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def until(self, ready: Callable[[list[Row]], bool], what: str) -> None:
        """Until ``ready`` of every rank's rows so far."""
        deadline = time.monotonic() + 60
        paths = [self.root / f"{rank}.jsonl" for rank in range(len(self.processes))]

        def so_far(path: Path) -> list[Row]:
            text = path.read_text() if path.exists() else ""
            return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

        while not all(ready(so_far(path)) for path in paths):
            assert time.monotonic() < deadline, f"not within 60 s: {what}"
            time.sleep(0.01)

    def wait(self, timeout_s: float = 120) -> list[int]:
        """Exit statuses by rank; what they printed is in ``out`` and ``err``."""
        deadline = time.monotonic() + timeout_s
        self.out, self.err = [], []
        for process in self.processes:
            try:
                out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                err += "\nKILLED: did not end"
            self.out.append(out)
            self.err.append(err)
        return [process.returncode for process in self.processes]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self._directory.cleanup()


def moving(rows: list[Row]) -> bool:
    """Data has been moved."""
    return any(r["bytes"] > 0 for r in rows if r["type"] == "sample")


def stalled(rows: list[Row]) -> bool:
    """Samples are still taken, and all of the last twenty say the same."""
    done = [r["bytes"] for r in rows if r["type"] == "sample"]
    return len(done) >= 20 and len(set(done[-20:])) == 1


class Clean(unittest.TestCase):
    """Nothing is wrong: status 0, whole files, right figures."""

    def check(self, world: int, *args: str, plugin: str | None = None) -> Ranks:
        with Ranks(world, *args, plugin=plugin) as ranks:
            statuses = ranks.wait()
            assert statuses == [0] * world, ranks.err
            for rank in range(world):
                rows = ranks.rows(rank)
                assert rows[0]["type"] == "start"
                assert rows[-1]["type"] == "end"
                assert (rows[-1]["errors"], rows[-1]["corrupt_bytes"]) == (0, 0)
                assert [r for r in rows if r["type"] == "error"] == []
                samples = [r for r in rows if r["type"] == "sample"]
                assert len(samples) >= 1
                times = [r["t_ns"] for r in samples]
                assert times == sorted(times)
                assert samples[-1]["bytes"] == rows[-1]["bytes"]
                assert "0 errors, 0 corrupt bytes" in ranks.out[rank]
            self.starts = [ranks.rows(r)[0] for r in range(world)]
            self.ends = [ranks.rows(r)[-1] for r in range(world)]
            self.connected = [
                row for r in range(world) for row in ranks.rows(r) if row["type"] == "connected"
            ]
            return ranks

    def test_ring(self) -> None:
        self.check(4, "ring", "--size", "4M", "--iters", "5", "--channels", "3")
        for end in self.ends:
            assert end["iterations"] == 5
            assert abs(end["bytes"] - 5 * (4 << 20)) <= 16
            assert abs(end["busbw_gbps"] - end["algbw_gbps"] * 1.5) < 1e-9

    def test_ring_shapes(self) -> None:
        for size in ("0", "4", "1000", "70001"):
            for element in ("float32", "int32"):
                with self.subTest(size=size, element=element):
                    self.check(
                        3, "ring", "--size", size, "--iters", "4", "--type", element,
                        "--slice", "256", "--in-flight", "3", "--channels", "2",
                    )  # fmt: skip

    def test_alltoall(self) -> None:
        self.check(3, "alltoall", "--size", "1000003", "--iters", "4", "--channels", "2")

    def test_p2p_sizes(self) -> None:
        for size in ("0", "1", "8", "65537", "40M"):
            with self.subTest(size=size):
                self.check(2, "p2p", "--size", size, "--iters", "3", "--pingpong", "20")
                for end in self.ends:
                    latency = end["latency_us"]
                    assert latency["min"] <= latency["p50"]
                    assert latency["p50"] <= latency["p99"]
                assert self.ends[0]["latency_us"]["count"] == 20

    def test_p2p_batches_larger_than_their_memory(self) -> None:
        args = ("--size", "1M", "--iters", "100", "--batch", "50", "--pingpong", "0")
        self.check(2, "p2p", *args, "--verify", "none")
        for end in self.ends:
            assert end["iterations"] == 100
            assert end["bytes"] == 100 << 20
            assert end["buffer_bytes"] == 2 * (32 << 20)
            assert end["cpu_seconds"] > 0
            assert end["rss_bytes"] > end["buffer_bytes"]
        # Its channel, and both ways of the tokens; without ping-pong nothing comes back.
        assert [row["comms"] for row in self.connected] == [3, 3]
        for row in self.connected:
            assert row["rss_bytes"] >= row["rss_before_bytes"] > 0

    def test_p2p_pairs(self) -> None:
        self.check(4, "p2p", "--size", "10000", "--iters", "300", "--wait", "spin")

    @unittest.skipUnless(FABRIC, "FABRIC_PLUGIN names no plugin")
    def test_grouped_receives(self) -> None:
        """Sizes that leave empty messages over, groups that do not come out even."""
        for mode, world in (("ring", 3), ("alltoall", 3), ("p2p", 2)):
            for size, group in (("24", "8"), ("300001", "5"), ("0", "3")):
                with self.subTest(mode=mode, size=size):
                    self.check(
                        world, mode, "--size", size, "--iters", "7", "--group", group,
                        "--in-flight", "16", "--slice", "4K", "--channels", "2",
                        "--pingpong", "0", plugin=FABRIC,
                    )  # fmt: skip

    def test_linger(self) -> None:
        with Ranks(2, "p2p", "--size", "8", "--iters", "300", "--linger", "0.3") as ranks:
            assert ranks.wait() == [0, 0], ranks.err
            rows = {r["type"]: r["t_ns"] for r in ranks.rows(0)}
        assert rows["start"] <= rows["connected"] <= rows["closing"]
        assert rows["end"] - rows["closing"] >= 0.3e9

    def test_duration_ends_all_ranks_together(self) -> None:
        self.check(4, "ring", "--size", "256K", "--duration", "0.5")
        assert len({end["iterations"] for end in self.ends}) == 1

    def test_unverified(self) -> None:
        self.check(2, "ring", "--size", "64K", "--iters", "5", "--verify", "none")

    @unittest.skipUnless(FABRIC, "FABRIC_PLUGIN names no plugin")
    def test_every_version_of_the_fabric_plugin(self) -> None:
        for version in ("v8", "v9", "v10", "v11", "v12"):
            for mode, size in (("ring", "300001"), ("alltoall", "100003"), ("p2p", "70001")):
                with self.subTest(version=version, mode=mode):
                    args = (mode, "--size", size, "--iters", "6", "--slice", "16K")
                    self.check(
                        2, *args, "--channels", "2", "--pingpong", "5", "--abi", version,
                        plugin=FABRIC,
                    )  # fmt: skip
                    for start in self.starts:
                        assert (start["plugin"], start["abi"]) == ("FABRIC", version)

    @unittest.skipUnless(FABRIC, "FABRIC_PLUGIN names no plugin")
    def test_the_highest_version_is_taken(self) -> None:
        self.check(2, "p2p", "--size", "0", "--iters", "300", plugin=FABRIC)
        assert self.starts[0]["abi"] == "v12"


class Faults(unittest.TestCase):
    """Each fault that the plugin puts in is noticed."""

    def test_one_corrupt_bit(self) -> None:
        for mode in ("ring", "alltoall", "p2p"):
            with self.subTest(mode=mode):
                faults = {"FAULTY_MODE": "corrupt", "FAULTY_AFTER": "5"}
                args = (mode, "--size", "256K", "--iters", "6", "--slice", "8K", "--pingpong", "0")
                with Ranks(2, *args, faults=faults) as ranks:
                    statuses = ranks.wait()
                    assert statuses[1] == 3, ranks.err
                    end = ranks.rows(1)[-1]
                    # A bit in a partial sum may carry into a neighbouring byte of the element.
                    assert end["corrupt_bytes"] in (1, 2)
                    assert end["errors"] == 0
                    assert "corrupt bytes in iteration" in ranks.err[1]
                    told = [r["corrupt_bytes"] for r in ranks.rows(1) if r["type"] == "iteration"]
                    assert sum(told) == end["corrupt_bytes"]

    def test_corrupt_ping_pong(self) -> None:
        faults = {"FAULTY_MODE": "corrupt", "FAULTY_AFTER": "3"}
        args = ("p2p", "--size", "4K", "--iters", "4", "--pingpong", "10")
        with Ranks(2, *args, faults=faults) as ranks:
            assert ranks.wait() == [0, 3], ranks.err
            assert ranks.rows(1)[-1]["corrupt_bytes"] == 1

    def test_a_straggler_after_completion(self) -> None:
        faults = {"FAULTY_MODE": "late", "FAULTY_AFTER": "3"}
        # Small slices: the iteration has to last longer than the straggler takes.
        args = ("alltoall", "--size", "256M", "--iters", "4", "--slice", "8K")
        with Ranks(2, *args, faults=faults) as ranks:
            assert ranks.wait()[1] == 3, ranks.err

    def test_a_call_that_fails(self) -> None:
        faults = {"FAULTY_MODE": "error", "FAULTY_AFTER": "9"}
        with Ranks(2, "ring", "--size", "1M", "--iters", "50", faults=faults) as ranks:
            statuses = ranks.wait()
            assert statuses == [1, 1], ranks.err  # the peer sees it go
            rows = ranks.rows(1)
            error = next(r for r in rows if r["type"] == "error")
            assert error["code"] == 6
            assert "isend" in error["where"]
            assert "rank 1 -> rank 0" in error["where"]
            assert rows[-1]["type"] == "end"
            assert rows[-1]["errors"] == 1
            assert "transport error in isend" in ranks.err[1]

    def test_a_short_message(self) -> None:
        faults = {"FAULTY_MODE": "short", "FAULTY_AFTER": "2"}
        with Ranks(2, "ring", "--size", "1M", "--iters", "5", faults=faults) as ranks:
            assert ranks.wait()[1] == 1
            assert "arrived with" in ranks.err[1]

    def test_delays_and_not_yet_are_no_errors(self) -> None:
        for mode in ("delay", "busy"):
            with self.subTest(mode=mode):
                faults = {"FAULTY_MODE": mode}
                args = ("ring", "--size", "300001", "--iters", "5", "--slice", "8K")
                with Ranks(3, *args, faults=faults) as ranks:
                    assert ranks.wait() == [0, 0, 0], ranks.err
                # Whose rounds share a comm, and what is posted first is filled first.
                args = ("p2p", "--size", "70001", "--iters", "3", "--pingpong", "50")
                with Ranks(2, *args, faults=faults) as ranks:
                    assert ranks.wait() == [0, 0], ranks.err

    def test_samples_go_on_while_it_stalls_and_sigint_ends_it(self) -> None:
        faults = {"FAULTY_MODE": "stall", "FAULTY_AFTER": "4"}
        args = ("ring", "--size", "1M", "--duration", "600", "--slice", "64K")
        with Ranks(2, *args, faults=faults) as ranks:
            ranks.until(stalled, "20 samples in a row without progress")
            for process in ranks.processes:
                process.send_signal(signal.SIGINT)
            statuses = ranks.wait()
            assert statuses == [0, 0], ranks.err
            rows = ranks.rows(1)
            assert rows[-1]["interrupted"]


class Endings(unittest.TestCase):
    """Signals, and what the user got wrong."""

    def test_a_group_that_the_plugin_does_not_take(self) -> None:
        args = ("ring", "--size", "1M", "--group", "2")
        single = mock.patch.dict(os.environ, FAULTY_MODE="single")
        with single, Ranks(2, *args, plugin=FAULTY) as ranks:
            assert ranks.wait() == [2, 2]
            assert "takes 1 messages per receive" in ranks.err[0]

    def test_sigterm_to_one_rank_ends_all_cleanly(self) -> None:
        with Ranks(3, "ring", "--size", "1M", "--duration", "600") as ranks:
            ranks.until(moving, "all ranks move data")
            ranks.processes[2].send_signal(signal.SIGTERM)
            assert ranks.wait() == [0, 0, 0], ranks.err
            ends = [ranks.rows(r)[-1] for r in range(3)]
            assert {end["type"] for end in ends} == {"end"}
            assert len({end["iterations"] for end in ends}) == 1

    def test_a_killed_peer_is_a_transport_error(self) -> None:
        with Ranks(2, "ring", "--size", "1M", "--duration", "600") as ranks:
            ranks.until(moving, "all ranks move data")
            ranks.processes[1].kill()
            assert ranks.wait()[0] == 1
            assert "transport error" in ranks.err[0]

    def run_alone(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PERF, *args], capture_output=True, text=True, timeout=120, check=False
        )

    def test_usage(self) -> None:
        common = ("--rank", "0", "--world", "2", "--rendezvous", "file:/tmp/unused")
        for args, text in (
            (("ring",), "--plugin is required"),
            (("ring", "--plugin", "/nowhere.so", *common), "cannot load the plugin"),
            (("ring", "--plugin", FAULTY, *common, "--abi", "v8"), "exports no ncclNetPlugin_v8"),
            (("ring", "--plugin", PLAIN, *common, "--jsonl", "/nowhere/x"), "--jsonl"),
            (("swirl", "--plugin", PLAIN, *common), "mode"),
        ):
            with self.subTest(args=args):
                done = self.run_alone(*args)
                assert done.returncode == 2, done.stderr
                assert text in done.stderr
        helped = self.run_alone("--help")
        assert helped.returncode == 0
        assert "examples:" in helped.stdout

    def test_ranks_that_disagree(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            processes = [
                subprocess.Popen(
                    [PERF, "ring", "--plugin", PLAIN, "--rank", str(rank), "--world", "2",
                     "--rendezvous", f"file:{directory}", "--size", size, "--iters", "1"],
                    env={**os.environ, "NCCL_SOCKET_IFNAME": "lo"},
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank, size in ((0, "1M"), (1, "2M"))
            ]  # fmt: skip
            for process in processes:
                _, err = process.communicate(timeout=120)
                assert process.returncode == 2
                assert "was started with" in err


if __name__ == "__main__":
    unittest.main(verbosity=2)
