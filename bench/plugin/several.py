"""Several rails lost at once, and one after the other; every byte is checked meanwhile.

Rails go by carrier and by black hole in turn, at either host in turn. `bench.plugin.repairs`
measures what comes after.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from bench.follow import EventFollower, HostEvent
from bench.plugin import repairs
from bench.plugin.checked import Ends, checked_ring
from bench.plugin.rounds import spread
from bench.report import Row
from lab.cluster import Cluster
from lab.faults.catalog import BlackHole, Carrier, Fault
from lab.topology import Topology, parse_rate
from telemetry.statspage import StatsEventKind

RATE = "100mbit"
"""Per rail: eight of them, both ways and checked, leave two cores time."""
HOLD_S = 0.01
SETTLED_S = 0.4
"""From a loss on, until the goodput is that of the survivors. The stall is another part's."""
Kind = type[Carrier] | type[BlackHole]
KINDS: Sequence[Kind] = (Carrier, BlackHole)
FURTHER_RAILS = 4
APART_MS: Mapping[Kind, Sequence[float]] = {
    Carrier: (1, 3, 6, 10, 15, 25, 50),
    BlackHole: (1, 20, 60, 70, 80, 100, 130),
}
"""Between one rail's loss and the next one's. A black hole is found after 60 ms."""


def several(*, quick: bool) -> list[Row]:
    """All rows."""
    rounds = 1 if quick else 5
    seconds = 0.5 if quick else 2.0
    rows: list[Row] = []
    for rails in (4, 8):
        rows += lost_at_once(rails, rounds, seconds)
    rows += lost_in_turn(1 if quick else 10, every=2 if quick else 1)
    return rows + repairs.repairs(repairs.QUICK if quick else repairs.FULL)


@dataclass(slots=True)
class Goodput:
    """Of one number of lost rails: the rates before each loss and during it, in Gbit/s."""

    before: list[float] = field(default_factory=list)
    meanwhile: list[float] = field(default_factory=list)


def lost_at_once(rails: int, rounds: int, seconds: float) -> list[Row]:
    """Some of so many rails lost together, 1 to all but one, each ``rounds`` times."""
    ends = Ends()
    found: dict[int, Goodput] = {k: Goodput() for k in range(1, rails)}
    cases = itertools.count()
    with (
        Cluster(topology=_topology(rails)) as cluster,
        checked_ring(cluster, ends, hold_s=HOLD_S) as job,
    ):
        for _ in range(rounds):
            job.wait_carrying()
            job.sleep(2 * SETTLED_S)
            before = job.measure(2 * seconds)
            for k, goodput in found.items():
                case = next(cases)
                goodput.before.append(before)
                with _together(cluster, _targets(case, k, rails), KINDS[case % len(KINDS)]):
                    job.sleep(SETTLED_S)
                    goodput.meanwhile.append(job.measure(seconds))
                job.wait_carrying()
    return at_once_rows(rails, found, ends)


def at_once_rows(rails: int, found: Mapping[int, Goodput], ends: Ends) -> list[Row]:
    """The rows of `lost_at_once`. Pure."""
    name = f"k of {rails} rails lost at once, k = 1 to {rails - 1}"
    parts = {
        f"k = {k}": [
            during / before / ((rails - k) / rails)
            for before, during in zip(goodput.before, goodput.meanwhile, strict=False)
        ]
        for k, goodput in found.items()
    }
    taken = {k: values for k, values in parts.items() if values}
    rows = ends.rows(name, f"{sum(map(len, taken.values()))} losses")
    if taken:
        rows.append(
            Row(
                f"{name}: least goodput meanwhile, part of that of the rails that are left",
                None,
                min(min(values) for values in taken.values()),
                "",
                better="higher",
                note="; ".join(f"{k}: {spread(values)}" for k, values in taken.items()),
                samples=taken,
            )
        )
    return rows


@dataclass(slots=True)
class Further:
    """Losses after a first one, and what was under way when they came."""

    losses: int = 0
    in_fence: int = 0
    """While a fence waited for its answer."""
    in_resend: int = 0
    """While chunks of a path that was lost before were sent again."""


