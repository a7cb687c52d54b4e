"""What steering would have done: the recorded evidence through today's rules. Pure.

Of links and of single paths. Two sources. WOULD_STEER rows say what the daemon decided in observe
mode, at the time. Before them, or with other parameters than then, the evidence itself (carrier
losses and returns, verdicts of probes, lasting loss) is put through the state machine, damping and
policy as configured now, in virtual time. A verdict stands in the timeline only where it was one,
so `max_probe_share` is that of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fabricd.config.loader import Config
from fabricd.links.health import Facts, Health
from fabricd.operate.overrides import DRAINED
from fabricd.state.rules import damping_rules, hold_rules
from fabricd.steer import policy
from telemetry.events import Event, EventKind, LinkState

EVIDENCE = (EventKind.FLAP, EventKind.CARRIER_UP, EventKind.LINK_STATE, EventKind.PATH_STATE)


@dataclass(frozen=True, slots=True)
class Episode:
    """One time that a link, or one path of it, would have been steered away from."""

    link: str
    begun_ns: int
    """CLOCK_REALTIME."""
    ended_ns: int
    reason: str
    weight: int
    peer: str = ""
    """Whose path; empty: the whole link."""
    remote: str = ""
    """The peer's address there."""

    @property
    def seconds(self) -> float:
        """How long."""
        return max(0, self.ended_ns - self.begun_ns) / 1e9


@dataclass(slots=True)
class ReplayReport:
    """What would have happened.

    Attributes:
        episodes: of links, oldest first.
        paths: exceptions for single paths, oldest first.
        fewest: least number of links that would have carried at one time.
        links: how many there are.
        transitions: published changes of state, over all links.
        flaps: carrier losses among the evidence.
    """

    links: int
    fewest: int
    episodes: list[Episode] = field(default_factory=list)
    paths: list[Episode] = field(default_factory=list)
    transitions: int = 0
    flaps: int = 0

    def add(self, episode: Episode) -> None:
        """Where it belongs."""
        (self.paths if episode.remote else self.episodes).append(episode)

    def sort(self) -> None:
        """Oldest first."""
        for episodes in (self.episodes, self.paths):
            episodes.sort(key=lambda e: e.begun_ns)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "links": self.links,
            "fewest_carrying": self.fewest,
            "transitions": self.transitions,
            "flaps": self.flaps,
            "episodes": [_document(e) for e in self.episodes],
            "paths": [_document(e) | {"peer": e.peer, "remote": e.remote} for e in self.paths],
        }


def _document(episode: Episode) -> dict[str, Any]:
    return {
        "link": episode.link,
        "begun_wall_ns": episode.begun_ns,
        "seconds": round(episode.seconds, 3),
        "weight": episode.weight / policy.FULL,
        "reason": episode.reason,
    }


Key = tuple[str, str]
"""Netdev and, of a path, the peer's address there."""


@dataclass(slots=True)
class _Track:
    """A link, or (``peer``) a path of one."""

    netdev: str
    health: Health
    peer: str = ""
    remote: str = ""
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
) -> ReplayReport:
    """Put recorded evidence through today's rules.

    Args:
        config: of today; all its links are taken for steered.
        rows: of one host, in the order of the timeline; other kinds than evidence are passed over.
        until_ns: CLOCK_REALTIME at which the replay ends.
        only: count and tell of these links alone (netdevs); None: of all.
    """
    run = _Replay(config, only)
    for row in rows:
        if row.kind in EVIDENCE and row.link in run.links:
            run.advance(row.wall_ns)
            run.take(row)
    run.advance(until_ns)
    return run.finish(until_ns)


