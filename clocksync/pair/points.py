"""The points of one direction of a path, and the window of them that makes a line. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocksync.pair.fit import FEWEST, Cloud
from clocksync.pair.model import SECOND, Rules
from clocksync.pair.trains import LEARNED, Ints, TrainFilter, Trains

ROOM = 512
"""Points that there is room for at first."""
SET_BACK_NS = 10**6
"""Packets of one path overtake each other by less. A larger step back means that our clock was set
back."""


class Points:
    """Those of one direction, oldest first."""

    def __init__(self) -> None:
        self.filter = TrainFilter()
        self._room: Ints = np.empty((2, ROOM), np.int64)
        """When, and how far apart the clocks seem; filled from ``_first`` to ``_end``."""
        self._first = self._end = 0
        # Of each batch of trains: when, and how many there were before it, and kept of them.
        self._when: list[int] = []
        self._before: list[tuple[int, int]] = []
        self._trains = self._kept = 0
        self.set_back = False
        """Whether our clock went back since the last look: what is here is of after that."""

    @property
    def newest_ns(self) -> int:
        """When the last one was, our clock; as long ago as can be without any."""
        return int(self._room[0, self._end - 1]) if self._end > self._first else -(2**63)

    def drop(self, before_ns: int) -> None:
        """Forget what is older."""
        self._first += int(self._at().searchsorted(before_ns))
        gone = bisect_left(self._when, before_ns)
        del self._when[:gone], self._before[:gone]

    def since(self, ns: int) -> tuple[Ints, Ints]:
        """Points from then on, as they lie here until the next ones come: when, how far apart."""
        first = self._first + int(self._at().searchsorted(ns))
        found = self._room[:, first : self._end]
        return found[0], found[1]

    def rate(self, since_ns: int) -> float:
        """Share of the trains that were kept since then; 0 without any."""
        first = bisect_left(self._when, since_ns)
        if first == len(self._when):
            return 0.0
        trains, kept = self._before[first]
        return (self._kept - kept) / (self._trains - trains)

    def add(self, points: Ints, when_ns: int, trains: int, *, in_order: bool) -> None:
        """Take what the filter kept of some trains.

        Args:
            points: shape (2, 2 x kept): when, our clock; how far apart the clocks seem.
            when_ns: our clock: of the last train.
            trains: how many there were.
            in_order: whether points are oldest first, and none is older than one that is here.
        """
        count = points.shape[1]
        self._when.append(max(when_ns, self._when[-1]) if self._when else when_ns)
        self._before.append((self._trains, self._kept))
        self._trains, self._kept = self._trains + trains, self._kept + count // 2
        if self._end + count > self._room.shape[1]:
            self._make_room(count)
        end = self._end + count
        self._room[:, self._end : end] = points
        before, self._end = self._end, end
        if not in_order:
            self._arrange(before)

    def _arrange(self, new: int) -> None:
        """Have all oldest first again, of which those from ``new`` on came just now."""
        held = self._room[:, self._first : self._end]
        came = held[0, max(new - self._first - 1, 0) :]
        back = np.flatnonzero(came[1:] - came[:-1] < -SET_BACK_NS)
        if len(back):
            # Of two clocks, whose times overlap: by them nobody could tell which is of which.
            self._first = self._end - len(came) + int(back[-1]) + 1
            self._when, self._before = self._when[-1:], self._before[-1:]
            self.set_back = True
            held = self._room[:, self._first : self._end]
        held[:] = held[:, held[0].argsort(kind="stable")]

    def _at(self) -> Ints:
        return self._room[0, self._first : self._end]

    def _make_room(self, count: int) -> None:
        held = self._room[:, self._first : self._end]
        there = held.shape[1]
        moved = np.empty((2, (there + count) * 5 // 4 + ROOM // 2), np.int64)
        moved[:, :there] = held
        self._room, self._first, self._end = moved, 0, there


def take(came: Sequence[tuple[Points, Trains]], sign: int) -> None:
    """Add what the filters keep of the trains of several directions; each once.

    At once, because what takes time is the calls of NumPy and not the packets.

    Args:
        came: the points of each direction, and its newest trains.
        sign: 1: packets of ours, heard by peers; -1: the peers'.
    """
    if not came:
        return
    trains = Trains(*(np.concatenate(each) for each in zip(*(new for _, new in came), strict=True)))
    ours = trains.sent_ns if sign > 0 else trains.heard_ns
    changes = trains.changes()
    listed = changes.tolist()
    if not listed:
        return
    counts, limits, sizes, end = [len(new.sent_ns) for _, new in came], [], [], 0
    for (points, _), count in zip(came, counts, strict=True):
        end += count
        # However many came at once: what is kept follows what the path is like from train to train.
        for begin in range(end - count, end, LEARNED):
            some = listed[begin : min(begin + LEARNED, end)]
            limits.append(points.filter.learn(some))
            sizes.append(len(some))
    kept = changes <= np.repeat(limits, sizes)
    apart = sign * (trains.heard_ns - trains.sent_ns)
    found = np.stack((ours[kept], apart[kept])).reshape(2, -1)
    ends = np.cumsum(counts)
    last = ours[ends - 1, 1].tolist()
    stops = (2 * np.cumsum(kept))[ends - 1].tolist()
    times, older = found[0].tolist(), np.flatnonzero(found[0, 1:] < found[0, :-1]) + 1
    tidy = set(stops).issuperset(older.tolist())
    begin = 0
    for (points, _), count, when, stop in zip(came, counts, last, stops, strict=True):
        if count:
            in_order = tidy and (begin == stop or times[begin] >= points.newest_ns)
            points.add(found[:, begin:stop], when, count, in_order=in_order)
            begin = stop


def least_rtt(upper: Cloud, lower: Cloud, slope: float) -> float:
    """The least round trip of a packet and the other way's next before or after it.

    Whatever the clocks are apart falls out, and so does a step before or after both.
    """
    after: NDArray[np.intp] = lower.at_s.searchsorted(upper.at_s)
    above = upper.ns - slope * 1e9 * upper.at_s
    # No point before the first and none after the last.
    below = np.full(len(lower.ns) + 2, -np.inf)
    np.subtract(lower.ns, slope * 1e9 * lower.at_s, out=below[1:-1])
    nearest = np.maximum(below[after], below[after + 1])
    return float((above - nearest).min())


class Window(NamedTuple):
    """The newest points of both directions."""

    origin: int
    """Our clock: the middle of the window."""
    base: int
    """Whole nanoseconds that were taken off the clocks' difference."""
    length_ns: int
    since_ns: int
    """Our clock: from here on both directions have points,"""
    till_ns: int
    """and to here."""
    clouds: tuple[Cloud, Cloud]
    nu: tuple[float, float]
    """Share of each cloud that makes its edge (`clocksync.pair.fit.fit`)."""
    kept: tuple[float, float]
    """Share of the trains that the filter kept."""


