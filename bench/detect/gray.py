"""Part *gray*: gray loss found in time, and never where there is none, on thousands of seeds.

The live part (`live_loss`) has a few dozen links, which says little about the tail. Here the
daemon's own `LossTest` gets the counters of a host of that lab, or of a larger one at the default
cadence, whose packets are lost at random; who probes whom is the daemon's own choice. What it does
not have is what a lab has: readings that come late, queues, hosts without a free core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

from bench.detect.alarms import alarms_of_bursts, years_to_alarm
from bench.detect.play import TICK_S
from bench.report import Row
from fabricd.detect.loss import LossTest
from fabricd.detect.loss_rules import TRAIN, LossCounters, LossRules
from fabricd.detect.mesh import Node, choose, train_rate

RAILS = 4
TRAINS_HZ = 100
"""`clock_train_hz`."""
LOOKS = 4
"""Times a tick that the daemon looks while it suspects (`fabricd.daemon.LOOKS`)."""
BASE = 1e-6
WARM_S = 5.0
ASKED_S = {1.0: 3.0, 0.1: 30.0}
LIMIT_S = {1.0: 15.0, 0.1: 60.0}
MENDED_S = 60.0


@dataclass(frozen=True, slots=True)
class World:
    """A lab."""

    text: str
    hosts: int
    link_interval_s: float


FAST = World("3 ms", 4, 0.003)
DEFAULT = World("10 ms", 12, 0.01)


@dataclass(frozen=True, slots=True)
class _Path:
    rail: int
    peer: str
    peer_rail: int
    packets: float
    interval_s: float
    train_s: float
    """Between trains; 0: none come."""

    @property
    def late_s(self) -> float:
        """How much later a loss shows: a train, or one packet of its path."""
        return self.train_s or self.interval_s


def paths(world: World, host: int) -> list[_Path]:
    """What that host probes."""
    names = [f"h{i}" for i in range(world.hosts)]
    address = {(n, r): f"10.{r}.0.{i}" for i, n in enumerate(names) for r in range(RAILS)}
    own = names[host]
    specs = choose(
        own,
        [(r, r, address[own, r]) for r in range(RAILS)],
        [Node(n, {r: (address[n, r],) for r in range(RAILS)}) for n in names if n != own],
        per_rail=10,
        cross_rail=1,
    )
    trains = train_rate(TRAINS_HZ, RAILS, world.hosts - 1)
    out = []
    for spec in specs:
        interval = world.link_interval_s * sum(other.link == spec.link for other in specs)
        packets = 1 / interval + TRAIN * trains * spec.clock
        out.append(
            _Path(spec.link, spec.peer, spec.peer_rail, packets, interval, spec.clock / trains)
        )
    return out


def found_after(world: World, percent: float, seed: int) -> float:
    """Seconds from the fault of one link of one host until it is named, at most `LIMIT_S`."""
    rng = np.random.default_rng([seed, round(percent * 1000)])
    host, rail, way = seed % world.hosts, seed // world.hosts % RAILS, seed % 2
    limit = LIMIT_S[percent]

    def chance(path: _Path, direction: int) -> float:
        return percent / 100 if (path.rail, direction) == (rail, way) else 0.0

    return _named(_verdicts(world, host, chance, limit, rng), rail, seed, limit)


def found_after_another(world: World, percent: float, seed: int) -> float:
    """The same while the host remembers that a peer's link lost as much, towards us or from us.

    A link that its own rail probes: it is mended up to a minute before.
    """
    rng = np.random.default_rng([seed, round(percent * 1000), 2])
    host, rail, way = seed % world.hosts, seed // world.hosts % RAILS, seed % 2
    there = [p for p in paths(world, host) if p.rail == rail]
    sick = there[int(rng.integers(len(there)))]
    end = -float(rng.uniform(0.5, MENDED_S))
    limit = LIMIT_S[percent]

    def earlier(path: _Path, direction: int) -> float:
        on = (path.peer, path.peer_rail) == (sick.peer, sick.peer_rail)
        return percent / 100 if on and direction == way else 0.0

    def chance(path: _Path, direction: int) -> float:
        return percent / 100 if (path.rail, direction) == (rail, way) else 0.0

    before = Earlier(earlier, end - 1.5 * ASKED_S[percent], end)
    return _named_alone(_verdicts(world, host, chance, limit, rng, before), rail, limit)


def _named(verdicts: Iterator[tuple[float, set[int]]], rail: int, seed: int, limit: float) -> float:
    for now, links in verdicts:
        if wrong := links - ({rail} if now > 0 else set()):
            raise RuntimeError(f"seed {seed}: link {min(wrong)} is well and was named")
        if rail in links:
            return now
    return limit


def _named_alone(verdicts: Iterator[tuple[float, set[int]]], rail: int, limit: float) -> float:
    """The same where a wrong word is as good as none: `named_instead` counts those."""
    for now, links in verdicts:
        if links - ({rail} if now > 0 else set()):
            return limit
        if rail in links:
            return now
    return limit


def named_instead(world: World, percent: float, seed: int) -> bool:
    """Whether a link of a host is named while it is a peer's, with a clock path to it, that loses.

    For as long as the fault of an own link has to be found in.
    """
    rng = np.random.default_rng([seed, round(percent * 1000), 1])
    host, rail, way = seed % world.hosts, seed // world.hosts % RAILS, seed % 2
    clocks = [p for p in paths(world, host) if p.rail == rail and p.train_s]
    sick = clocks[seed % len(clocks)]

    def chance(path: _Path, direction: int) -> float:
        there = (path.peer, path.peer_rail) == (sick.peer, sick.peer_rail)
        return percent / 100 if there and direction == way else 0.0

    return any(links for _, links in _verdicts(world, host, chance, ASKED_S[percent], rng))


class Earlier(NamedTuple):
    """Another fault, which is over."""

    chance: Callable[[_Path, int], float]
    began: float
    """Seconds, below 0."""
    ended: float


def _verdicts(
    world: World,
    host: int,
    chance: Callable[[_Path, int], float],
    limit: float,
    rng: np.random.Generator,
    earlier: Earlier | None = None,
) -> Iterator[tuple[float, set[int]]]:
    """What the daemon of a host says: seconds after the fault began, links that it names.

    Args:
        world: the lab.
        host: which.
        chance: that a packet of a path is lost after 0 s, by direction (0: rx).
        limit: until when.
        rng: of the losses.
        earlier: what was before that.
    """
    own = paths(world, host)
    warm = WARM_S - (earlier.began if earlier else 0.0)
    shown = []
    for path in own:
        for direction in (0, 1):
            noise = rng.uniform(-warm, limit, rng.poisson(BASE * path.packets * (warm + limit)))
            number = rng.poisson(chance(path, direction) * path.packets * limit)
            lost = np.concatenate([noise, rng.uniform(0, limit, number)])
            if earlier is not None:
                span = earlier.ended - earlier.began
                more = rng.poisson(earlier.chance(path, direction) * path.packets * span)
                lost = np.concatenate([lost, rng.uniform(earlier.began, earlier.ended, more)])
            shown.append(np.sort(lost) + path.late_s)
    test = LossTest(f"h{host}")
    now = float(rng.uniform(0, TICK_S)) - warm
    while now < limit:
        counters = []
        for i, path in enumerate(own):
            sent = int((now + warm) * path.packets)
            rx, tx = (int(np.searchsorted(shown[2 * i + d], now)) for d in (0, 1))
            counters.append(
                LossCounters(
                    i, path.rail, path.rail, path.peer, path.peer_rail, sent, sent - rx, rx, tx,
                    interval_ns=round(path.interval_s * 1e9), trains=path.train_s > 0,
                )
            )  # fmt: skip
        verdict = test.feed(counters, round((now + warm + 1) * 1e9))
        yield now, set(verdict.links)
        now += TICK_S / LOOKS if test.suspects else TICK_S


def gray(*, quick: bool) -> list[Row]:
    """In time, and false alarms."""
    seeds = 200 if quick else 2000
    out = []
    for world in (FAST, DEFAULT):
        packets = min(
            sum(p.packets for p in paths(world, h) if p.rail == r)
            for h in range(world.hosts)
            for r in range(RAILS)
        )
        for percent in (1.0, 0.1):
            count = seeds if percent == 1.0 else seeds // 4
            out.append(_row(world, percent, _play(found_after, world, percent, count), packets))
            after = _play(found_after_another, world, percent, count)
            out.append(_row(world, percent, after, packets, " soon after a peer's"))
            named = _play(named_instead, world, percent, count)
            out.append(
                Row(f"{percent:g} % loss of a peer's link, {world.text}, simulated: own named",
                    1, 100 * sum(named) / len(named), "%", note=f"{len(named)} seeds")
            )  # fmt: skip
    return [*out, *alarm_rows(quick=quick)]


def _play(
    what: Callable[[World, float, int], float], world: World, percent: float, seeds: int
) -> list[float]:
    with get_context("fork").Pool() as pool:
        wanted = [(world, percent, seed) for seed in range(seeds)]
        return pool.starmap(what, wanted, chunksize=20)


def _row(
    world: World, percent: float, took: Sequence[float], packets: float, when: str = ""
) -> Row:
    """The share that is found in time: of 99 % of the links that is asked."""
    asked = ASKED_S[percent]
    p50, p99 = np.percentile(took, [50, 99])
    return Row(
        f"{percent:g} % loss{when}, link interval {world.text}, simulated: "
        f"found within {asked:g} s",
        99,
        100 * sum(t <= asked for t in took) / len(took),
        "%",
        "higher",
        note=f"{len(took)} seeds, median {p50:.2f} s, p99 {p99:.2f} s; at least {packets:.0f}/s",
    )


def alarm_rows(*, quick: bool) -> list[Row]:
    """False verdicts of the bare test, both directions of a link together."""
    rules = LossRules()
    test, out = rules.idle, []
    known = replace(test, normal=rules.usual)
    for rate, judged, when in (
        (1e-6, test, ""), (1e-5, test, ", at first"), (1e-5, known, ", once it is known"),
    ):  # fmt: skip
        often = 2 / years_to_alarm(judged, rate, 400)
        out.append(
            Row(f"false verdicts a link-year at a steady loss of {rate:g}{when}", None, often, "",
                note=f"computed; one in {1 / often:.3g} years, before the place is asked")
        )  # fmt: skip
    for longest, judged, queue in (
        (0.5, test, "whose queue is too short to be seen"),
        (2.0, rules.congested, "with a queue"),
    ):
        often, share = alarms_of_bursts(
            test, judged, per_minute=1, length_s=(0.005, longest), loss=(1e-5, 5e-3),
            packets=400, links=5_000 if quick else 50_000, years=0.002,
        )  # fmt: skip
        out.append(
            Row(f"false verdicts a link-year, a burst of up to {longest:g} s a minute {queue}",
                None, 2 * often, "",
                note=f"from 5 ms on, each losing 1e-5 to 5e-3; {share:.2g} of all packets lost")
        )  # fmt: skip
    return out
