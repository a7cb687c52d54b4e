"""What a link suffers from: fine, congested, slow or broken. Pure.

*Broken* is what the link's own state machine says (carrier, silence, loss beyond what full queues
drop). *Congested*: packets wait in queues on it, on most of its paths. *Slow*: the jobs' messages
take longer on this rail than on its siblings, and no queue in the network explains it: NIC, PCIe,
CPU. The first that applies, in this order; only *broken* has a say in steering.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from fabricd.delay.view import Standing
from fabricd.probes.records import Direction
from telemetry.events import LinkState

BROKEN = frozenset({LinkState.DOWN, LinkState.HOLD, LinkState.DEGRADED})


class Condition(StrEnum):
    """Of one link."""

    UNKNOWN = "unknown"
    """No prober, or the base delays are being learned, and no job says anything either."""
    FINE = "fine"
    CONGESTED = "congested"
    SLOW = "slow"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class ConditionRules:
    """Parameters; steps are of about a second."""

    paths_share: float = 0.5
    """Of a link's paths: what waits on these waits at the link's own port or leaf. One peer's port
    is one path of ten."""
    min_peers: int = 2
    """If it has so many."""
    enter: int = 3
    """Steps in a row: a burst of one collective is no congestion."""
    leave: int = 10
    """Steps in a row without it: congestion comes and goes with the steps of training."""
    forget: int = 30
    """Steps in a row of which nothing is known (no prober, a link that is out)."""
    most_told: int = 4
    """Changes told within `told_ns`; the last of a burst is told when there is room again."""
    told_ns: int = 600 * 10**9


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a link in one step."""

    state: LinkState
    reason: str
    rx: Standing
    tx: Standing
    slow: str = ""
    """Why its rail is slower than its siblings; empty: it is not."""
    slow_known: bool = False
    """Jobs used it enough to tell."""


@dataclass(slots=True)
class Told:
    """Keeps changes few: what holds when there is room again is told then."""

    rules: ConditionRules
    last: tuple[str, ...] = ()
    at: deque[int] = field(default_factory=deque)

    def change(self, what: tuple[str, ...], now: int) -> bool:
        """Whether ``what`` is to be told now: it is another one, and there is room."""
        while self.at and now - self.at[0] >= self.rules.told_ns:
            self.at.popleft()
        if what == self.last or len(self.at) >= self.rules.most_told:
            return False
        self.at.append(now)
        self.last = what
        return True


@dataclass(slots=True)
class LinkCondition:
    """One link through time.

    Attributes:
        now: the condition.
        why: in words.
        direction: of the congestion: ``rx``, ``tx``, ``both``, or empty.
    """

    rules: ConditionRules = field(default_factory=ConditionRules)
    now: Condition = Condition.UNKNOWN
    why: str = ""
    direction: str = ""
    since_ns: int = 0
    _queued: list[bool] = field(default_factory=lambda: [False, False])
    _run: list[int] = field(default_factory=lambda: [0, 0])
    _unknown: int = 0

    def step(self, seen: Seen, now: int) -> bool:
        """One step; whether condition or direction are other ones now."""
        self._unknown = 0 if seen.rx.known or seen.tx.known else self._unknown + 1
        if self._unknown >= self.rules.forget:
            self._queued = [False, False]
        for way, standing in ((Direction.RX, seen.rx), (Direction.TX, seen.tx)):
            self._queue(way, standing)
        before = (self.now, self.direction)
        self.now, self.direction, self.why = self._judge(seen)
        if before == (self.now, self.direction):
            return False
        self.since_ns = now
        return True

    def _queue(self, way: Direction, standing: Standing) -> None:
        rules = self.rules
        if not standing.known:
            self._run[way] = 0  # nothing is known: what was, stays
            return
        wanted = rules.paths_share * standing.known
        if self._queued[way]:
            wanted /= 2
        peers = min(rules.min_peers, standing.peers)
        there = standing.high >= max(1.0, wanted) and len(standing.high_peers) >= peers
        if there == self._queued[way]:
            self._run[way] = 0
            return
        self._run[way] += 1
        if self._run[way] >= (rules.enter if there else rules.leave):
            self._queued[way], self._run[way] = there, 0

    def _judge(self, seen: Seen) -> tuple[Condition, str, str]:
        if seen.state in BROKEN:
            return Condition.BROKEN, "", f"{seen.state.name.lower()}: {seen.reason}"
        ways = [way for way in Direction if self._queued[way]]
        if ways:
            name = "both" if len(ways) > 1 else ways[0].name.lower()
            text = " and ".join(
                f"{way.name.lower()} {s.queue_ns / 1e3:.0f} µs on {s.high} of {s.known} paths"
                if s.high
                else f"{way.name.lower()} until {self._run[way]} s ago"
                for way, s in ((Direction.RX, seen.rx), (Direction.TX, seen.tx))
                if self._queued[way]
            )
            return Condition.CONGESTED, name, f"queues {text}"
        some = {
            way.name.lower(): standing.high_peers
            for way, standing in ((Direction.RX, seen.rx), (Direction.TX, seen.tx))
            if standing.high_peers
        }
        if seen.slow and some:
            # The queue is at some peers' ports, and it is enough to explain a slow rail.
            name = "both" if len(some) > 1 else next(iter(some))
            peers = ", ".join(sorted({peer for names in some.values() for peer in names})[:3])
            return Condition.CONGESTED, name, f"queues {name} on the paths of {peers}"
        if seen.slow:
            return Condition.SLOW, "", seen.slow
        if not seen.rx.known and not seen.slow_known:
            return Condition.UNKNOWN, "", "no base delay yet"
        return Condition.FINE, "", ""