def lost_in_turn(rounds: int, every: int = 1) -> list[Row]:
    """One rail after the other, all but one, ``rounds`` times at every so many-th distance."""
    ends, further = Ends(), Further()
    cases = itertools.count()
    topology = _topology(FURTHER_RAILS)
    plan = [(kind, apart) for kind, each in APART_MS.items() for apart in each[::every]]
    with (
        Cluster(topology=topology) as cluster,
        EventFollower(cluster) as follower,
        checked_ring(cluster, ends, hold_s=HOLD_S) as job,
    ):
        for kind, apart_ms in plan * rounds:
            case = next(cases)
            targets = _targets(case, FURTHER_RAILS - 1, FURTHER_RAILS)
            began = time.monotonic_ns()
            with _together(cluster, targets, kind, apart_ms / 1e3) as faults:
                job.sleep(SETTLED_S)
            job.wait_carrying()
            losses = [fault.started_ns for fault in faults[1:]]
            count_further(further, follower.since(began), losses, topology.rate_bps)
    return further_rows(further, ends)


def count_further(
    further: Further, events: Sequence[HostEvent], losses_ns: Sequence[int], rate_bps: int
) -> None:
    """Add these losses. ``events``: from before the first loss on, oldest first. Pure.

    A fence lasts from the sender's PATH_DOWN to its FENCE_DONE. What is sent again takes at least
    as long as all rails but one need for it at ``rate_bps``.
    """
    down: dict[tuple[str, int, int | None, int | None], int] = {}
    fences: list[tuple[int, int]] = []
    resends: list[tuple[int, int]] = []
    for item in events:
        event = item.event
        key = item.host, event.comm, event.local_rail, event.remote_rail
        if event.kind is StatsEventKind.PATH_DOWN:
            down[key] = event.time_ns
        elif event.kind is StatsEventKind.FENCE_DONE and key in down:
            fences.append((down.pop(key), event.time_ns))
            least_s = event.detail * 8 / (rate_bps * (FURTHER_RAILS - 1))
            resends.append((event.time_ns, event.time_ns + round(least_s * 1e9)))
    for loss in losses_ns:
        further.losses += 1
        further.in_fence += any(start <= loss < end for start, end in fences)
        further.in_resend += any(start <= loss < end for start, end in resends)


def further_rows(further: Further, ends: Ends) -> list[Row]:
    """The rows of `lost_in_turn`. Pure."""
    name = f"all but one of {FURTHER_RAILS} rails lost in turn"
    rows = ends.rows(name, f"{further.losses} further losses")
    for what, got in (
        ("while a fence waits for its answer", further.in_fence),
        ("while chunks are sent again", further.in_resend),
    ):
        note = f"of {further.losses}, 1 to 130 ms after the loss before"
        samples = {"losses": [float(further.losses)]}
        rows.append(Row(f"{name}: {what}", 1, got, "", better="higher", note=note, samples=samples))
    return rows


def _topology(rails: int) -> Topology:
    # With spines each rail of one host reaches each of the other; 8 rails have none.
    spines = 2 if rails <= 4 else 0
    name = f"bench-several-{rails}"
    return Topology(name, hosts=2, rails=rails, spines=spines, rate_bps=parse_rate(RATE))


def _targets(case: int, k: int, rails: int) -> list[str]:
    """``k`` rails of one host, others in each case."""
    return [f"h{case // 2 % 2}:rail{(case + i) % rails}" for i in range(k)]


@contextmanager
def _together(
    cluster: Cluster,
    targets: Sequence[str],
    kind: Kind,
    apart_s: float = 0.0,
) -> Iterator[list[Fault]]:
    """All of them down, until the block ends; ``apart_s`` from one to the next."""
    faults: list[Fault] = [kind(target) for target in targets]
    with ExitStack() as stack:
        for fault in faults:
            cluster.arm(fault)
            stack.callback(cluster.disarm, fault)
        began = time.monotonic()
        for i, fault in enumerate(faults):
            time.sleep(max(0.0, began + i * apart_s - time.monotonic()))
            fault.start()
        yield faults
