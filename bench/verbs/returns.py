"""A link that comes back, again and again: whether its rail carries what it carried before."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import Row
from bench.verbs.rates import RDMA_CARRIES, sent_packets
from lab.faults.truth import Row as Told
from lab.node import build_dir
from lab.vm.rdma import namespaces
from lab.vm.rdma.faults import Carrier
from lab.vm.rdma.lab import GuestLab

TIMES = 50
HOLD_S = 0.0
"""FABRIC_HOLD: a rail is trusted as soon as it works, so what is measured is the way back."""
WITHIN_S = HOLD_S + 2.0
LOOK_S = 2.0
"""Of traffic that are compared, before and after."""
DOWN_S = 1.0
ENOUGH = 0.95
RAIL = "rail0"
ENV = {"FABRIC_VERBS": "1", "FABRIC_HOLD": str(HOLD_S)}


@dataclass(frozen=True, slots=True)
class Return:
    """One outage, in times of the guest's clock: when the link went and came, ns."""

    down_ns: int
    up_ns: int
    rdma: bool = True
    """Whether RDMA carries the rail again."""


def rail_bytes(rows: Sequence[Told], rail: str, begin_ns: int, end_ns: int) -> int:
    """Bytes that ``rail`` sent in samples of the interval. Pure."""
    return sum(
        int(row["rails"].get(rail, {"tx": 0})["tx"])
        for row in rows
        if row["type"] == "sample" and begin_ns < int(row["t_ns"]) <= end_ns
    )


def shares(rows: Sequence[Told], one: Return) -> tuple[float, float]:
    """Two rates of the rail as parts of that just before it went. Pure.

    Returns:
        The rate from `WITHIN_S` after it is back, and for comparison an undisturbed one, earlier.

    Raises:
        ValueError: the rail carried nothing before it went.
    """
    look = int(LOOK_S * 1e9)
    before = rail_bytes(rows, RAIL, one.down_ns - look, one.down_ns)
    begin = one.up_ns + int(WITHIN_S * 1e9)
    if before == 0:
        raise ValueError("the rail carried nothing before the outage")
    return (
        rail_bytes(rows, RAIL, begin, begin + look) / before,
        rail_bytes(rows, RAIL, one.down_ns - 2 * look, one.down_ns - look) / before,
    )


def _outage(lab: GuestLab) -> Return:
    lab.run(0, ["sleep", str(2 * LOOK_S)]).check()
    seen = len(lab.truth())
    with lab.inject(Carrier(f"h1:{RAIL}")):
        lab.run(0, ["sleep", str(DOWN_S)]).check()
    times = [t_ns for row in lab.truth()[seen:] for t_ns in row["guest_ns"]]
    lab.run(0, ["sleep", str(WITHIN_S)]).check()
    packets = sent_packets(lab)
    lab.run(0, ["sleep", str(LOOK_S)]).check()
    rdma = sent_packets(lab) - packets >= LOOK_S * RDMA_CARRIES
    return Return(min(times), max(times), rdma)


def returns(*, quick: bool) -> list[Row]:
    """A job between two hosts whose rail goes and comes back; the rail's rate each time."""
    times = 3 if quick else TIMES
    with namespaces.booted("bench-verbs", hosts=2, rails=2) as lab:
        lab.push(build_dir())
        words = ["--size", "256K", "--duration", "3600", "--pingpong", "0", "--interval-ms", "100"]
        job = lab.perf("p2p", *words, hosts=[0, 1], env=ENV, timeout=3600)
        try:
            lab.run(0, ["sleep", "10"]).check()
            outages = [_outage(lab) for _ in range(times)]
            rows = job.rows(0)
            job.interrupt()
            results = job.wait()
        finally:
            job.kill()
    wrong = sum(
        rank.status != 0 or bool(rank.errors) or int(rank.end.get("corrupt_bytes", 1)) != 0
        for rank in results
    )
    pairs = [shares(rows, one) for one in outages]
    after, calm = [one for one, _ in pairs], [one for _, one in pairs]
    less, calm_less = (sum(one < ENOUGH for one in many) for many in (after, calm))
    note = f"undisturbed {statistics.median(calm):.2f}; least {min(after):.2f}, undisturbed "
    note += f"{min(calm):.2f}"
    return [
        Row(
            f"rate of a rail {WITHIN_S:.0f} s after its return, median of {times}, part of before",
            ENOUGH,
            statistics.median(after),
            "",
            "higher",
            note=note,
            samples={"after": [round(x, 3) for x in after], "calm": [round(x, 3) for x in calm]},
        ),
        Row(
            f"returns of {times} with less than {ENOUGH} of the rate before",
            0,
            less,
            "",
            "equal",
            note=f"of undisturbed windows {calm_less}",
        ),
        Row(
            f"returns of {times} after which RDMA carries the rail",
            times,
            sum(one.rdma for one in outages),
            "",
            "equal",
        ),
        Row(f"{times} returns: ranks that failed or had a wrong byte", 0, wrong, "", "equal"),
    ]
