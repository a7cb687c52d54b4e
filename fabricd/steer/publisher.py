"""Publishes the engine's plan on the steer page and says what became different."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from fabricd.engine import Engine
from fabricd.links.health import share
from fabricd.steer.modes import Mode
from fabricd.steer.page import Entry, PageError, SteerPage
from fabricd.steer.policy import FULL, PathEntry, Plan, RailEntry, observed, weight_of
from fabricd.timeline.rows import event
from telemetry.events import Event, EventKind, LinkState

Key = tuple[str, str, str]
"""Netdev, remote address ("": the rail) and transport ("": IP, or `RDMA`)."""
Weights = dict[Key, int]
RDMA = "rdma"


class Publisher:
    """Remembers what the page says and what it would say."""

    def __init__(self, page: SteerPage) -> None:
        self.page = page
        self._said: Weights = _weights(page.taken_over)
        self._wanted: Weights = {}
        self._last_error = ""
        self._left_out = False
        self._given_back = False
        self._log = structlog.get_logger()

    def rail_weights(self) -> dict[str, int]:
        """What the page says, by netdev."""
        return _rails(self._said, "")

    def wanted_weights(self) -> dict[str, int]:
        """What the engine wants on the page, also where the mode is observe; by netdev."""
        return _rails(self._wanted, "")

    def rdma_weights(self) -> dict[str, int]:
        """What the page says of RDMA, where that is not the rail's weight; by netdev."""
        return _rails(self._said, RDMA)

    def publish(
        self, engine: Engine, modes: Mapping[str, Mode], now: int, *, give_back: bool = False
    ) -> list[Event]:
        """Write the page; returns STEER and WOULD_STEER events.

        Args:
            engine: whose plan is published.
            modes: netdev → the mode in effect there; a link that is missing observes.
            now: CLOCK_MONOTONIC ns.
            give_back: every weight full, whatever the plan says. It is the last word: timers and
                readers still run while the daemon ends.
        """
        if self._given_back:
            return []
        self._given_back = give_back
        wanted = engine.plan()
        rails = [rail.netdev for rail in wanted.rails]
        observing = frozenset(n for n in rails if modes.get(n, Mode.OBSERVE) is Mode.OBSERVE)
        plan = self._fitting(observed(wanted, None if give_back else observing))
        mode = max(modes.values(), default=Mode.OBSERVE)
        try:
            self.page.publish(plan, int(mode), now)
            self._last_error = ""
        except PageError as error:
            if str(error) != self._last_error:
                self._last_error = str(error)
                self._log.error("steer page not written", error=str(error))
        events = self._differences(EventKind.STEER, engine, self._said, plan, wanted)
        would = self._differences(EventKind.WOULD_STEER, engine, self._wanted, wanted, wanted)
        # Where it is steered the STEER rows have said it.
        return events if give_back else events + [e for e in would if e.link in observing]

    def _fitting(self, plan: Plan) -> Plan:
        """What the page holds of a plan; once for each time, that it does not hold all."""
        found = self.page.fit(plan)
        more = len(plan.paths) - len(found.paths)
        if more and not self._left_out:
            self._log.error("the steer page has no room for all paths that carry less", more=more)
        self._left_out = more > 0
        return found

    @staticmethod
    def _differences(
        kind: EventKind, engine: Engine, old: Weights, plan: Plan, wanted: Plan
    ) -> list[Event]:
        """Events for changed weights; ``old`` becomes that of ``plan``."""
        new = _weights((*plan.rails, *plan.paths))
        changed = [k for k in sorted({*old, *new}) if _weight(old, k) != _weight(new, k)]
        events = []
        if changed:
            about = _About(engine, plan, wanted)
            events = [about.event(kind, k, _weight(old, k), _weight(new, k)) for k in changed]
        old.clear()
        old.update(new)
        return events


class _About:
    """Names, states and reasons of the page's entries."""

    def __init__(self, engine: Engine, plan: Plan, wanted: Plan) -> None:
        self.states: dict[Key, LinkState] = {}
        for rail in plan.rails:
            self._add_states(rail.netdev, "", rail)
        for entry in plan.paths:
            self._add_states(entry.netdev, entry.remote, entry)
        self.reasons = {
            (x.netdev, "", ""): str(x.forecast)
            if engine.share(x) < 1 and weight_of(x.health.state, x.carrier) == FULL
            else x.health.reason
            for x in engine.links
        }
        self.rails = {x.netdev: x.rail for x in engine.links}
        self.peers: dict[str, str] = {}
        self.kept: dict[Key, str] = {}
        """Paths that are out and carry all the same, and why."""
        listed = {(entry.netdev, entry.remote) for entry in wanted.paths}
        for transport, paths in (("", engine.paths), (RDMA, engine.rdma.paths)):
            for path in paths:
                for address in (path.spec.address, *path.spec.others):
                    key = path.netdev, address, transport
                    self.reasons[key] = path.health.reason
                    self.peers[address] = path.spec.peer
                    out = not transport and share(path.health.state) < 1.0 and not path.gone
                    if out and (path.netdev, address) not in listed:
                        self.kept[key] = _why_kept(engine, path.netdev, path.spec.peer)
                        self.states[key] = path.health.state
        for link in engine.rdma.links:
            self.reasons[link.netdev, "", RDMA] = link.health.reason

    def _add_states(self, netdev: str, remote: str, entry: RailEntry | PathEntry) -> None:
        self.states[netdev, remote, ""] = entry.state
        if entry.rdma is not None:
            self.states[netdev, remote, RDMA] = entry.rdma.state

    def event(self, kind: EventKind, key: Key, before: int, after: int) -> Event:
        netdev, remote, transport = key
        data: dict[str, Any] = {"weight": after, "before": before}
        kept = self.kept.get(key, "")
        if transport:
            data["transport"] = transport
        if remote:
            data["remote"] = remote
        return event(
            kind,
            link=netdev,
            rail=self.rails.get(netdev),
            peer=self.peers.get(remote, ""),
            to_state=self.states.get(key, LinkState.UP),
            reason=kept if kept and after > before else self.reasons.get(key, ""),
            data=data,
        )


def _why_kept(engine: Engine, netdev: str, peer: str) -> str:
    if (netdev, peer) in engine.exceptions.refused:
        return f"kept in spite of probes: [steer] max_probe_share = {engine.max_probe_share:g}"
    return f"kept: no other link would reach {peer}"


def _weights(entries: Iterable[Entry | RailEntry | PathEntry]) -> Weights:
    """What a page says; RDMA only where its weight is another one than that of IP."""
    out: Weights = {}
    for entry in entries:
        remote = "" if isinstance(entry, RailEntry) else entry.remote
        out[entry.netdev, remote, ""] = entry.weight
        if entry.rdma is not None and entry.rdma.weight != entry.weight:
            out[entry.netdev, remote, RDMA] = entry.rdma.weight
    return out


def _weight(weights: Weights, key: Key) -> int:
    """What an entry weighs; one that is missing: RDMA as IP, and IP in full."""
    netdev, remote, _ = key
    return weights.get(key, weights.get((netdev, remote, ""), FULL))


def _rails(weights: Weights, transport: str) -> dict[str, int]:
    return {
        netdev: weight
        for (netdev, remote, over), weight in weights.items()
        if not remote and over == transport
    }
