"""Publishes the engine's plan on the steer page and says what became different."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import structlog

from fabricd.detect.locate import Blame, Kind
from fabricd.engine import Change, Engine, Outcome
from fabricd.steer.modes import Mode
from fabricd.steer.page import PageError, SteerPage
from fabricd.steer.policy import FULL, Plan, observed, weight_of
from telemetry.events import Event, EventKind, LinkState

Weights = dict[tuple[str, str], int]


def event(kind: EventKind, **fields: Any) -> Event:  # noqa: ANN401
    """An event of now."""
    return Event(kind, time.time_ns(), time.monotonic_ns(), **fields)


def located(blame: Blame, host: str, engine: Engine) -> Event:
    """Where a fault is; if it is a link of this host (or may be), the row is one of that link."""
    own = {f"{host}/{link.rail}": link for link in engine.links}
    named = [(blame.kind, blame.element), *((kind, name) for kind, name, _ in blame.candidates)]
    certain = named[: None if blame.kind is Kind.UNKNOWN else 1]
    link = next((own[name] for kind, name in certain if kind is Kind.LINK and name in own), None)
    return event(
        EventKind.LOCATED,
        link=link.netdev if link else "",
        rail=link.rail if link else None,
        reason=str(blame),
        data={
            "part": blame.kind.value,
            "element": blame.element,
            "direction": blame.way.value,
            "confidence": round(blame.confidence, 3),
            "flows": blame.flows,
        },
    )


def change_event(change: Change) -> Event:
    """A transition of a link or path."""
    step = change.transition
    return event(
        EventKind.PATH_STATE if change.peer else EventKind.LINK_STATE,
        link=change.netdev,
        rail=change.rail,
        peer=change.peer,
        from_state=step.from_state,
        to_state=step.to_state,
        reason=step.reason,
        data={"address": change.address} if change.address else {},
    )


def outcome_events(
    outcome: Outcome, *, flaps_per_hour: int, known: Mapping[str, str]
) -> list[Event]:
    """What an evaluation found.

    Args:
        outcome: of the engine.
        flaps_per_hour: above which a link is the operator's.
        known: links that were told to be kept in spite of probes.
    """
    events = [change_event(change) for change in outcome.changes]
    events += [
        event(
            EventKind.DAEMON,
            link=netdev,
            reason="flaps again and again: replace cable, optics or NIC",
            data={"flaps_per_hour_over": flaps_per_hour},
        )
        for netdev in outcome.operator
    ]
    for netdev, why in outcome.refused.items():
        if netdev not in known:
            reason = f"kept in spite of probes ({why}): max_probe_share or last rail"
            events.append(event(EventKind.DAEMON, link=netdev, reason=reason))
    return events


class Publisher:
    """Remembers what the page says and what it would say."""

    def __init__(self, page: SteerPage) -> None:
        self.page = page
        self._said: Weights = {(e.netdev, e.remote): e.weight for e in page.taken_over}
        self._wanted: Weights = {}
        self._last_error = ""
        self._given_back = False
        self._log = structlog.get_logger()

    def rail_weights(self) -> dict[str, int]:
        """What the page says, by netdev."""
        return {netdev: weight for (netdev, remote), weight in self._said.items() if not remote}

    def wanted_weights(self) -> dict[str, int]:
        """What the engine wants on the page, also where the mode is observe; by netdev."""
        return {netdev: weight for (netdev, remote), weight in self._wanted.items() if not remote}

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
        plan = observed(wanted, None if give_back else observing)
        mode = max(modes.values(), default=Mode.OBSERVE)
        try:
            self.page.publish(plan, int(mode), now)
            self._last_error = ""
        except PageError as error:
            if str(error) != self._last_error:
                self._last_error = str(error)
                self._log.error("steer page not written", error=str(error))
        events = self._differences(EventKind.STEER, engine, self._said, plan)
        would = self._differences(EventKind.WOULD_STEER, engine, self._wanted, wanted)
        # Where it is steered the STEER rows have said it.
        return events if give_back else events + [e for e in would if e.link in observing]

    @staticmethod
    def _differences(kind: EventKind, engine: Engine, old: Weights, plan: Plan) -> list[Event]:
        """Events for changed weights; ``old`` becomes the new."""
        new = _weights(plan)
        changed = [k for k in sorted({*old, *new}) if old.get(k, FULL) != new.get(k, FULL)]
        events = []
        if changed:
            about = _About(engine, plan)
            events = [about.event(kind, k, old.get(k, FULL), new.get(k, FULL)) for k in changed]
        old.clear()
        old.update(new)
        return events


class _About:
    """Names, states and reasons of the page's entries."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self.states = {(r.netdev, ""): r.state for r in plan.rails}
        self.states |= {(p.netdev, p.remote): p.state for p in plan.paths}
        self.reasons = {
            (x.netdev, ""): str(x.forecast)
            if engine.share(x) < 1 and weight_of(x.health.state, x.carrier) == FULL
            else x.health.reason
            for x in engine.links
        }
        self.rails = {x.netdev: x.rail for x in engine.links}
        self.peers: dict[str, str] = {}
        for path in engine.paths:
            for address in (path.spec.address, *path.spec.others):
                self.reasons[path.netdev, address] = path.health.reason
                self.peers[address] = path.spec.peer

    def event(self, kind: EventKind, key: tuple[str, str], before: int, after: int) -> Event:
        netdev, remote = key
        data: dict[str, Any] = {"weight": after, "before": before}
        if remote:
            data["remote"] = remote
        return event(
            kind,
            link=netdev,
            rail=self.rails.get(netdev),
            peer=self.peers.get(remote, ""),
            to_state=self.states.get(key, LinkState.UP),
            reason=self.reasons.get(key, ""),
            data=data,
        )


def _weights(plan: Plan) -> Weights:
    out: Weights = {(r.netdev, ""): r.weight for r in plan.rails}
    out |= {(p.netdev, p.remote): p.weight for p in plan.paths}
    return out
