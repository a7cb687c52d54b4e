"""A ring all-reduce that checks every byte, for parts that take its rails away.

As many channels as rails and no daemon: the plugin alone finds what happens. What a job did wrong
becomes rows; it is no exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from bench.follow import flow, mean_rate
from bench.outage import ring
from bench.report import Row
from lab.cluster import Cluster
from lab.demo.job import RankReader
from lab.demo.speed import BIN_S
from lab.services.perf import Perf, RankResult

LOAD = ("--size", "8M", "--verify", "full")
CARRY_S = 30.0
"""A rail that is there carries by then, whatever its hold-down."""
POLL_S = 0.02


class JobFailedError(RuntimeError):
    """A rank ended before it was asked to, or the job stands still."""


@dataclass(slots=True)
class Ends:
    """How jobs ended."""

    errors: int = 0
    corrupt_bytes: int = 0
    checked_bytes: int = 0
    said: list[str] = field(default_factory=list)

    def add(self, results: Sequence[RankResult]) -> None:
        """One job. A rank without an ``end`` row has failed; status 3 is that of corrupt bytes."""
        for rank in results:
            failed = not rank.end or rank.status not in (0, 3)
            self.errors += max(len(rank.errors), int(rank.end.get("errors", 0)), int(failed))
            self.corrupt_bytes += max(int(rank.end.get("corrupt_bytes", 0)), int(rank.status == 3))
            self.checked_bytes += int(rank.end.get("bytes", 0))
            self.said += [f"rank {rank.rank}: {row.get('text')}" for row in rank.errors]

    def fail(self, error: JobFailedError) -> None:
        """One job that did not do what it has to."""
        self.errors += 1
        self.said.append(str(error))

    def rows(self, name: str, note: str) -> list[Row]:
        """No wrong byte and no error are asked; a job that checked nothing is an error. Pure."""
        errors = self.errors + int(self.checked_bytes == 0)
        note = "; ".join([note, f"{self.checked_bytes / 1e6:.0f} MB checked", *self.said[:2]])
        return [
            Row(
                f"{name}: {what}",
                0,
                got,
                unit,
                better="equal",
                note=note,
                samples={"checked_bytes": [float(self.checked_bytes)]},
            )
            for what, got, unit in (
                ("wrong bytes", self.corrupt_bytes, "B"),
                ("errors", errors, ""),
            )
        ]


class CheckedRing:
    """The running job; `checked_ring` makes it."""

    def __init__(self, cluster: Cluster, perf: Perf) -> None:
        self.perf = perf
        self._cluster = cluster
        self._readers = [RankReader(n.name, perf.jsonl(r)) for r, n in enumerate(perf.nodes)]

    def rate(self, since_ns: int, until_ns: int) -> float:
        """Payload that all ranks accepted, Gbit/s, over this span of CLOCK_MONOTONIC."""
        return mean_rate(flow(self._cluster, self.perf), since_ns, until_ns) * 8e-9

    def lowest(self, since_ns: int, until_ns: int, seconds: float) -> float:
        """The lowest of any ``seconds`` within the span, Gbit/s.

        Raises:
            ValueError: the span is shorter.
        """
        measured = flow(self._cluster, self.perf)
        values = measured.total[measured.bins(since_ns, until_ns)]
        width = round(seconds / BIN_S)
        if len(values) < width:
            raise ValueError(f"no {seconds:g} s in {len(values)} bins of {BIN_S:g} s")
        return float(np.convolve(values, np.ones(width) / width, "valid").min()) * 8e-9

    def measure(self, seconds: float) -> float:
        """The same over the next seconds."""
        since = time.monotonic_ns()
        self.sleep(seconds)
        return self.rate(since, time.monotonic_ns())

    def sleep(self, seconds: float) -> None:
        """Let it run.

        Raises:
            JobFailedError: a rank has ended meanwhile.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, 0.1))
        self._check()

    def wait_carrying(self, rails: Iterable[int] | None = None) -> None:
        """Until every rank has sent payload over each of the rails (default: all) from now on.

        Raises:
            JobFailedError: that did not happen within ``CARRY_S``.
        """
        rails = range(self._cluster.topology.rails) if rails is None else rails
        waiting = {(r, f"rail{i}") for r in range(len(self._readers)) for i in rails}
        for reader in self._readers:
            reader.poll()

        def carried() -> bool:
            for rank, reader in enumerate(self._readers):
                for row in reader.poll():
                    sent = {rail for rail, count in row["rails"].items() if int(count["tx"])}
                    waiting.difference_update((rank, rail) for rail in sent)
            return not waiting

        self._wait(carried, CARRY_S, lambda: f"nothing over {sorted(waiting)} in {CARRY_S:g} s")

    def _wait(self, over: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
        end = time.monotonic() + seconds
        while not over():
            self._check()
            if time.monotonic() > end:
                raise JobFailedError(what())
            time.sleep(POLL_S)

    def _check(self) -> None:
        for rank, process in enumerate(self.perf.ranks):
            if process.poll() is not None:
                raise JobFailedError(f"rank {rank} ended with status {process.returncode}")


@contextmanager
def checked_ring(
    cluster: Cluster, ends: Ends, *, hold_s: float, failover: bool = True
) -> Iterator[CheckedRing]:
    """The job, until the block ends; ``ends`` has then how it did.

    A `JobFailedError` ends the block and is counted there. ``hold_s``: the plugin's hold-down after
    a first failure; it doubles up to sixteen times that.
    """
    perf: Perf | None = None
    try:
        env = {"FABRIC_HOLD": f"{hold_s:g}", "FABRIC_FAILOVER": str(int(failover))}
        with ring(cluster, load=LOAD, env=env) as perf:
            yield CheckedRing(cluster, perf)
    except JobFailedError as error:
        ends.fail(error)
    if perf is not None:
        ends.add(perf.wait(0))
