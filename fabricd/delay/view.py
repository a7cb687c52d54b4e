"""Delay and queueing of all paths of a host, by link and direction. Pure.

What a path says (`fabricd.delay.path`) once a second is put together by link: the delays of the
last ten seconds for people, and for the verdict how many paths, to how many peers, have a queue
standing on them now.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from fabricd.delay.path import BaseChange, PathDelay, PathRules, Reading
from fabricd.probes.records import Direction
from fabricd.probes.stamps import Exchange

RX, TX = Direction.RX, Direction.TX
_WAYS = (RX, TX)
STEP_NS = 10**9
WINDOW = 10
"""Steps of the figures that people see: a link of ten peers has 500 packets in it and a p99; of one
of its paths, with 50, that is the most."""
SAMPLES = 440
"""Exchanges used a step and host, shared by its paths, at least `SHARE` each: what the daemon can
afford (some 5 µs each). A path of ten peers has ten a second anyway."""
SHARE = 5

FabricTime = Callable[[str, int], Reading | None]
"""(the peer's host, our raw clock in ns) → what is known of the two hosts' raw clocks
(`fabricd.delay.fabric`); None: not synchronized. Without it delays are relative."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Parameters."""

    congested_ns: int = 100_000
    """Half of a second's packets wait longer than this: a queue stands. TIMELY (SIGCOMM 2015)
    lowers rates between 50 and 500 µs; Swift (SIGCOMM 2020) has fabric targets of 25 to 100 µs."""
    calm_share: float = 0.5
    """Of it: below this the queue is gone."""
    noise_factor: float = 4.0
    """And longer than so many times the median of quiet times: hosts with slow interrupts."""
    stalled_share: float = 0.02
    """Of a step in which our own prober did not run: such a host stamps late, and says nothing."""


@dataclass(frozen=True, slots=True)
class PathPlace:
    """Where a path leads."""

    link: int
    netdev: str
    peer: str
    address: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Queues on one link in one direction, of the last step."""

    known: int = 0
    """Paths that said something."""
    high: int = 0
    """Of these, with a queue."""
    peers: int = 0
    high_peers: tuple[str, ...] = ()
    queue_ns: int = 0
    """Of the paths with a queue: the median of their medians."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one link or path, for people. Nanoseconds; None: not known."""

    base_rtt_ns: int | None = None
    base_tx_ns: int | None = None
    """One way, by fabric time; None: there is none, half of the round trip is as good as known."""
    base_rx_ns: int | None = None
    bound_ns: int | None = None
    queue_p50_ns: tuple[int | None, int | None] = (None, None)
    """rx, tx."""
    queue_p99_ns: tuple[int | None, int | None] = (None, None)
    window_s: float = 0.0


@dataclass(slots=True)
class _Path:
    place: PathPlace
    delay: PathDelay
    lost: int | None = None
    missing: int = 0
    """Steps in a row that said nothing."""
    quiet: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Median queueing of steps without a queue, by direction: the hosts' own noise."""
    p50: tuple[int, int] | None = None
    """rx, tx; of the last step."""
    sure: bool = True
    high: list[bool] = field(default_factory=lambda: [False, False])
    window: deque[tuple[array[float], array[float]]] = field(
        default_factory=lambda: deque(maxlen=WINDOW)
    )


class DelayView:
    """All paths of one host."""

    def __init__(
        self,
        rules: QueueRules | None = None,
        path_rules: PathRules | None = None,
        fabric_time: FabricTime | None = None,
    ) -> None:
        self.rules = rules or QueueRules()
        self.fabric_time = fabric_time
        self._path_rules = path_rules or PathRules()
        self._paths: list[_Path] = []
        self._of: dict[int, list[_Path]] = {}
        """By link."""
        self._stalled = False

    def configure(self, places: Sequence[PathPlace]) -> None:
        """The paths by index; those that stay keep what is known of them."""
        old = {(p.place.netdev, p.place.address, p.place.peer): p for p in self._paths}
        self._paths = []
        for place in places:
            known = old.get((place.netdev, place.address, place.peer))
            path = known or _Path(place, PathDelay(self._path_rules))
            path.place = place
            self._paths.append(path)
        self._of = {}
        for path in self._paths:
            self._of.setdefault(path.place.link, []).append(path)

    @property
    def share(self) -> int:
        """How many exchanges of a path are worth taking each step."""
        return max(SHARE, SAMPLES // max(1, len(self._paths)))

    def feed(
        self,
        found: Mapping[int, Sequence[Exchange]],
        lost: Mapping[int, int],
        *,
        stalled_ns: int = 0,
    ) -> list[tuple[PathPlace, BaseChange]]:
        """One step: what came since the last one.

        Args:
            found: exchanges by path index.
            lost: packets lost by path index, both ways, cumulative.
            stalled_ns: for how long our own prober did not run.

        Returns:
            Paths whose base delay is another one now.
        """
        self._stalled = stalled_ns >= self.rules.stalled_share * STEP_NS
        changes = []
        for index, path in enumerate(self._paths):
            total = lost.get(index)
            dropped = 0 if total is None or path.lost is None else max(0, total - path.lost)
            path.lost = path.lost if total is None else total
            change = self._step(path, found.get(index, ()), dropped)
            if change is not None:
                changes.append((path.place, change))
        return changes

    def _step(self, path: _Path, exchanges: Sequence[Exchange], lost: int) -> BaseChange | None:
        reading = None
        # Stamps of NICs are by other clocks.
        if self.fabric_time is not None and exchanges and not exchanges[-1].hardware:
            at = max(exchanges[-1].sent, exchanges[-1].heard)
            reading = self.fabric_time(path.place.peer, at)
        step = path.delay.step(exchanges, lost, reading) if exchanges else None
        if step is None:
            path.p50 = None
            path.missing += 1
            if path.missing >= WINDOW:
                path.window.clear()
            return None
        path.missing, path.sure = 0, step.sure
        middles = step.rx[len(step.rx) // 2], step.tx[len(step.tx) // 2]
        for way in _WAYS:
            self._judge(path, way, middles[way])
        path.p50 = middles
        # As lists of objects those of 88 paths would be a megabyte more.
        path.window.append((array("d", step.rx), array("d", step.tx)))
        return step.change

    def _judge(self, path: _Path, way: Direction, middle: int) -> None:
        rules = self.rules
        limit = max(rules.congested_ns, rules.noise_factor * path.quiet[way])
        if path.high[way]:
            path.high[way] = middle >= limit * rules.calm_share
        elif not self._stalled:
            path.high[way] = middle >= limit
        if not path.high[way]:
            path.quiet[way] += (min(middle, rules.congested_ns) - path.quiet[way]) / 32

    # -- answers ------------------------------------------------------------------------------

    @property
    def stalled(self) -> bool:
        """Whether our own prober did not run for a part of the last step."""
        return self._stalled

    def standing(self, link: int, way: Direction) -> Standing:
        """Where queues stood on a link in the last step."""
        own = [p for p in self._of.get(link, ()) if p.p50 is not None]
        high = [p for p in own if p.high[way] and p.sure]
        return Standing(
            len(own),
            len(high),
            len({p.place.peer for p in own}),
            tuple(sorted({p.place.peer for p in high})),
            sorted(p.p50[way] for p in high if p.p50)[len(high) // 2] if high else 0,
        )

    def queued_ns(self) -> dict[int, int]:
        """Paths on which a queue stands now, by index, and its median, both ways together."""
        return {
            index: path.p50[RX] + path.p50[TX]
            for index, path in enumerate(self._paths)
            if path.p50 is not None and any(path.high)
        }

    def queueing_ns(self, link: int) -> tuple[int, int] | None:
        """Median queueing of the last step, of a link's typical path: rx, tx; None: not known."""
        own = [p.p50 for p in self._of.get(link, ()) if p.p50 is not None]
        if not own:
            return None
        middle = len(own) // 2
        return sorted(p[RX] for p in own)[middle], sorted(p[TX] for p in own)[middle]

    def link_figures(self, link: int) -> Figures:
        """Of all paths of a link."""
        return self._figures(self._of.get(link, ()))

    def path_figures(self, index: int) -> Figures:
        """Of one path."""
        return self._figures([self._paths[index]]) if index < len(self._paths) else Figures()

    @staticmethod
    def _figures(paths: Iterable[_Path]) -> Figures:
        known = [p for p in paths if p.window and p.delay.base_ns is not None]
        if not known:
            return Figures()
        bases = sorted(p.delay.base_ns or 0.0 for p in known)
        rx = sorted(chain.from_iterable(row for p in known for row, _ in p.window))
        tx = sorted(chain.from_iterable(row for p in known for _, row in p.window))
        synced = [p.delay for p in known if p.delay.asymmetry_ns is not None]
        one_way: tuple[int | None, int | None, int | None] = (None, None, None)
        if synced:
            outs = sorted((d.base_ns or 0.0) / 2 + (d.asymmetry_ns or 0.0) for d in synced)
            backs = sorted((d.base_ns or 0.0) / 2 - (d.asymmetry_ns or 0.0) for d in synced)
            bound = max(d.bound_ns for d in synced)
            middle = len(synced) // 2
            one_way = round(outs[middle]), round(backs[middle]), bound
        return Figures(
            round(bases[len(bases) // 2]),
            *one_way,
            (_quantile(rx, 50), _quantile(tx, 50)),
            (_quantile(rx, 99), _quantile(tx, 99)),
            max(len(p.window) for p in known) * STEP_NS / 1e9,
        )


def _quantile(ordered: Sequence[float], percent: int) -> int:
    return int(ordered[len(ordered) * percent // 100])
