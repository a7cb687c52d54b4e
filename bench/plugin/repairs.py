"""The goodput after a rail is back: after one flap, after many, after a long outage.

Two hosts, a rail for each case, no daemon. Goodput is measured when hold-down and ``WITHIN_S`` are
over, beside that just before the case. Until then nothing may be worse than in the outage.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.outage import others_share
from bench.plugin.checked import CheckedRing, Ends, checked_ring
from bench.report import Row
from lab.cluster import Cluster
from lab.demo.cpu import CpuWatch
from lab.faults.catalog import BlackHole, Carrier, Fault, Flap
from lab.topology import Topology, parse_rate

RATE = "100mbit"
WITHIN_S = 2.0
SETTLED_S = 0.5
LOWEST_S = 1.0
"""The lowest goodput is that of any such span: a ring's iterations show in shorter ones."""
MOST_DOUBLINGS = 4
LONGEST_HOLD_S = 8.0
"""Of a hold-down: `PathTrust::connect` in nccl_plugin/host/path_state.h."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How often, and how long things take, in seconds."""

    flaps: tuple[int, ...]
    """A case for each of these counts."""
    hold: float
    """The plugin's hold-down after one failure."""
    period: float
    """Of one flap, half of it down."""
    last: float
    """The last flap stays down so long: its goodput is measured."""
    outage: float
    window: float
    """What goodput before and after is measured over."""

    @property
    def rails(self) -> int:
        """One for each case with flaps, two for the outage."""
        return len(self.flaps) + 2

    def hold_down(self, failures: int) -> float:
        """The longest hold-down after so many failures in a row."""
        return min(self.hold * 2.0 ** min(failures - 1, MOST_DOUBLINGS), LONGEST_HOLD_S)


QUICK = Scale((1, 100), hold=0.05, period=0.04, last=1.8, outage=3.0, window=2.5)
FULL = Scale((1, 10, 100), hold=0.5, period=0.2, last=10.0, outage=600.0, window=10.0)


@dataclass(frozen=True, slots=True)
class Repair:
    """One return; goodput in Gbit/s."""

    before: float
    outage: float
    after: float
    """From hold-down + ``WITHIN_S`` after the repair on."""
    lowest: float
    """Of any ``LOWEST_S`` since the repair."""
    lowest_outage: float
    """Of any ``LOWEST_S`` of the outage, without its first moments."""
    others: float = 0.0
    """The part of the CPU, 0 to 1, that processes outside of the lab had meanwhile."""


@dataclass(frozen=True, slots=True)
class Case:
    """What happens before one repair: ``flaps`` less one short ones, then ``faults`` for long."""

    name: str
    flaps: int
    faults: Sequence[Fault]
    down_s: float


def cases(scale: Scale) -> list[Case]:
    """Each on a rail of its own: failures of one do not lengthen another's hold-down. Pure."""
    found = [
        Case(f"{n} flap" + "s" * (n > 1), n, [Carrier(f"h1:rail{rail}")], scale.last)
        for rail, n in enumerate(scale.flaps)
    ]
    away: list[Fault] = [
        Carrier(f"h1:rail{scale.rails - 2}"),
        BlackHole(f"h0:rail{scale.rails - 1}"),
    ]
    return [*found, Case(f"{scale.outage:g} s without two rails", 1, away, scale.outage)]


def repairs(scale: Scale) -> list[Row]:
    """All cases in one job."""
    ends = Ends()
    found: dict[str, Repair] = {}
    topology = Topology(
        "bench-repairs", hosts=2, rails=scale.rails, spines=0, rate_bps=parse_rate(RATE)
    )
    with (
        Cluster(topology=topology) as cluster,
        checked_ring(cluster, ends, hold_s=scale.hold) as job,
    ):
        for case in cases(scale):
            found[case.name] = one_repair(cluster, job, scale, case)
    return repair_rows(found, ends)


def one_repair(cluster: Cluster, job: CheckedRing, scale: Scale, case: Case) -> Repair:
    """Play one case."""
    watch = CpuWatch()
    pids = [pid for node in cluster.nodes for pid in node.pids()]
    idle = watch.sample(pids)
    job.wait_carrying()
    job.sleep(SETTLED_S)
    before = job.measure(scale.window)
    for fault in case.faults:
        cluster.arm(fault)
    try:
        if case.flaps > 1:
            target = case.faults[0].target_text
            with cluster.inject(Flap(target, scale.period * 1e3, case.flaps - 1)) as flaps:
                flaps.wait()
        for fault in case.faults:
            fault.start()
        began = time.monotonic_ns()
        job.sleep(case.down_s)
        repaired = time.monotonic_ns()
    finally:
        for fault in case.faults:
            cluster.disarm(fault)
    hold_s = scale.hold_down(case.flaps)
    job.sleep(hold_s + WITHIN_S + scale.window)
    until = time.monotonic_ns()
    settled = began + round(SETTLED_S * 1e9)
    return Repair(
        before=before,
        outage=job.rate(settled, repaired),
        after=job.rate(repaired + round((hold_s + WITHIN_S) * 1e9), until),
        lowest=job.lowest(repaired, until, LOWEST_S),
        lowest_outage=job.lowest(settled, repaired, LOWEST_S),
        others=others_share(idle, watch.sample(pids)),
    )


def repair_rows(found: dict[str, Repair], ends: Ends) -> list[Row]:
    """The rows of `repairs`. Pure."""
    rows = ends.rows("repairs", f"{len(found)} repairs")
    for name, repair in found.items():
        note = (
            f"before {repair.before:.3f}, outage {repair.outage:.3f}, after {repair.after:.3f}, "
            f"lowest {repair.lowest:.3f} (outage {repair.lowest_outage:.3f}) Gbit/s; "
            f"others had {repair.others:.0%} of the CPU"
        )
        values = {key: [getattr(repair, key)] for key in Repair.__slots__}
        rows += [
            Row(
                f"{name}: goodput {WITHIN_S:g} s after hold-down, part of before",
                0.98,
                repair.after / repair.before,
                "",
                better="higher",
                note=note,
                samples=values,
            ),
            Row(
                f"{name}: lowest goodput since the repair, part of the outage's lowest",
                1.0,
                repair.lowest / repair.lowest_outage,
                "",
                better="higher",
                note=note,
                samples=values,
            ),
        ]
    return rows
