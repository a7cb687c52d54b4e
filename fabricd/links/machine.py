"""The state machine of one link, and of one path.

Rules:

* UNKNOWN has never been seen up. It is not a failure, unless peers say that they probe a path and
  hear others there: then that path is DOWN.
* Down fast: any state but DOWN and ADMIN goes DOWN on one FAULT. While a link is in HOLD,
  `links.health` reports one only after 10 s of bad evidence without a break.
* Up slow: DOWN goes to HOLD when the evidence is gone, HOLD to PROBATION when there was no bad
  evidence for the hold-down and damping lets it go, PROBATION to UP when nothing happened there.
* SUSPECT and DEGRADED carry traffic; only DOWN, HOLD and ADMIN do not.
* ADMIN is an operator's order. Coming back from it is not a recovery: it starts again at UNKNOWN.
* What is not in the table raises, and nothing has happened.
"""

from __future__ import annotations

from enum import Enum

from telemetry.events import LinkState


class LinkEvent(Enum):
    """What may happen to a link."""

    SEEN_UP = "seen up"
    """Carrier is present, for the first time."""
    SUSPECTED = "suspected"
    """Soft evidence, not enough for a verdict."""
    CLEARED = "cleared"
    """The soft evidence is gone."""
    FAULT = "fault"
    """Hard evidence, or a verdict from probes."""
    HEALED = "healed"
    """No evidence against the link any more."""
    HELD = "held"
    """Healthy for the hold-down, and not suppressed."""
    SETTLED = "settled"
    """The probation passed without a fault."""
    WORSE = "worse"
    """Works, with too much loss."""
    BETTER = "better"
    """Works as it should again."""
    ADMIN_DOWN = "admin down"
    ADMIN_UP = "admin up"


S, E = LinkState, LinkEvent

TRANSITIONS: dict[LinkState, dict[LinkEvent, LinkState]] = {
    S.UNKNOWN: {E.SEEN_UP: S.UP, E.FAULT: S.DOWN, E.ADMIN_DOWN: S.ADMIN},
    S.UP: {
        E.SUSPECTED: S.SUSPECT,
        E.FAULT: S.DOWN,
        E.WORSE: S.DEGRADED,
        E.ADMIN_DOWN: S.ADMIN,
    },
    S.SUSPECT: {
        E.CLEARED: S.UP,
        E.FAULT: S.DOWN,
        E.WORSE: S.DEGRADED,
        E.ADMIN_DOWN: S.ADMIN,
    },
    S.DOWN: {E.HEALED: S.HOLD, E.ADMIN_DOWN: S.ADMIN},
    S.HOLD: {E.FAULT: S.DOWN, E.HELD: S.PROBATION, E.ADMIN_DOWN: S.ADMIN},
    S.PROBATION: {
        E.FAULT: S.DOWN,
        E.SETTLED: S.UP,
        E.WORSE: S.DEGRADED,
        E.ADMIN_DOWN: S.ADMIN,
    },
    S.DEGRADED: {E.FAULT: S.DOWN, E.BETTER: S.UP, E.ADMIN_DOWN: S.ADMIN},
    S.ADMIN: {E.ADMIN_UP: S.UNKNOWN},
}

CARRYING = frozenset({S.UNKNOWN, S.UP, S.SUSPECT, S.PROBATION, S.DEGRADED})
"""States in which traffic uses the link."""


class IllegalTransition(Exception):  # noqa: N818 - a fact about the caller, not a condition
    """The event may not happen in this state; the state is unchanged."""

    def __init__(self, state: LinkState, event: LinkEvent) -> None:
        super().__init__(f"{event.value!r} may not happen in {state.name}")
        self.state = state
        self.event = event


def step(state: LinkState, event: LinkEvent) -> LinkState:
    """The state after an event.

    Raises:
        IllegalTransition: not in the table.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(state, event) from None


def allows(state: LinkState, event: LinkEvent) -> bool:
    """Whether the table has this transition."""
    return event in TRANSITIONS[state]
