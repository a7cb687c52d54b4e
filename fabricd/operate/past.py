"""What steering would have done: the recorded evidence through today's rules. Pure.

Two sources. WOULD_STEER rows say what the daemon decided in observe mode, at the time. Before them,
or with other parameters than then, the evidence itself (carrier losses and returns, verdicts of
probes, lasting loss) is put through the state machine, damping and policy as configured now, in
virtual time. A verdict stands in the timeline only where it was one, so `max_probe_share` is that
of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fabricd.config import Config
from fabricd.engine import damping_rules, hold_rules
from fabricd.links.health import Facts, Health
from fabricd.steer import policy
from telemetry.events import Event, EventKind, LinkState

_EVIDENCE = {EventKind.FLAP, EventKind.CARRIER_UP, EventKind.LINK_STATE}


@dataclass(frozen=True, slots=True)
class Episode:
    """One time that a link would have been steered away from."""

    link: str
    begun_ns: int
    """CLOCK_REALTIME."""
    ended_ns: int
    reason: str
    weight: int

    @property
    def seconds(self) -> float:
        """How long."""
        return max(0, self.ended_ns - self.begun_ns) / 1e9


@dataclass(slots=True)
class Past:
    """What would have happened.

    Attributes:
        episodes: oldest first.
        fewest: least number of links that would have carried at one time.
        links: how many there are.
        transitions: published changes of state, over all links.
        flaps: carrier losses among the evidence.
    """

    links: int
    fewest: int
    episodes: list[Episode] = field(default_factory=list)
    transitions: int = 0
    flaps: int = 0

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "links": self.links,
            "fewest_carrying": self.fewest,
            "transitions": self.transitions,
            "flaps": self.flaps,
            "episodes": [
                {
                    "link": e.link,
                    "begun_wall_ns": e.begun_ns,
                    "seconds": round(e.seconds, 3),
                    "weight": e.weight / policy.FULL,
                    "reason": e.reason,
                }
                for e in self.episodes
            ],
        }


@dataclass(slots=True)
class _Link:
    netdev: str
    health: Health
    carrier: bool = True
    admin_up: bool = True
    fault: str = ""
    worse: str = ""
    downs: int = 0

    def facts(self) -> Facts:
        return Facts(
            admin_up=self.admin_up, carrier=self.carrier, downs=self.downs, fault=self.fault,
            worse=self.worse, clean=not self.fault,
        )  # fmt: skip


def replay(
    config: Config, rows: Iterable[Event], until_ns: int, only: frozenset[str] | None = None
) -> Past:
    """Put recorded evidence through today's rules.

    Args:
        config: of today; all its links are taken for steered.
        rows: of one host, in the order of the timeline; other kinds than evidence are passed over.
        until_ns: CLOCK_REALTIME at which the past ends.
        only: count and tell of these links alone (netdevs); None: of all.
    """
    run = _Replay(config, only)
    for row in rows:
        if row.kind in _EVIDENCE and row.link in run.links:
            run.advance(row.wall_ns)
            run.take(row)
    run.advance(until_ns)
    return run.finish(until_ns)


class _Replay:
    def __init__(self, config: Config, only: frozenset[str] | None) -> None:
        damping, hold = damping_rules(config), hold_rules(config)
        self.links = {x.netdev: _Link(x.netdev, Health(damping, hold)) for x in config.links}
        self.past = Past(len(self.links), len(self.links))
        self._weights = dict.fromkeys(self.links, policy.FULL)
        self._open: dict[str, tuple[int, str, int]] = {}
        self._only = frozenset(self.links) if only is None else only
        self._now = 0
        for link in self.links.values():
            link.health.update(link.facts(), 0)

    def take(self, row: Event) -> None:
        """One row of evidence, at its own time."""
        link = self.links[row.link]
        if row.kind is EventKind.FLAP:
            link.downs += row.count
            link.carrier = row.data.get("carrier") is True
            self.past.flaps += row.count if row.link in self._only else 0
        elif row.kind is EventKind.CARRIER_UP:
            link.carrier = True
        else:
            self._published(link, row)
        self._step(max(self._now, row.wall_ns))

    def advance(self, until_ns: int) -> None:
        """Let timers run out that end before ``until_ns``."""
        for _ in range(100_000):
            due = [t for x in self.links.values() if (t := x.health.due_at()) is not None]
            at = min(due, default=until_ns)
            if at >= until_ns:
                break
            before = [x.health.due_at() for x in self.links.values()]
            self._step(max(at, self._now))
            if before == [x.health.due_at() for x in self.links.values()]:
                break  # Waits for evidence, not for time.
        self._now = max(self._now, until_ns)

    def finish(self, until_ns: int) -> Past:
        """The result; what is still steered away ends now."""
        for netdev, (begun, reason, weight) in self._open.items():
            self.past.episodes.append(Episode(netdev, begun, until_ns, reason, weight))
        self.past.episodes.sort(key=lambda e: e.begun_ns)
        return self.past

    @staticmethod
    def _published(link: _Link, row: Event) -> None:
        """What a published transition says about probes, loss and the administrator."""
        to, was = row.to_state, row.from_state
        link.admin_up = to is not LinkState.ADMIN
        carrier_did_it = row.reason.startswith("carrier lost")
        if to is LinkState.DOWN and not carrier_did_it:
            link.fault = row.reason or "probes"
        elif was is LinkState.DOWN or to in (LinkState.UP, LinkState.UNKNOWN):
            link.fault = ""
        if to is LinkState.DEGRADED:
            link.worse = row.reason or "loss"
        elif was is LinkState.DEGRADED:
            link.worse = ""

    def _step(self, now: int) -> None:
        self._now = now
        for link in self.links.values():
            moves = len(link.health.update(link.facts(), now))
            self.past.transitions += moves if link.netdev in self._only else 0
            link.downs = 0
        plan = policy.plan(
            [policy.LinkInput(x.netdev, x.health.state, x.carrier) for x in self.links.values()], []
        )
        weights = {rail.netdev: rail.weight for rail in plan.rails}
        for netdev, weight in weights.items():
            if weight != self._weights[netdev] and netdev in self._only:
                self._change(netdev, weight, now)
        self._weights = weights
        carrying = sum(weight > 0 for weight in weights.values())
        self.past.fewest = min(self.past.fewest, carrying)

    def _change(self, netdev: str, weight: int, now: int) -> None:
        if netdev in self._open:
            begun, reason, was = self._open.pop(netdev)
            self.past.episodes.append(Episode(netdev, begun, now, reason, was))
        if weight < policy.FULL:
            self._open[netdev] = (now, self.links[netdev].health.reason, weight)


def recorded(rows: Sequence[Event], links: int, until_ns: int) -> Past:
    """What WOULD_STEER rows say, in their order: links alone, exceptions for paths apart."""
    past = Past(links, links)
    taken: dict[str, tuple[int, str, int]] = {}
    for row in rows:
        weight = row.data.get("weight")
        if row.data.get("remote") or not isinstance(weight, int):
            continue
        past.transitions += 1
        if row.link in taken:
            begun, reason, was = taken.pop(row.link)
            past.episodes.append(Episode(row.link, begun, row.wall_ns, reason, was))
        if weight < policy.FULL:
            taken[row.link] = (row.wall_ns, row.reason, weight)
        out = sum(was == 0 for _, _, was in taken.values())
        past.fewest = min(past.fewest, links - out)
    for netdev, (begun, reason, was) in taken.items():
        past.episodes.append(Episode(netdev, begun, until_ns, reason, was))
    past.episodes.sort(key=lambda e: e.begun_ns)
    return past
