"""Health of one link or path: the state machine driven by facts, timers and damping. Pure.

`Health.update` is given what is known now and does the transitions that follow; `due_at` says when
it wants to be called again though nothing happened.

What evidence does on the way back, in HOLD:

* Bad evidence (a carrier loss, a verdict from probes) starts the hold-down again and publishes
  nothing: the link is out of use already. A carrier loss is penalised; a verdict is no down, since
  probes lag behind a carrier that has just returned. What stays for `HoldRules.verdict_ns` without
  a break means DOWN.
* Evidence that is neither bad nor good (misses without a verdict, no prober) moves nothing: the
  hold-down goes on, and ends with the first good evidence after it. So a hold lasts for the
  hold-down (or the damping) after the last *bad* evidence, however noisy the rest is.

A transition is *published* when it changes what traffic may use: all of the link, half (DEGRADED)
or nothing (DOWN, HOLD, ADMIN). DOWN → HOLD and PROBATION → UP change nothing that a job could see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fabricd.links.damping import Damping, DampingRules
from fabricd.links.machine import CARRYING, LinkEvent, allows, step
from telemetry.events import LinkState

E = LinkEvent


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a link or path at one moment."""

    admin_up: bool = True
    carrier: bool | None = True
    """None: not known. A path's is always True."""
    downs: int = 0
    """Carrier losses since the last update."""
    fault: str = ""
    """A verdict from probes; empty: none."""
    suspect: str = ""
    """Soft evidence; empty: none."""
    clean: bool = True
    """Nothing speaks against bringing it back."""
    worse: str = ""
    """Too much loss; empty: none."""
    planned: bool = False
    """In a maintenance window: downs are no reason for a penalty."""
    drained: str = ""
    """Why an operator took it out (then ``admin_up`` is False); empty: not drained."""
    seen: str = "carrier"
    """What shows that it is there at all, for the row that says so."""
    expected: bool = False
    """Never seen up, and peers say that it should be: then a verdict counts in UNKNOWN too."""
    hard_fault: str = ""
    """A fault that needs no probes: a counter of which any increase is a fault, for its rule's
    window, or a verbs port that is not active. Empty: none. Carrier is not in it."""


@dataclass(frozen=True, slots=True)
class HoldRules:
    """Times of the way back, in nanoseconds."""

    hold_down_ns: int = 2 * 10**9
    probation_ns: int = 10 * 10**9
    verdict_ns: int = 10 * 10**9
    """A verdict from probes, or no carrier, for so long in HOLD means DOWN."""
    suspect_after_ns: int = 200 * 10**6
    """Doubts that stay for so long mean SUSPECT. A verdict takes less to come."""
    suspect_for_ns: int = 2 * 10**9
    """No doubt for so long ends it."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state."""

    event: LinkEvent
    from_state: LinkState
    to_state: LinkState
    reason: str

    @property
    def published(self) -> bool:
        """Whether it changes what traffic may use."""
        return share(self.from_state) != share(self.to_state)


def share(state: LinkState) -> float:
    """How much of a link in that state traffic may use."""
    if state is LinkState.DEGRADED:
        return 0.5
    return 1.0 if state in CARRYING else 0.0


