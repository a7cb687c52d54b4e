"""A link that comes back, again and again: whether its rail carries what it carried before."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import Row
from bench.verbs.rates import LARGEST_MTU, sent_packets
from lab.faults.truth import Row as Told
from lab.node import build_dir
from lab.vm.rdma import namespaces
from lab.vm.rdma.faults import Carrier
from lab.vm.rdma.lab import GuestLab
from lab.vm.rdma.perf import GuestPerf

TIMES = 50
HOLD_S = 0.0
"""FABRIC_HOLD: a rail is trusted as soon as it works, so what is measured is the way back."""
WITHIN_S = HOLD_S + 2.0
LOOK_S = 2.0
"""Of traffic that are compared, before and after."""
DOWN_S = 1.0
RAIL = "rail0"
ENV = {"FABRIC_VERBS": "1", "FABRIC_HOLD": str(HOLD_S)}


@dataclass(frozen=True, slots=True)
class Return:
    """One outage, in times of the guest's clock: when the link went and came, ns."""

    down_ns: int
    up_ns: int


def rail_bytes(rows: Sequence[Told], rail: str, begin_ns: int, end_ns: int) -> int:
    """Bytes that ``rail`` sent in samples of the interval. Pure."""
    return sum(
        int(row["rails"].get(rail, {"tx": 0})["tx"])
        for row in rows
        if row["type"] == "sample" and begin_ns < int(row["t_ns"]) <= end_ns
    )


def share(rows: Sequence[Told], one: Return) -> float:
    """The rail's rate from `WITHIN_S` after it is back, part of that before it went. Pure."""
    look = int(LOOK_S * 1e9)
    before = rail_bytes(rows, RAIL, one.down_ns - look, one.down_ns)
    begin = one.up_ns + int(WITHIN_S * 1e9)
    after = rail_bytes(rows, RAIL, begin, begin + look)
    if before == 0:
        raise ValueError("the rail carried nothing before the outage")
    return after / before


def _outage(lab: GuestLab) -> Return:
    lab.run(0, ["sleep", str(LOOK_S)]).check()
    seen = len(lab.truth())
    with lab.inject(Carrier(f"h1:{RAIL}")):
        lab.run(0, ["sleep", str(DOWN_S)]).check()
    times = [int(row["guest_ns"]) for row in lab.truth()[seen:]]
    lab.run(0, ["sleep", str(WITHIN_S + LOOK_S)]).check()
    return Return(min(times), max(times))


def _rdma(lab: GuestLab, job: GuestPerf) -> bool:
    """Whether the rail's RDMA device carries now, not TCP."""
    packets, before = sent_packets(lab), job.rows(0)
    lab.run(0, ["sleep", "1"]).check()
    rows = job.rows(0)[len(before) :]
    carried = sum(int(row["rails"].get(RAIL, {"tx": 0})["tx"]) for row in rows if "rails" in row)
    return carried > 0 and (sent_packets(lab) - packets) * LARGEST_MTU >= carried


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
            rdma = _rdma(lab, job)
            rows = job.rows(0)
            job.interrupt()
            results = job.wait()
        finally:
            job.kill()
    wrong = sum(
        rank.status != 0 or bool(rank.errors) or int(rank.end.get("corrupt_bytes", 1)) != 0
        for rank in results
    )
    shares = [share(rows, one) for one in outages]
    less = sum(one < 0.95 for one in shares)
    note = f"least {min(shares):.2f}; over RDMA at the end: {'yes' if rdma else 'no'}"
    return [
        Row(f"rate of a rail {WITHIN_S:.0f} s after each of {times} returns, median, part of that "
            "before", 0.95, statistics.median(shares), "", "higher", note=note,
            samples={"part": [round(one, 3) for one in shares]}),
        Row(f"returns of {times} with less than 0.95 of the rate before", 0, less, "", "equal"),
        Row(f"{times} returns: ranks that failed or had a wrong byte", 0, wrong, "", "equal"),
    ]  # fmt: skip
