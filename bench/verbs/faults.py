"""Each fault of `lab.vm.rdma.cases` under a job over verbs: what it costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.report import Row
from bench.verbs.rates import RDMA_CARRIES, sent_packets
from lab.node import build_dir
from lab.vm.rdma import namespaces
from lab.vm.rdma.cases import CASES, HOSTS, Case, Noticed
from lab.vm.rdma.lab import GuestLab
from lab.vm.rdma.perf import Collective, GuestPerf, longest_stall_ns, moved_bytes

EVERY_MS = 10
"""Between two samples of a job: the resolution of a stall."""
CALM_S = 2
"""Of a job's traffic before its fault: an emulated machine stalls by itself as well."""
AFTER_S = 3
QUICK = ("carrier", "black hole", "ACKs dropped", "process stopped")
LIMITS_MS: Mapping[Noticed, float] = {"event": 100.0, "silence": 1000.0}
PATIENCE_S = 240.0
BEFORE_NS = 100_000_000
"""Of a job's samples before a fault began, in case its effect is older than its time."""


@dataclass(frozen=True, slots=True)
class Played:
    """One fault under one job: how long nothing moved on the guest's clock, and what went wrong."""

    case: str
    mode: str
    stall_ms: float
    """Longest time in which a rank's bytes did not grow."""
    calm_ms: float
    """The same without a fault, just before it."""
    rdma: bool
    """Whether RDMA carried the job before its fault."""
    failed: int
    """Ranks that did not end well."""
    corrupt_bytes: int
    paths_down: int
    """Lines of the plugins' logs that say so."""


def _stall_ms(job: GuestPerf, ranks: int, begin_ns: int, end_ns: int) -> float:
    """Of the rank that it was longest for."""
    stalls = [
        longest_stall_ns([r for r in job.rows(rank) if begin_ns <= int(r.get("t_ns", 0)) <= end_ns])
        for rank in range(ranks)
    ]
    return max(stalls) / 1e6


def _until_more(job: GuestPerf, than: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while moved_bytes(job.rows(0)) <= than:
        if time.monotonic() > end:
            raise TimeoutError(f"the job did not move in {PATIENCE_S:.0f} s")
        time.sleep(0.2)


def play(lab: GuestLab, name: str, case: Case, mode: Collective) -> Played:
    """One job of all ``mode``'s ranks, the fault in its middle."""
    words = ["--size", "256K", "--channels", "2", "--duration", "600", "--pingpong", "0"]
    words += ["--interval-ms", str(EVERY_MS), "--verbose"]
    job = lab.perf(mode, *words, hosts=HOSTS[mode], timeout=400, env={"FABRIC_VERBS": "1"})
    try:
        _until_more(job, 0)
        calm, packets = lab.machines[0].now_ns(), sent_packets(lab)
        lab.run(0, ["sleep", str(CALM_S)]).check()
        rdma = sent_packets(lab) - packets >= CALM_S * RDMA_CARRIES
        before = len(lab.truth())
        with lab.inject(case.make()):
            lab.run(0, ["sleep", str(case.seconds)]).check()
        lab.run(0, ["sleep", str(AFTER_S)]).check()
        began = min(t_ns for row in lab.truth()[before:] for t_ns in row["guest_ns"]) - BEFORE_NS
        _until_more(job, moved_bytes(job.rows(0)))
        job.interrupt()
        results = job.wait()
        return Played(
            name, mode,
            _stall_ms(job, len(results), began, lab.machines[0].now_ns()),
            _stall_ms(job, len(results), calm, began),
            rdma,
            sum(rank.status != 0 or bool(rank.errors) for rank in results),
            sum(int(rank.end.get("corrupt_bytes", 1)) for rank in results),
            sum(job.log(rank.rank).count(" is down (") for rank in results),
        )  # fmt: skip
    finally:
        job.kill()


def rows(played: Sequence[Played], limits: Mapping[Noticed, float] = LIMITS_MS) -> list[Row]:
    """What all cases together show. Pure."""
    found = [
        Row("faults × {p2p, ring}: ranks that failed", 0, sum(one.failed for one in played), "",
            better="equal", note=f"{len(played)} jobs"),
        Row("faults × {p2p, ring}: wrong bytes", 0, sum(one.corrupt_bytes for one in played), "",
            better="equal"),
    ]  # fmt: skip
    carried = sum(one.rdma for one in played)
    found.append(
        Row("faults × {p2p, ring}: jobs carried by RDMA", len(played), carried, "", "equal")
    )
    for noticed, limit in limits.items():
        these = [one for one in played if CASES[one.case].noticed == noticed]
        if not these:
            continue
        worst = max(these, key=lambda one: one.stall_ms)
        samples = {
            f"{one.case}, {one.mode}": [round(one.stall_ms, 1), round(one.calm_ms, 1)]
            for one in these
        }
        calm = f"undisturbed {max(one.calm_ms for one in these):.0f}"
        typical = f"median {statistics.median(one.stall_ms for one in these):.0f}"
        found.append(
            Row(
                f"stall, a fault with {'an' if noticed == 'event' else 'no'} event, the longest",
                limit,
                worst.stall_ms,
                "ms",
                note=f"{worst.case}, {worst.mode}; {typical}; {calm}",
                samples=samples,
            )
        )
    stopped = [one for one in played if one.case == "process stopped"]
    if stopped:
        down = sum(one.paths_down for one in stopped)
        found.append(Row("a process stopped for 5 s: paths called dead", 0, down, "", "equal"))
    return found


def faults(*, quick: bool) -> list[Row]:
    """All cases, each under both collectives."""
    played = []
    with namespaces.booted("bench-verbs", hosts=4, rails=2) as lab:
        lab.push(build_dir())
        for name, case in CASES.items():
            for mode in HOSTS:
                if not quick or (name in QUICK and mode == "p2p"):
                    played.append(play(lab, name, case, mode))
                    print(played[-1], flush=True)
    return rows(played)
