"""A unicast client of one or more masters (16.1, 9.3): what time the best of them has. Pure.

All configured masters are timed all the while, so a change of master is a change of line and no
start anew. The best is by the data set comparison (`clocksync.ptp.dataset`), of those that are
heard and have a line.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from functools import cmp_to_key
from typing import NamedTuple

from clocksync.pair.linear import Linear, split
from clocksync.pair.model import SECOND
from clocksync.ptp.dataset import ACCURACY_NS, better
from clocksync.ptp.estimator import Rules
from clocksync.ptp.master import Master, Outgoing
from clocksync.ptp.messages import Announce, Flag, Message, PortIdentity, PtpError, decode

FRESH_NS = 5 * SECOND
"""Of a line whose master is heard no more than this ago the time is tracked; else held over."""


LEAST_UTC_OFFSET_S = 10
"""TAI less UTC has been that and more since 1972: a master that says less knows nothing of it."""


class Grandmaster(NamedTuple):
    """Whose time it is, and what that is worth; the fields of Announce (13.5)."""

    identity: int
    """clockIdentity of the grandmaster, as a number."""
    clock_class: int
    accuracy: int
    """clockAccuracy."""
    steps_removed: int
    utc_offset_s: int | None
    """TAI less UTC; None: not known."""
    ptp_timescale: bool
    """Whether its time is TAI; else its epoch is its own affair."""
    traceable: bool
    """To a primary reference (timeTraceable)."""
    leap: int
    """At the end of the day: +1 or -1 second, or 0."""

    @classmethod
    def of(cls, said: Announce) -> Grandmaster:
        """Of an Announce."""
        flags = said.header.flags
        return cls(
            int.from_bytes(said.grandmaster, "big"), said.clock_class, said.accuracy,
            said.steps_removed,
            utc_offset_s(said),
            bool(flags & Flag.PTP_TIMESCALE), bool(flags & Flag.TIME_TRACEABLE),
            bool(flags & Flag.LEAP_61) - bool(flags & Flag.LEAP_59),
        )  # fmt: skip


def utc_offset_s(said: Announce) -> int | None:
    """TAI less UTC by an Announce; None: its master does not know it."""
    valid = said.header.flags & Flag.UTC_OFFSET_VALID and said.utc_offset_s >= LEAST_UTC_OFFSET_S
    return said.utc_offset_s if valid else None


class MasterTime(NamedTuple):
    """The best master's time as of one moment."""

    time: Linear
    """Over our clock, from that moment on."""
    bound_ns: float
    """With what the grandmaster says of its own accuracy."""
    drift: float
    """By so much a nanosecond more later."""
    half_rtt_ns: float
    grandmaster: Grandmaster
    tracking: bool
    """False: the master is silent, or its newest messages are in doubt."""


@dataclass(slots=True)
class Status:
    """What a client counts."""

    changes: int = 0
    """Times that another master became the best."""
    refused: int = 0
    """Messages that made no sense, were for others, or of unknown senders."""


