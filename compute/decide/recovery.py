"""The takeovers of one job: their times, and how many there were without a step forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compute.decide.ranks import HOST_LOST
from fabric_train.messages.documents import JobGeneration, ProcessState


@dataclass(frozen=True)
class JobRecord:
    """Something that happened to a job, for ledger and metrics. Times: seconds of the caller."""

    kind: str
    fields: dict[str, Any]


@dataclass
class _Recovery:
    """Times in seconds of the caller; None: not reached."""

    ranks: set[int]
    reason: str
    step: int
    lost_at: float
    fenced_at: float | None = None
    proposed_at: float | None = None
    running_at: float | None = None
    recovered_at: float | None = None
    resumed_step: int = 0
    planned: bool = False
    host_lost: bool = False
    origins: dict[int, str] = field(default_factory=dict)
    """Rank → the host that it was lost on, first."""

    @property
    def kind(self) -> str:
        """The class of the failure, as the ledger names it."""
        if self.planned:
            return "planned"
        return "host" if self.host_lost else "rank" if self.ranks else "connections"


class RecoveryLog:
    """Follows one takeover at a time, from the first evidence to a commit on all ranks."""

    def __init__(self) -> None:
        self._now: _Recovery | None = None
        self._at_step = -1
        self.attempts = 0
        """Generations proposed since the last step forward."""

    def lost(
        self,
        generation: JobGeneration,
        dead: Mapping[int, str],
        fence: Mapping[str, str],
        step: int,
        now: float,
        *,
        planned: bool = False,
    ) -> None:
        """Ranks of ``dead`` have no process, and hosts of ``fence`` are to be fenced.

        ``planned``: an operator wants the ranks of ``dead`` elsewhere.
        """
        ranks = {*dead, *(rank for rank, host in enumerate(generation.hosts) if host in fence)}
        reason = "; ".join([*dead.values(), *(f"{host}: {why}" for host, why in fence.items())])
        if self._now is None:
            self._now = _Recovery(ranks, reason or "connections failed", step, now)
        self._now.planned = planned
        self._now.origins = {rank: generation.hosts[rank] for rank in ranks} | self._now.origins
        self._now.host_lost |= bool(fence) or any(why.endswith(HOST_LOST) for why in dead.values())
        self._now.ranks |= ranks
        if self._now.proposed_at is None and reason:
            self._now.reason = reason

    @property
    def active(self) -> bool:
        """A takeover is under way."""
        return self._now is not None

    def fenced(self, now: float) -> None:
        """No fence is waited for."""
        if self._now is not None and self._now.fenced_at is None:
            self._now.fenced_at = now

    def proposed(self, step: int, now: float) -> None:
        """A generation was proposed at ``step``."""
        if step > self._at_step:
            self._at_step, self.attempts = step, 0
        self.attempts += 1
        if self._now is not None:
            self._now.proposed_at = now
            self._now.running_at = self._now.recovered_at = None

    def chosen(self, now: float) -> None:
        """The newest generation may run."""
        if self._now is not None and self._now.proposed_at is not None:
            self._now.running_at = self._now.running_at or now

    def ended(
        self, generation: JobGeneration, states: Sequence[ProcessState], now: float
    ) -> JobRecord | None:
        """The record of a takeover, once every rank has committed a step in ``generation``.

        ``states``: processes with a rank that have not ended.
        """
        one = self._now
        if one is None or one.running_at is None or len(states) < len(generation.slots):
            return None
        if any(state.recovered < generation.number for state in states):
            return None
        if one.recovered_at is None:
            one.recovered_at, one.resumed_step = now, min(state.step for state in states)
        if any(state.committed < generation.number and state.finished is None for state in states):
            return None
        self._now = None
        ranks = sorted(one.ranks)
        return JobRecord(
            "recovery",
            {
                "generation": generation.number,
                "class": one.kind,
                "ranks": ranks,
                "from": [one.origins[rank] for rank in ranks],
                "to": [generation.hosts[rank] for rank in ranks],
                "reason": one.reason,
                "step": one.resumed_step,
                "steps_lost": max(0, one.step - one.resumed_step),
                "fenced_ms": _since(one.lost_at, one.fenced_at),
                "proposed_ms": _since(one.lost_at, one.proposed_at),
                "running_ms": _since(one.lost_at, one.running_at),
                "recovered_ms": _since(one.lost_at, one.recovered_at),
                "committed_ms": _since(one.lost_at, now),
            },
        )


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else round((end - start) * 1000, 1)
