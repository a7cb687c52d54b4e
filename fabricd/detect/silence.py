"""Packets in a row that were due on a link and are missing, as proof that the link is silent. Pure.

A link hears something every link interval, from its peers in turn. Its silence begins with the
newest packet that it heard, from whomever. From then on each packet that was due counts once, if

* the prober called it a miss (it allows for late senders and for its own gaps);
* its path was regular until then: a path that is dead for reasons of its own proves nothing about
  the link;
* its peer is vouched for: it was heard over another link when this packet was due or later. All
  that is due leaves a peer's prober in one go, so a peer that sent elsewhere did send here. What
  was heard elsewhere a moment ago vouches for nothing yet: its companion may still be under way.

A link that loses single packets now and then needs a longer row: each such near miss of the last
ten seconds is remembered, and every fourth asks for one more, so that loss is no silence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
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
    received: int | None = None
    """Packets so far; None: not known."""
    acked_ns: int = 0
    """When the newest packet was sent that the peer says it heard; 0: not known."""
    due_ns: int = 0
    """When the first packet after the last one heard is due; 0: an interval after that."""
    gone: bool = False
    """The peer said farewell: not ``heard``, and that says nothing."""

    @property
    def due(self) -> int:
        """When the first packet after the last one heard is due."""
        return self.due_ns or self.last_heard_ns + self.interval_ns

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
    chance: float = 1e-4
    """Of a silence by chance: with a hundred paths and a busy peer there are many occasions."""
    near_misses_for_one: int = 4
    """So many near misses ask for one packet more; at most three times ``misses`` in all."""
    near_misses_ns: int = 10 * 10**9

    @property
    def same_batch_ns(self) -> int:
        """What came so much before a packet was due may have left in one go with it.

        Half of the distance of two slots at a sender (those of extra paths lie midway between the
        others): what left in the slot before proves nothing about a sender that stopped since.
        """
        return self.link_interval_ns // 4

    @property
    def surely_sent_ns(self) -> int:
        """What came so much before a packet was due, or later, left in one go with it for sure.

        As much as the slots of a sender's grid move by, and what it takes to serve all its sockets.
        """
        return self.link_interval_ns // 16

    def lateness(self, interval_ns: int) -> int:
        """How late a packet may be, as the prober has it (`Path::lateness`)."""
        return min(interval_ns // 2, self.link_interval_ns // 2 + interval_ns // 16)


@dataclass(frozen=True, slots=True)
class Row:
    """The row of missing packets of one link, in one direction."""

    missing: int = 0
    peers: set[str] = field(default_factory=set)
    needed: int = 0
    sure: int = 0
    """Of the missing: their senders were still alive when these were due, beyond doubt."""

    def proven(self, rules: Rules) -> bool:
        """Whether it is long enough, of more than one peer, and all but one of it beyond doubt.

        Peers that stop within the same few milliseconds leave packets behind that were due just
        after their last sign of life; there are as many of them as there are paths.
        """
        enough = self.missing >= self.needed > 0 and len(self.peers) >= rules.min_peers
        return enough and self.sure >= self.needed - 1


_Side = tuple[int, str]
"""A link and a direction."""


@dataclass(slots=True)
class _Vouched:
    """Of one path: packets due since ``heard_ns`` for which there is a witness."""

    heard_ns: int
    last: int = 0
    """Number of the newest due packet that was vouched for, from 1."""
    count: int = 0
    next: int = 0
    """Number of the one that will be when ``seen_ns`` is some time ago; 0: none."""
    seen_ns: int = 0


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
        by_peer: dict[str, list[PathView]],
        rules: Rules,
        now: int,
    ) -> Row:
        """What we should have heard on the link since the newest packet that we did."""
        newest = max(p.last_heard_ns for p in paths)
        missing, sure, peers = 0, 0, set()
        for path in paths:
            slack = rules.lateness(path.interval_ns)
            if not path.rx_missed or path.due < newest - slack:
                continue
            count, surely = self._vouch(path, by_peer[path.peer], rules, now)
            if count:
                missing += count
                sure += surely
                peers.add(path.peer)
        return self._noted((link, "rx"), Row(missing, peers, sure=sure), rules, now)

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
        # They are alive, for they say so.
        return self._noted((link, "tx"), Row(missing, peers, sure=missing), rules, now)

    def _needed(self, side: _Side, rules: Rules, now: int) -> int:
        near = self._near.get(side)
        while near and near[0] < now - rules.near_misses_ns:
            near.popleft()
        more = len(near) // rules.near_misses_for_one if near else 0
        return min(rules.misses + more, 3 * rules.misses)

    def _noted(self, side: _Side, row: Row, rules: Rules, now: int) -> Row:
        if not row.missing:
            self._end(side, now)
        else:
            self._begun[side] = self._begun.get(side, True) and row.missing < rules.misses
        return replace(row, needed=self._needed(side, rules, now))

    def _end(self, side: _Side, now: int) -> None:
        if self._begun.pop(side, False):
            self._near.setdefault(side, deque()).append(now)

    def _vouch(
        self, path: PathView, same_peer: Sequence[PathView], rules: Rules, now: int
    ) -> tuple[int, int]:
        """How many of the path's misses have a witness by now, and how many of these a sure one."""
        known = self._vouched.get(path.index)
        if known is None or known.heard_ns != path.last_heard_ns:
            known = self._vouched[path.index] = _Vouched(path.last_heard_ns)
        seen = max((p.last_heard_ns for p in same_peer if p.link != path.link), default=0)
        since_due = seen + rules.same_batch_ns - path.due
        number = min(path.rx_missed, 1 + since_due // path.interval_ns) if since_due >= 0 else 0
        if number > known.last and not known.next:
            known.next, known.seen_ns = number, seen
        if known.next and now - known.seen_ns >= rules.link_interval_ns // 4:
            known.last, known.next = known.next, 0
            known.count += 1
        surely = max(0, 1 + (seen + rules.surely_sent_ns - path.due) // path.interval_ns)
        return known.count, min(known.count, surely)


def _surely_heard(path: PathView, rules: Rules, now: int) -> int:
    """When the newest packet was sent that the peer of a clean path must have heard.

    It tells what it heard only with its next packet, but of a miss it complains at once.
    """
    late = rules.lateness(path.interval_ns) + rules.link_interval_ns // 2
    since = max(0, now - late - path.acked_ns)
    return path.acked_ns + since // path.interval_ns * path.interval_ns
