"""Real processes with the plugin over loopback, and a steer page that the daemon's code writes."""

import os
import subprocess
import time

import pytest

from fabricd.steer.page import SteerPage
from fabricd.steer.policy import Plan
from lab.cluster import wait_until
from lab.node import REPO

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

BUILD = REPO / "build" / "release" / "nccl_plugin"
HERE, LOST, OTHER = "1111111111111111", "2222222222222222", "3333333333333333"


class Job:
    """fabric-perf of two ranks. ``hosts``: run directory and incarnation of each."""

    def __init__(self, directory, hosts, *args, timeout_s=60):
        self.rendezvous = directory / "rendezvous"
        self.rendezvous.mkdir(parents=True)
        self.logs = [directory / f"log.{rank}" for rank in range(2)]
        self.rows = directory / "rows"
        self.ranks = []
        for rank, (run_dir, incarnation) in enumerate(hosts):
            command = [BUILD / "fabric-perf", "p2p", "--plugin", BUILD / "libnccl-net-fabric.so"]
            command += ["--rank", str(rank), "--world", "2", "--size", "256K", "--wait", "block"]
            command += ["--rendezvous", f"file:{self.rendezvous}", "--timeout", str(timeout_s)]
            command += args
            command += ["--jsonl", self.rows] if rank == 1 else []
            environment = os.environ | {
                "NCCL_SOCKET_IFNAME": "=lo",
                "FABRIC_RUN_DIR": str(run_dir),
                "FABRIC_INCARNATION": incarnation,
            }
            with self.logs[rank].open("wb") as log:
                rank_process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            self.ranks.append(rank_process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.kill()
            rank.wait()

    @property
    def running(self):
        return all(rank.poll() is None for rank in self.ranks)

    def moves(self):
        return self.rows.exists() and '"sample"' in self.rows.read_text()

    def log(self):
        return "".join(log.read_text() for log in self.logs)


def test_a_fence_ends_what_goes_to_that_process_and_nothing_else(tmp_path):
    here, away = tmp_path / "here", tmp_path / "away"
    away.mkdir()
    page = SteerPage(here / "steer", 1)
    page.open(time.monotonic_ns())

    def beat():
        page.publish(Plan(()), 0, time.monotonic_ns())

    lost = Job(tmp_path / "lost", [(here, HERE), (away, LOST)], "--duration", "200")
    other = Job(tmp_path / "other", [(here, HERE), (away, OTHER)], "--duration", "8")
    with lost, other:
        wait_until(lambda: beat() or (lost.moves() and other.moves()), 120, "payload in both jobs")
        beat()
        page.set_fences([LOST], time.monotonic_ns())
        wait_until(
            lambda: beat() or all(rank.poll() is not None for rank in lost.ranks),
            60, "an end of both ranks of the job with a fenced process",
        )  # fmt: skip
        assert [rank.returncode for rank in lost.ranks] != [0, 0]
        assert all(rank.returncode != 0 for rank in lost.ranks), lost.log()
        wait_until(
            lambda: beat() or all(rank.poll() is not None for rank in other.ranks),
            120, "the end of the other job",
        )  # fmt: skip
        assert [rank.returncode for rank in other.ranks] == [0, 0], other.log()
    assert '"corrupt_bytes":0' in other.rows.read_text().replace(" ", "")

    # It comes again, and finds nobody.
    hosts = [(here, HERE), (away, LOST)]
    with Job(tmp_path / "again", hosts, "--iters", "1", timeout_s=10) as again:
        wait_until(
            lambda: beat() or all(rank.poll() is not None for rank in again.ranks),
            90, "an end of both ranks that may not connect",
        )  # fmt: skip
        assert all(rank.returncode != 0 for rank in again.ranks), again.log()