def newest(
    ways: tuple[Points, Points], now_ns: int, length_ns: int, rules: Rules, *, known: bool
) -> Window | None:
    """The window as of now.

    Args:
        ways: points of either direction, our packets' first.
        now_ns: our clock.
        length_ns: of a window that has points enough; it grows until it has.
        rules: how many these are, and what share of them makes an edge.
        known: whether there is a line, of not long ago. A first one takes longer.

    Returns:
        None: too few points.
    """
    out, back = ways
    length = length_ns
    while True:
        since = now_ns - length
        upper, lower = out.since(since), back.since(since)
        if min(len(upper[0]), len(lower[0])) >= rules.enough or length >= rules.longest_ns:
            break
        length = min(2 * length, rules.longest_ns)
    if min(len(upper[0]), len(lower[0])) < FEWEST:
        return None
    first, last = max(upper[0][0], lower[0][0]), min(upper[0][-1], lower[0][-1])
    if not known and last - first < rules.first_ns:
        return None
    origin = now_ns - length // 2
    base = int(upper[1].min()) // 2 + int(lower[1].max()) // 2
    over, under = (
        Cloud((at - origin) / SECOND, (apart - base).astype(float)) for at, apart in (upper, lower)
    )
    kept = out.rate(first), back.rate(first)
    # The fewer trains met no queue, the fewer of those that passed for it did. And a window that
    # grew is to find packets that are rarer, not more of the same.
    part = rules.nu * rules.window_ns / length_ns
    nu = (max(rules.least_nu, part * kept[0]), max(rules.least_nu, part * kept[1]))
    return Window(origin, base, length, int(first), int(last), (over, under), nu, kept)
