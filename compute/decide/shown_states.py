"""The state of each job that people were told last, also of jobs that are no more. Pure."""

from __future__ import annotations

from collections.abc import KeysView
from typing import Any

from compute.decide.effects import Effect, JobState, Record
from compute.decide.job_state import is_urgent
from compute.decide.known_job import KnownJob
from telemetry.messages.documents import ComputeJob

STATE_S = 1.0
"""What is only observed of a job, e.g. one vote, is told when it has changed for so long."""
SHOWN_S = 600.0
"""The last state of a job whose hosts have all left is shown for so long."""


class ShownStates:
    """By job."""

    def __init__(self) -> None:
        self._states: dict[str, ComputeJob] = {}
        self._gone: dict[str, float] = {}
        """Job without agents → until when its last state is shown."""
        self._ends: dict[str, str] = {}
        """Of those: how they ended."""

    @property
    def gone(self) -> KeysView[str]:
        """Jobs that are no more, and are still shown."""
        return self._gone.keys()

    def begin(self, name: str) -> tuple[str, bool]:
        """A job is there. Returns how it ended before ("": not), and whether that is new to us."""
        return self._ends.pop(name, ""), self._gone.pop(name, None) is None

    def update(self, name: str, job: KnownJob, state: ComputeJob, now: float) -> list[Effect]:
        """Tell the present state, unless it is the one before, or one that may soon change."""
        before = self._states.get(name)
        if before == state:
            job.stale_since = None
            return []
        if not is_urgent(before, state):
            # Storing it now would delay the order that may follow in a moment.
            job.stale_since = now if job.stale_since is None else job.stale_since
            if now < job.stale_since + STATE_S:
                job.due = min(job.due, job.stale_since + STATE_S)
                return []
        self._states[name], job.stale_since = state, None
        effects: list[Effect] = [JobState(name, state)]
        if before is None or _phase(before) != _phase(state):
            effects.append(Record("phase", {"job": name, **_phase(state)}))
        return effects

    def hold(self, name: str, reason: str) -> list[Effect]:
        """Tell that nothing is decided of a job at present."""
        before = self._states.get(name) or ComputeJob(job=name, phase="held")
        state = before.model_copy(update={"phase": "held", "reason": reason})
        if state == self._states.get(name):
            return []
        self._states[name] = state
        return [JobState(name, state), Record("phase", {"job": name, **_phase(state)})]

    def end(self, name: str, how: str, now: float) -> list[Effect]:
        """A job has no agent any more."""
        self._ends[name], self._gone[name] = how, now + SHOWN_S
        known = self._states.pop(name, None) is not None  # else nobody was told of it
        return [Record("job_gone", {"job": name})] if known else []

    def expire(self, now: float) -> list[Effect]:
        """Take away what was shown for long enough."""
        over = [name for name, until in self._gone.items() if now >= until]
        for name in over:
            del self._gone[name]
            self._ends.pop(name, None)
        return [JobState(name, None) for name in over]

    def wake_at(self) -> float | None:
        """When `expire` is due; None: never."""
        return min(self._gone.values(), default=None)


def _phase(state: ComputeJob) -> dict[str, Any]:
    return {"phase": state.phase, "reason": state.reason, "generation": state.generation}