class Health:
    """State, penalty and timers of one link or path."""

    def __init__(self, damping: DampingRules, hold: HoldRules) -> None:
        self.state = LinkState.UNKNOWN
        self.since_ns = 0
        self.reason = ""
        self.fault_was_hard = False
        """A carrier loss or a hard fault is part of the last fault; else probes alone made it."""
        self.hold = hold
        self.damping = Damping(damping)
        self._held_from: int | None = None
        """The hold-down counts from here; None: there is bad evidence now."""
        self._well = False
        """At the last update there was good evidence."""
        self._blamed_from: int | None = None
        """In HOLD: since when there is a verdict, or no carrier, without a break."""
        self._doubted_from: int | None = None
        self._calm_from: int | None = None
        self._readmitted_ns: int | None = None
        """In UNKNOWN: since when the device is up again; None: it was not taken down."""
        self._was_down = False
        """In ADMIN: the device itself was down, not only its traffic drained."""
        self._planned = False
        """In a maintenance window: what is published now is no reason to hold the link later."""

    @property
    def out_by_probes(self) -> bool:
        """Steered away on probe evidence alone."""
        return not self.fault_was_hard and self.state in (LinkState.DOWN, LinkState.HOLD)

    def update(self, facts: Facts, now: int) -> list[Transition]:
        """Apply the facts; returns the transitions, oldest first."""
        done: list[Transition] = []
        self._planned = facts.planned
        counts = facts.admin_up and not facts.planned and self.state is not LinkState.ADMIN
        if facts.downs and counts:
            self.damping.down(now, facts.downs)
        if self._administered(facts, now, done):
            return done
        if self.state is LinkState.UNKNOWN:
            self._seen(facts, now, done)
            return done
        self._fault(facts, now, done)
        self._recover(facts, now, done)
        if self.state in (LinkState.UP, LinkState.SUSPECT, LinkState.DEGRADED, LinkState.PROBATION):
            self._soft(facts, now, done)
        return done

    def due_at(self) -> int | None:
        """When (ns) an update is due though no fact changes; None: never."""
        if self.state is LinkState.UNKNOWN and self._readmitted_ns is not None:
            held = self._readmitted_ns + self.hold.hold_down_ns
            calm = self._calm_from
            return held if calm is None else min(held, calm + self.hold.suspect_after_ns)
        if self.state is LinkState.HOLD:
            if self._blamed_from is not None:
                return self._blamed_from + self.hold.verdict_ns
            if self._held_from is not None and self._well:
                return self._release_at(self._held_from)
        elif self.state is LinkState.PROBATION:
            return self.since_ns + self.hold.probation_ns
        elif self.state is LinkState.UP and self._doubted_from is not None:
            return self._doubted_from + self.hold.suspect_after_ns
        elif self.state is LinkState.SUSPECT and self._calm_from is not None:
            return self._calm_from + self.hold.suspect_for_ns
        return None

    def save(self, now: int) -> dict[str, Any]:
        """A JSON document for `restore`."""
        return {
            "state": self.state.name,
            "age_ns": now - self.since_ns,
            "reason": self.reason,
            "hard": self.fault_was_hard,
            "damping": self.damping.save(now),
        }

    def restore(self, document: dict[str, Any], now: int, elapsed_ns: int) -> None:
        """Take over what `save` gave ``elapsed_ns`` ago; a hold begins anew.

        Raises:
            KeyError, TypeError, ValueError: not such a document; nothing was taken over.
        """
        state = LinkState[document["state"]]
        age = int(document["age_ns"]) + elapsed_ns
        reason, hard = str(document["reason"]), bool(document["hard"])
        self.damping.restore(document["damping"], now, elapsed_ns)
        self.state, self.since_ns, self.reason, self.fault_was_hard = state, now - age, reason, hard

    def restore_history(self, document: dict[str, Any], now: int, elapsed_ns: int) -> None:
        """Take over what `save` gave before a reboot ``elapsed_ns`` ago: damping, and being out.

        Any other state begins at UNKNOWN: what was up has yet to be seen up in this boot.

        Raises:
            KeyError, TypeError, ValueError: not such a document; nothing was taken over.
        """
        state, hard = LinkState[document["state"]], bool(document["hard"])
        self.damping.restore(document["damping"], now, elapsed_ns)
        if share(state) == 0.0 and state is not LinkState.ADMIN:
            self.state, self.since_ns, self.fault_was_hard = LinkState.HOLD, now, hard
            self.reason = "out before the reboot"

    def adopt(self, state: LinkState, now: int) -> None:
        """Take over DOWN or HOLD from elsewhere, unless it is known already."""
        if self.state not in (LinkState.DOWN, LinkState.HOLD):
            self.state, self.since_ns, self.reason = state, now, "out before the restart"
            self.fault_was_hard = False

    def _seen(self, facts: Facts, now: int, done: list[Transition]) -> None:
        if not facts.carrier:
            self._calm_from = None
            if facts.expected and facts.fault:
                self._fault(facts, now, done)
            elif self._readmitted_ns is not None:
                self._readmitted_ns = now
            return
        if self._readmitted_ns is not None and now < self._readmitted_ns + self.hold.hold_down_ns:
            # Taken up again a moment ago: the silence of before is still told, and addresses,
            # routes and neighbours have to be there again.
            if facts.fault or not facts.clean:
                self._calm_from = None
                return
            if self._calm_from is None:
                self._calm_from = now
            if not _passed(self._calm_from, self.hold.suspect_after_ns, now):
                return
        self._readmitted_ns = None
        self._go(E.SEEN_UP, facts.seen, now, done)

    def _administered(self, facts: Facts, now: int, done: list[Transition]) -> bool:
        if not facts.admin_up:
            self._was_down = self._was_down or not facts.drained
            if self.state is not LinkState.ADMIN:
                self._go(E.ADMIN_DOWN, facts.drained or "administratively down", now, done)
            return True
        if self.state is LinkState.ADMIN:
            self._go(E.ADMIN_UP, "administratively up", now, done)
            self._readmitted_ns, self._calm_from = now if self._was_down else None, None
            self._was_down = False
        return False

    def _fault(self, facts: Facts, now: int, done: list[Transition]) -> None:
        is_hard = facts.carrier is False or facts.downs > 0 or bool(facts.hard_fault)
        if not facts.fault and not facts.hard_fault and facts.carrier is not False:
            self._blamed_from = None
        if not is_hard and not facts.fault:
            return
        self._held_from = None
        if self.state is LinkState.DOWN:
            self.fault_was_hard = self.fault_was_hard or is_hard
            return
        if self.state is LinkState.HOLD:
            # Out of use already: the hold starts again, and only what stays is news.
            self.fault_was_hard = self.fault_was_hard or is_hard
            if not self._stays(facts, now):
                return
        if facts.carrier is False or facts.downs:
            reason = "carrier lost" if facts.carrier is False else f"carrier lost {facts.downs} x"
        else:
            reason = facts.hard_fault or facts.fault
            if not facts.planned:
                self.damping.down(now)
        self.fault_was_hard = is_hard
        self._go(E.FAULT, reason, now, done)

    def _stays(self, facts: Facts, now: int) -> bool:
        """In HOLD: whether a fault has been there for too long to be a flap or a lag."""
        if not facts.fault and not facts.hard_fault and facts.carrier is not False:
            return False
        if self._blamed_from is None:
            self._blamed_from = now
        why = "carrier lost" if facts.carrier is False else facts.hard_fault or facts.fault
        self.reason = f"hold goes on: {why}"
        return _passed(self._blamed_from, self.hold.verdict_ns, now)

    def _recover(self, facts: Facts, now: int, done: list[Transition]) -> None:
        if self.state not in (LinkState.DOWN, LinkState.HOLD):
            if self.state is LinkState.PROBATION and now >= self.since_ns + self.hold.probation_ns:
                self._go(E.SETTLED, "probation passed", now, done)
            return
        self._well = (
            bool(facts.carrier) and facts.clean and not facts.fault and not facts.hard_fault
        )
        if self.state is LinkState.DOWN:
            if not self._well:
                return
            self._go(E.HEALED, "healthy again", now, done)
        if facts.carrier is False or facts.fault or facts.hard_fault:
            return
        if self._held_from is None:
            self._held_from = now
        if self._well and now >= self._release_at(self._held_from):
            self._go(E.HELD, "held long enough", now, done)

    def _release_at(self, held_from: int) -> int:
        return max(held_from + self.hold.hold_down_ns, self.damping.return_at(held_from))

    def _soft(self, facts: Facts, now: int, done: list[Transition]) -> None:
        if facts.suspect:
            self._calm_from = None
            if self._doubted_from is None:
                self._doubted_from = now
        else:
            self._doubted_from = None
            if self._calm_from is None:
                self._calm_from = now
        if facts.worse and allows(self.state, E.WORSE):
            self._go(E.WORSE, facts.worse, now, done)
        elif (
            self.state is LinkState.DEGRADED
            and not facts.worse
            and now >= self.damping.return_at(now)
        ):
            self._go(E.BETTER, "loss and errors are gone", now, done)
        elif self.state is LinkState.UP and _passed(
            self._doubted_from, self.hold.suspect_after_ns, now
        ):
            self._go(E.SUSPECTED, facts.suspect, now, done)
        elif self.state is LinkState.SUSPECT and _passed(
            self._calm_from, self.hold.suspect_for_ns, now
        ):
            self._go(E.CLEARED, "misses ended", now, done)

    def _go(self, event: LinkEvent, reason: str, now: int, done: list[Transition]) -> None:
        old = self.state
        self.state = step(old, event)
        self.since_ns, self.reason = now, reason
        self._blamed_from = self._doubted_from = self._calm_from = None
        done.append(Transition(event, old, self.state, reason))
        operator = self._planned or LinkState.ADMIN in (old, self.state)
        if done[-1].published and not operator:
            self.damping.published(now)


def _passed(since: int | None, wait_ns: int, now: int) -> bool:
    """Whether ``wait_ns`` have passed since ``since``; None has not begun."""
    return since is not None and now >= since + wait_ns