class Client:
    """The core. Give it what came, ask for a step ten times a second."""

    def __init__(
        self, identity: bytes, masters: int, domain: int = 0, rules: Rules | None = None
    ) -> None:
        """A client that knows nothing yet.

        Args:
            identity: clockIdentity, 8 bytes (7.5.2.2).
            masters: how many are configured; their indices count from 0.
            domain: domainNumber (7.1).
            rules: of the estimators.
        """
        self.status = Status()
        self._sequence = itertools.count()
        us = PortIdentity(identity, 1)
        self.masters = [
            Master(index, us, domain, self._next, rules or Rules()) for index in range(masters)
        ]
        self.best: Master | None = None
        self._grandmaster: Grandmaster | None = None
        self._apart: set[tuple[int, int]] = set()
        """Masters whose times contradicted each other when they were last compared."""

    def _next(self) -> int:
        return next(self._sequence) & 0xFFFF

    def receive(self, index: int, data: bytes, stamp_ns: int | None, now_ns: int) -> None:
        """A datagram came from a master's address.

        Args:
            index: of the master.
            data: its bytes; nonsense is counted.
            stamp_ns: when it came, by our clock; None: not known.
            now_ns: our clock.
        """
        try:
            message = decode(data)
        except PtpError:
            self.status.refused += 1
            return
        self.masters[index].hear(message, stamp_ns, now_ns)

    def sent(self, sequence: int, stamp_ns: int) -> None:
        """The Delay_Req with that number left, by our clock."""
        for master in self.masters:
            master.sent(sequence, stamp_ns)

    def step(self, now_ns: int) -> list[tuple[int, Message]]:
        """What to send to whom (index), and choose the best master."""
        out: list[Outgoing] = []
        for master in self.masters:
            out += master.step(now_ns)
        self._choose()
        return [(each.master, each.message) for each in out]

    def cancel_unicast_transmission(self) -> list[tuple[int, Message]]:
        """What to send before the end: CANCEL_UNICAST_TRANSMISSION to each master that granted."""
        said = [each for master in self.masters for each in master.cancel_unicast_transmission()]
        return [(each.master, each.message) for each in said]

    def reset(self) -> None:
        """Our clock is another: all lines over it are void, and all times of it."""
        for master in self.masters:
            master.reset()

    def refused(self) -> Counter[str]:
        """Messages that were not for us, by reason."""
        total = Counter({"malformed": self.status.refused})
        for master in self.masters:
            total += master.refused
        return total

    def time(self, now_ns: int) -> MasterTime | None:
        """The best master's time from ``now_ns`` on; None: there has been none."""
        master, whose = self.best, self._grandmaster
        found = master.estimator.last if master is not None else None
        if master is None or whose is None or found is None:
            return None
        ns, part = split(found.ahead(now_ns), now_ns + found.base_ns)
        age = abs(now_ns - found.at_ns)
        tracking = (
            master.alive
            and master.timing
            and not master.estimator.doubt
            and now_ns - found.seen_ns <= FRESH_NS
        )
        return MasterTime(
            Linear(now_ns, ns, part, found.slope),
            found.bound_ns(now_ns) + ACCURACY_NS.get(whose.accuracy, 0.0),
            found.drift + found.rules.wander * age / SECOND, found.half_rtt_ns, whose, tracking,
        )  # fmt: skip

    def _choose(self) -> None:
        ready = [m for m in self.masters if m.alive and m.estimator.last is not None]
        if not ready:
            if self.best is not None and self.best.estimator.last is None:
                # A line that it has later may be another grandmaster's.
                self._grandmaster = None
            return  # else the last one's line goes on
        best = min(ready, key=cmp_to_key(_order))
        if best is not self.best:
            self.status.changes += self.best is not None
            self.best = best
        if best.said is not None:
            whose = Grandmaster.of(best.said)
            # Which of them is right nobody knows, and UTC would be wrong by whole seconds.
            known = len(set(self._utc_offsets().values())) < 2
            self._grandmaster = whose if known else whose._replace(utc_offset_s=None)

    def _utc_offsets(self) -> dict[int, int]:
        """By the index of each master that is heard and says what TAI less UTC is."""
        found = {m.index: utc_offset_s(m.said) for m in self.masters if m.alive and m.said}
        return {index: offset for index, offset in found.items() if offset is not None}

    def contradictions(self, now_ns: int) -> str:
        """In what the masters that are heard contradict each other, for people; "": in nothing."""
        texts = []
        offsets = self._utc_offsets()
        if len(set(offsets.values())) > 1:
            said = ", ".join(f"master {index} says {s} s" for index, s in offsets.items())
            texts.append(f"TAI less UTC: {said}; UTC is not known")
        apart: set[tuple[int, int]] = set()
        times = [(m.index, *self._tai(m, now_ns)) for m in self.masters if self._has_tai(m)]
        for (one, ns, bound), (other, its_ns, its_bound) in itertools.combinations(times, 2):
            # Once apart, they are so until they are well within the bounds.
            most = (bound + its_bound) / (2 if (one, other) in self._apart else 1)
            if abs(ns - its_ns) > most:
                texts.append(f"TAI: masters {one} and {other} differ by more than both bounds")
                apart.add((one, other))
        self._apart = apart
        return "; ".join(texts)

    @staticmethod
    def _has_tai(master: Master) -> bool:
        tai = master.said is not None and master.said.header.flags & Flag.PTP_TIMESCALE
        return bool(tai) and master.alive and master.estimator.last is not None

    @staticmethod
    def _tai(master: Master, now_ns: int) -> tuple[int, float]:
        """A master's time now and how far off it may be."""
        found = master.estimator.last
        assert found is not None
        assert master.said is not None
        ns, _ = split(found.ahead(now_ns), now_ns + found.base_ns)
        return ns, found.bound_ns(now_ns) + ACCURACY_NS.get(master.said.accuracy, 0.0)


def _order(one: Master, other: Master) -> int:
    assert one.said is not None
    assert other.said is not None
    return -1 if better(one.said, other.said) else 1
