"""A link loses 1 % or 0.1 % of its packets one way: how long until that link and way are named?

Four hosts with four rails; one link of each host at a time, half of them towards the host and half
from it. Found is when the host's page says DEGRADED of the link; the way is what the reason in its
timeline says. The rate is what the probers heard of each other meanwhile, the least of the links.

Twice: each four faults in a lab of their own, and round upon round in one lab, where by the fourth
round every path remembers a fault at its other end that ended seconds ago.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

from bench.detect.live_lab import FAST, lab
from bench.detect.live_pages import PageWatch
from bench.report import Row
from fabricd.probes.ring import RingReader
from lab.cluster import Cluster, wait_until
from lab.faults.catalog import Loss
from telemetry.events import EventKind, LinkState
from telemetry.timeline import Timeline

HOSTS, RAILS = 4, 4
RATE = 400
WARM_S = 12.0
"""Before a lab's first fault."""
RETURN_S = 90.0
WORSE = frozenset({"DEGRADED"})
Way = Literal["rx", "tx"]


@dataclass(frozen=True, slots=True)
class Found:
    """One fault."""

    target: str
    way: Way
    seconds: float | None
    reason: str
    rate: float

    @property
    def right(self) -> bool:
        """Whether the link was named, with the way."""
        return (
            self.seconds is not None and f" {'from' if self.way == 'rx' else 'to'} " in self.reason
        )


def loss(*, quick: bool) -> list[Row]:
    """Some rounds of four links each."""
    plan = (1.0, 3.0, 2 if quick else 8), (0.1, 30.0, 1 if quick else 6)
    rows = []
    for percent, asked, rounds in plan:
        found = []
        for number in range(rounds):
            with _lab() as (cluster, watch):
                found += _round(cluster, watch, number, percent, asked)
        rows += _rows(found, percent, asked)
    with _lab() as (cluster, watch):
        # Each round takes the next link of each host: those of the last one forget meanwhile.
        number_of = itertools.count()
        for percent, asked, rounds in plan:
            found = [
                f
                for number in itertools.islice(number_of, rounds)
                for f in _round(cluster, watch, number, percent, asked)
            ]
            rows += _rows(found, percent, asked, ", round upon round")
    return rows


@contextmanager
def _lab() -> Iterator[tuple[Cluster, PageWatch]]:
    """What starting up lost is forgotten."""
    with lab("loss", hosts=HOSTS, rails=RAILS, probe=FAST) as both:
        time.sleep(WARM_S)
        yield both


def _rows(found: list[Found], percent: float, asked: float, when: str = "") -> list[Row]:
    took = sorted(f.seconds for f in found if f.seconds is not None)
    name = f"{percent:g} % one-way loss{when}"
    rate = min(f.rate for f in found)
    note = f"{len(found)} links, median {took[len(took) // 2]:.2f} s" if took else ""
    wrong = [f for f in found if not f.right]
    said = "; ".join(f"{f.target} {f.way}: {f.reason or 'nothing'}" for f in wrong[:3])
    return [
        Row(f"{name}: found within", asked, took[-1] if took else float("inf"), "s", note=note,
            samples={"s": took}),
        Row(f"{name}: link or direction not named", 0, len(wrong), "", better="equal", note=said),
        Row(f"{name}: packets heard on a link", RATE, rate, "/s", better="higher"),
    ]  # fmt: skip


def _round(
    cluster: Cluster, watch: PageWatch, number: int, percent: float, asked: float
) -> list[Found]:
    targets = [f"h{h}:rail{(h + number) % RAILS}" for h in range(HOSTS)]
    ways: list[Way] = ["rx" if (h + number) % 2 else "tx" for h in range(HOSTS)]
    wait_until(
        lambda: all(watch.state(*_ends(t)) not in WORSE for t in targets),
        RETURN_S,
        "links without a memory of loss",
    )
    wall = time.time_ns()
    before = [(_heard(cluster, t), time.monotonic()) for t in targets]
    began: list[int] = []
    with ExitStack() as stack:
        for target, way in zip(targets, ways, strict=True):
            began.append(time.monotonic_ns())
            stack.enter_context(cluster.inject(Loss(target, percent, way)))
        end = time.monotonic() + 1.5 * asked
        seen = [
            watch.first(*_ends(t), WORSE, at, max(0.0, end - time.monotonic()))
            for t, at in zip(targets, began, strict=True)
        ]
        time.sleep(0.5)
        rates = [
            (_heard(cluster, t) - count) / (time.monotonic() - at)
            for t, (count, at) in zip(targets, before, strict=True)
        ]
    return [
        Found(
            target, way, None if row is None else (row.t_ns - at) / 1e9,
            _reason(cluster, target, wall), rate,
        )
        for target, way, row, at, rate in zip(targets, ways, seen, began, rates, strict=True)
    ]  # fmt: skip


def _heard(cluster: Cluster, target: str) -> int:
    host, rail = (int(part[-1]) for part in target.split(":"))
    with RingReader(cluster.nodes[host].run_dir / "prober" / "ring") as ring:
        return sum(row.received for row in ring.paths() if row.link == rail)


def _reason(cluster: Cluster, target: str, since_wall_ns: int) -> str:
    host, link = target.split(":")
    node = cluster.nodes[int(host[1:])]
    with Timeline(node.state_dir / "timeline.db", host=node.name, read_only=True) as timeline:
        rows = timeline.query(
            since_ns=since_wall_ns, link=link, kind=EventKind.LINK_STATE, limit=None
        )
    return next((r.reason for r in rows if r.to_state is LinkState.DEGRADED), "")


def _ends(target: str) -> tuple[str, str]:
    host, netdev = target.split(":")
    return host, netdev
