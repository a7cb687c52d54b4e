"""How loud an event is in the log: ``journalctl -p warning`` shows every outage. Pure.

warning: something got worse, or is not as it should be; error: it failed and needs somebody; info:
it got better, or was asked for. Every kind of event has a row here, and so has every reason of the
kinds that say many things; what no row knows is a warning, and a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from telemetry.events import Event, EventKind, LinkState

INFO, WARNING, ERROR = "info", "warning", "error"
UNWATCHED = frozenset({"never_heard", "unbound", "off"})
"""States of a link's probing in which a black hole on it would not be seen."""

STATES: Mapping[LinkState | None, str] = {
    None: WARNING,
    LinkState.UNKNOWN: WARNING,
    LinkState.UP: INFO,
    LinkState.SUSPECT: INFO,
    LinkState.DOWN: WARNING,
    LinkState.HOLD: WARNING,
    LinkState.PROBATION: INFO,
    LinkState.DEGRADED: WARNING,
    LinkState.ADMIN: INFO,
}
"""By the state that a link or path is in now; on the way back from DOWN, HOLD is no news."""

REASONS: Mapping[EventKind, tuple[tuple[str, str], ...]] = {
    EventKind.DAEMON: (
        ("started", INFO),
        ("stopped", INFO),
        ("reloaded", INFO),
        ("reload refused", ERROR),
        ("metrics endpoint is bound", INFO),
        ("metrics endpoint is not bound", WARNING),
        ("verbs ports answer again", INFO),
        ("verbs ports do not answer", WARNING),
        ("no interface of that name", WARNING),
        ("the interface is there", INFO),
        ("NIC counters are read again", INFO),
        ("NIC counters not read", WARNING),
        ("flaps again and again", ERROR),
        ("kept in spite of probes", WARNING),
        ("timeline was unusable", ERROR),
    ),
    EventKind.PROBER: (
        ("prober appeared", INFO),
        ("prober restarted", WARNING),
        ("prober vanished", WARNING),
        ("prober beats", INFO),
        ("prober silent", WARNING),
        ("prober was not scheduled", WARNING),
    ),
    EventKind.MODE: (
        ("stop file present", WARNING),
        ("stop file removed", INFO),
        ("promoted to", INFO),
        ("group ", INFO),
    ),
    EventKind.FENCE: (
        ("applied", INFO),
        ("not applied", ERROR),
        ("this host is fenced", ERROR),
    ),
    EventKind.JOB: (
        ("registered", INFO),
        ("left", INFO),
        ("ended", WARNING),
    ),
    EventKind.PLUGIN: (
        ("path_down", WARNING),
        ("first_byte", INFO),
        ("fence_done", INFO),
        ("path_up", INFO),
        ("rail_told_down", WARNING),
        ("all_paths_down", ERROR),
        ("error", ERROR),
        ("path_weight", INFO),
        ("left out", WARNING),
    ),
}
"""Kind → (how the reason begins, level). A peer's bye begins with its name: see `_prober`."""


def _state(event: Event) -> str:
    if event.to_state is LinkState.HOLD and event.from_state is LinkState.DOWN:
        return INFO
    return STATES[event.to_state]


def _weight(event: Event) -> str:
    """Taken from, or given back to; the rows of old pages have no weight before."""
    before, after = event.data.get("before"), event.data.get("weight")
    numbers = isinstance(before, int | float) and isinstance(after, int | float)
    return INFO if numbers and after >= before else WARNING  # type: ignore[operator]


def _reason(event: Event) -> str:
    rows = REASONS[event.kind]
    return next((level for begins, level in rows if event.reason.startswith(begins)), WARNING)


def _plugin(event: Event) -> str:
    """What a page claims is no error of this host unless root says it."""
    level = _reason(event)
    return WARNING if level == ERROR and event.data.get("uid", 0) != 0 else level


def _prober(event: Event) -> str:
    return INFO if event.peer else _reason(event)


def _condition(event: Event) -> str:
    return WARNING if event.data.get("condition") in ("congested", "slow", "broken") else INFO


def _broker(event: Event) -> str:
    if "not_sent" in event.data:
        return ERROR
    return INFO if event.data.get("connected") else WARNING


PHASES: Mapping[object, str] = {"running": INFO, "ended": INFO, "held": ERROR, "failed": ERROR}
"""Of a job, by ``data['phase']`` of `EventKind.GENERATION` rows."""

KINDS: Mapping[EventKind, Callable[[Event], str]] = {
    EventKind.FLAP: lambda _: WARNING,
    EventKind.CARRIER_UP: lambda _: INFO,
    EventKind.LINK_STATE: _state,
    EventKind.PATH_STATE: _state,
    EventKind.RDMA_STATE: _state,
    EventKind.LOCATED: lambda e: INFO if e.data.get("part") == "nothing" else WARNING,
    EventKind.CONDITION: _condition,
    EventKind.FINDING: lambda e: INFO if e.data.get("holds") is False else WARNING,
    EventKind.RISK: lambda e: WARNING if e.data.get("named") else INFO,
    EventKind.STEER: _weight,
    EventKind.WOULD_STEER: _weight,
    EventKind.MODE: _reason,
    EventKind.PROBER: _prober,
    EventKind.PROBING: lambda e: WARNING if e.data.get("state") in UNWATCHED else INFO,
    EventKind.PLUGIN: _plugin,
    EventKind.OPERATOR: lambda _: INFO,
    EventKind.PEER: lambda e: WARNING if e.data.get("silent") else INFO,
    EventKind.ADDRESS: lambda e: WARNING if e.data.get("conflict") else INFO,
    EventKind.BROKER: _broker,
    EventKind.FENCE: _reason,
    EventKind.JOB: _reason,
    EventKind.GENERATION: lambda e: PHASES.get(e.data.get("phase"), WARNING),
    EventKind.MIGRATION: lambda e: ERROR if e.data.get("outcome") == "failed" else WARNING,
    EventKind.SLOW_RANK: lambda e: WARNING if e.data.get("named") else INFO,
    EventKind.DAEMON: _reason,
}


def level(event: Event) -> str:
    """The level of an event in the log: info, warning or error."""
    of_kind = KINDS.get(event.kind)
    return WARNING if of_kind is None else of_kind(event)