class _Replay:
    def __init__(self, config: Config, only: frozenset[str] | None) -> None:
        self._rules = damping_rules(config), hold_rules(config)
        self.links = {x.netdev: _Track(x.netdev, Health(*self._rules)) for x in config.links}
        self.paths: dict[Key, _Track] = {}
        """Those that the timeline names: the others were well all the time."""
        self.report = ReplayReport(len(self.links), len(self.links))
        self._weights: dict[Key, int] = {}
        """Of what does not carry in full."""
        self._open: dict[Key, tuple[int, str, int]] = {}
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
            self.report.flaps += row.count if row.link in self._only else 0
        elif row.kind is EventKind.CARRIER_UP:
            link.carrier = True
        elif row.kind is EventKind.PATH_STATE:
            self._published(self._path(row), row)
        else:
            self._published(link, row)
        self._step(max(self._now, row.wall_ns))

    def _path(self, row: Event) -> _Track:
        key = (row.link, str(row.data.get("address", "")) or row.peer)
        if key not in self.paths:
            path = _Track(row.link, Health(*self._rules), row.peer, key[1])
            path.health.update(path.facts(), self._now)
            self.paths[key] = path
        return self.paths[key]

    def _all(self) -> list[_Track]:
        return [*self.links.values(), *self.paths.values()]

    def advance(self, until_ns: int) -> None:
        """Let timers run out that end before ``until_ns``."""
        for _ in range(100_000):
            due = [t for x in self._all() if (t := x.health.due_at()) is not None]
            at = min(due, default=until_ns)
            if at >= until_ns:
                break
            before = [x.health.due_at() for x in self._all()]
            self._step(max(at, self._now))
            if before == [x.health.due_at() for x in self._all()]:
                break  # Waits for evidence, not for time.
        self._now = max(self._now, until_ns)

    def finish(self, until_ns: int) -> ReplayReport:
        """The result; what is still steered away ends now."""
        for key in list(self._open):
            self._close(key, until_ns)
        self.report.sort()
        return self.report

    @staticmethod
    def _published(link: _Track, row: Event) -> None:
        """What a published transition says about probes, loss and the administrator."""
        to, was = row.to_state, row.from_state
        # What an operator drains is no evidence: steering does not decide it.
        link.admin_up = to is not LinkState.ADMIN or row.reason.startswith(DRAINED)
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
        for track in self._all():
            moves = len(track.health.update(track.facts(), now))
            self.report.transitions += moves if track.netdev in self._only and not track.peer else 0
            track.downs = 0
        plan = policy.plan(
            [policy.LinkInput(x.netdev, x.health.state, x.carrier) for x in self.links.values()],
            [
                policy.PathInput(x.netdev, x.peer, (x.remote,), x.health.state)
                for x in self.paths.values()
            ],
        )
        weights: dict[Key, int] = {(rail.netdev, ""): rail.weight for rail in plan.rails}
        carrying = sum(weight > 0 for weight in weights.values())
        self.report.fewest = min(self.report.fewest, carrying)
        weights |= {(path.netdev, path.remote): path.weight for path in plan.paths}
        for key in sorted({*weights, *self._weights}):
            weight = weights.get(key, policy.FULL)
            if weight != self._weights.get(key, policy.FULL) and key[0] in self._only:
                self._close(key, now)
                if weight < policy.FULL:
                    track = self.paths[key] if key[1] else self.links[key[0]]
                    self._open[key] = (now, track.health.reason, weight)
        self._weights = {key: weight for key, weight in weights.items() if weight < policy.FULL}

    def _close(self, key: Key, now: int) -> None:
        if key in self._open:
            begun, reason, weight = self._open.pop(key)
            peer = self.paths[key].peer if key[1] else ""
            self.report.add(Episode(key[0], begun, now, reason, weight, peer, key[1]))


def recorded(rows: Sequence[Event], links: int, until_ns: int) -> ReplayReport:
    """What WOULD_STEER rows say, in their order."""
    report = ReplayReport(links, links)
    taken: dict[Key, tuple[Event, int]] = {}

    def close(key: Key, at_ns: int) -> None:
        if key in taken:
            row, weight = taken.pop(key)
            peer = row.peer if key[1] else ""
            report.add(Episode(row.link, row.wall_ns, at_ns, row.reason, weight, peer, key[1]))

    for row in rows:
        weight = row.data.get("weight")
        if not isinstance(weight, int):
            continue
        key = (row.link, str(row.data.get("remote", "")))
        report.transitions += not key[1]
        close(key, row.wall_ns)
        if weight < policy.FULL:
            taken[key] = (row, weight)
        out = sum(was == 0 for (_, remote), (_, was) in taken.items() if not remote)
        report.fewest = min(report.fewest, links - out)
    for key in list(taken):
        close(key, until_ns)
    report.sort()
    return report
