"""Packets in a row that were due on a link and are missing, as proof that the link is silent. Pure.

A link hears something every link interval, from its peers in turn. Its silence begins with the
newest packet that it heard, from whomever. From then on each packet that was due counts once, if

* the prober called it a miss (it allows for late senders and for its own gaps);
* its path was regular until then: a path that is dead for reasons of its own proves nothing about
  the link;
* its peer vouches for it. Each packet says when it was due by the peer's clock and since when the
  peer's prober has been running without a gap. What was due on this link in between left with it,
  or before: all that is due leaves a prober in one go. Nothing is vouched for by a packet that
  stood in a queue, or in the backlog of a machine that was paused, but what was due before it. What
  came a moment ago speaks only for what left well before it: its companion may be under way.

A link that loses single packets now and then needs a longer row: each such near miss of the last
ten seconds is remembered, and every fourth asks for one more, so that loss is no silence. So does
one behind a queue: where packets waited for three link intervals before the silence, the next may
wait for three more. A path that was dead before the silence began knows nothing of that queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple


class PathView(NamedTuple):
    """One path as its row in the prober's ring says. Times are CLOCK_MONOTONIC ns."""

    index: int  # type: ignore[assignment]  # hides tuple.index, of no use here
    link: int
    peer: str
    heard: bool
    """In the prober's present life."""
    rx_missed: int
    """Conclusive misses in a row."""
    tx_missed: int
    interval_ns: int
    last_heard_ns: int
    acked_ns: int = 0
    """When the newest packet was sent that the peer says it heard; 0: not known."""
    said_ns: int = 0
    """When the newest packet heard was due, on the clock of this life of the peer."""
    next_ns: int = 0
    """When the first packet of the path's pace after that is, on the same clock."""
    awake_ns: int = 0
    """By ``said_ns`` the peer had been running without a gap for so long."""
    life: int = 0
    """Incarnation of the peer; another one may have another clock."""
    gone: bool = False
    """The peer sent a bye: not ``heard``, and that says nothing."""
    late_ns: int = 0
    """How late after `due` the prober calls a packet missing; 0: as `Rules.lateness` has it."""
    queue_ns: int = 0
    """Round trip above its least: how long packets of this path waited in queues until now."""

    @property
    def due(self) -> int:
        """When the first packet after the last one heard is due, on our clock."""
        return self.last_heard_ns + self.next_ns - self.said_ns

    @property
    def clean(self) -> bool:
        """Heard, and nothing is missing in either direction."""
        return self.heard and not self.rx_missed and not self.tx_missed

    @property
    def sound(self) -> bool:
        """Good enough to come back: a single miss (a late prober) does not start the hold anew."""
        return self.heard and max(self.rx_missed, self.tx_missed) <= 1


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters of the verdict."""

    misses: int = 3
    link_interval_ns: int = 10_000_000
    min_peers: int = 2
    near_misses_for_one: int = 4
    """So many near misses ask for one packet more; at most three times ``misses`` in all."""
    near_misses_ns: int = 10 * 10**9
    queue_misses: int = 4
    """A queue asks for one more packet for each interval that it is long, up to so many times
    ``misses`` in all."""

    def queued(self, queue_ns: int, interval_ns: int) -> int:
        """How many packets more a silence needs, where packets waited for ``queue_ns``."""
        most = (self.queue_misses - 1) * self.misses
        return min(most, (queue_ns + interval_ns // 2) // interval_ns)

    @property
    def same_slot_ns(self) -> int:
        """What was due so much before another packet, or later, is of its slot.

        As much as one path's slots are moved by against another's: both follow one grid. Slots
        are half a link interval apart at least (those of extra paths lie between the others).
        """
        return self.link_interval_ns // 16

    @property
    def under_way_ns(self) -> int:
        """A packet that came so long ago has no companion under way."""
        return self.link_interval_ns // 4

    def lateness(self, interval_ns: int) -> int:
        """How late a packet may be, as the prober has it (`Path::lateness`)."""
        return min(interval_ns // 2, self.link_interval_ns // 2 + interval_ns // 16)


@dataclass(frozen=True, slots=True)
class Row:
    """The row of missing packets of one link, in one direction."""

    missing: int = 0
    peers: set[str] = field(default_factory=set)
    needed: int = 0

    def proven(self, rules: Rules) -> bool:
        """Whether it is long enough, and of more than one peer."""
        return self.missing >= self.needed > 0 and len(self.peers) >= rules.min_peers


_Side = tuple[int, str]
"""A link and a direction."""


@dataclass(slots=True)
class _Vouched:
    """Of one path: packets due since ``heard_ns`` that its peer vouches for."""

    heard_ns: int
    until: int = 0
    """Number of the newest due packet that was looked at, from 1."""
    count: int = 0


class Silences:
    """Remembers what witnesses said, and the near misses of each link."""

    def __init__(self) -> None:
        self._vouched: dict[int, _Vouched] = {}
        self._begun: dict[_Side, bool] = {}
        """Rows that have begun: whether each was short all the time, as lost packets make it."""
        self._near: dict[_Side, deque[int]] = {}

    def broken(self, link: int, now: int) -> None:
        """Nothing is missing on the link: a row that was there and short was a near miss."""
        for way in ("rx", "tx"):
            self._end((link, way), now)

    def rx(
        self,
        link: int,
        paths: Sequence[PathView],
        sent: Mapping[int, int],
        rules: Rules,
        now: int,
    ) -> Row:
        """What we should have heard on the link since the newest packet that we did.

        ``sent``: by path, what `vouched` says of it.
        """
        newest = max(p.last_heard_ns for p in paths)
        missing, peers = 0, set()
        for path in paths:
            slack = rules.lateness(path.interval_ns)
            if not path.rx_missed or path.due < newest - slack:
                continue
            if count := sent[path.index]:
                missing += count
                peers.add(path.peer)
        return self._noted((link, "rx"), Row(missing, peers), paths, rules, now)

    def tx(
        self,
        link: int,
        paths: Sequence[PathView],
        reported: Iterable[int],
        rules: Rules,
        now: int,
    ) -> Row:
        """What the peers should have heard of us, by their reports on the paths ``reported``."""
        told = set(reported)
        newest = max(_surely_heard(p, rules, now) if p.clean else p.acked_ns for p in paths)
        missing, peers = 0, set()
        for path in paths:
            slack = rules.lateness(path.interval_ns)
            if path.index in told and path.acked_ns + path.interval_ns >= newest - slack:
                missing += path.tx_missed
                peers.add(path.peer)
        return self._noted((link, "tx"), Row(missing, peers), paths, rules, now)

    def _needed(self, side: _Side, paths: Sequence[PathView], rules: Rules, now: int) -> int:
        near = self._near.get(side)
        while near and near[0] < now - rules.near_misses_ns:
            near.popleft()
        more = len(near) // rules.near_misses_for_one if near else 0
        queued = rules.queued(_queue_ns(paths, rules), rules.link_interval_ns)
        return max(min(rules.misses + more, 3 * rules.misses), rules.misses + queued)

    def _noted(
        self, side: _Side, row: Row, paths: Sequence[PathView], rules: Rules, now: int
    ) -> Row:
        if not row.missing:
            self._end(side, now)
        else:
            self._begun[side] = self._begun.get(side, True) and row.missing < rules.misses
        return replace(row, needed=self._needed(side, paths, rules, now))

    def _end(self, side: _Side, now: int) -> None:
        if self._begun.pop(side, False):
            self._near.setdefault(side, deque()).append(now)

    def vouched(self, path: PathView, same_peer: Sequence[PathView], rules: Rules, now: int) -> int:
        """How many of the path's misses were sent, as its peer says over other links."""
        known = self._vouched.get(path.index)
        if known is None or known.heard_ns != path.last_heard_ns:
            known = self._vouched[path.index] = _Vouched(path.last_heard_ns)
        step = path.interval_ns
        late = path.late_ns or rules.lateness(step)
        called = now - late + rules.same_slot_ns - path.due
        others = [p for p in same_peer if p.link != path.link]
        for witness in sorted(others, key=attrgetter("last_heard_ns")):
            said = witness.said_ns - path.next_ns  # as all here, since the path's first miss
            if witness.life != path.life:  # the clock may be another
                said = witness.last_heard_ns - path.due
            under_way = now - witness.last_heard_ns < rules.under_way_ns
            until = said - rules.link_interval_ns // 2 if under_way else said + rules.same_slot_ns
            last = 1 + min(until, called) // step
            # Before it ran; its own slot it did send, if late.
            before = -((max(witness.awake_ns, rules.same_slot_ns) - said) // step)
            if last > known.until:
                known.count += max(0, last - max(known.until, before))
                known.until = last
        return min(known.count, path.rx_missed)


def _queue_ns(paths: Sequence[PathView], rules: Rules) -> int:
    """The longest queue of a link's paths; what a path that died well before says of it is old."""
    heard, acked = max(p.last_heard_ns for p in paths), max(p.acked_ns for p in paths)
    longest = 0
    for path in paths:
        slack = rules.lateness(path.interval_ns) + path.queue_ns
        silent = path.rx_missed and path.due + slack < heard
        unheard = path.tx_missed and path.acked_ns + path.interval_ns + slack < acked
        if not silent and not unheard:
            longest = max(longest, path.queue_ns)
    return longest


def _surely_heard(path: PathView, rules: Rules, now: int) -> int:
    """When the newest packet was sent that the peer of a clean path must have heard.

    It tells what it heard only with its next packet, but of a miss it complains at once.
    """
    late = rules.lateness(path.interval_ns) + rules.link_interval_ns // 2
    since = max(0, now - late - path.acked_ns)
    return path.acked_ns + since // path.interval_ns * path.interval_ns
