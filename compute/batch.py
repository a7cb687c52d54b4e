"""What the effects of a decision leave to be stored and done, sorted. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from compute.board import JobBoard
from compute.decide.effects import Effect, FenceIssued, JobState, Order, Record
from compute.engines.base import Action
from compute.failures import complete
from compute.store import NewRecord
from telemetry.messages.documents import ComputeJob, Fence


@dataclass
class Batch:
    """One transaction of the store, and the actions of the engines that follow it.

    ``gone``: names of jobs that are no more.
    """

    fences: list[Fence] = field(default_factory=list)
    records: list[NewRecord] = field(default_factory=list)
    states: list[ComputeJob] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)


def batch_of(effects: Sequence[Effect], board: JobBoard) -> Batch:
    """Sort ``effects``. ``board`` says of each job whether it was protected, and its ranks."""
    batch = Batch()
    states: dict[str, ComputeJob | None] = {}
    for one in effects:
        match one:
            case FenceIssued(fence):
                batch.fences.append(fence)
                batch.actions.append(Action(fence.id, "fence", fence.model_dump()))
            case Record(kind, fields):
                job = str(fields.get("job", ""))
                whole = complete(
                    kind, fields, protected=board.is_protected(job), ranks=board.world_of(job)
                )
                batch.records.append(NewRecord(kind, whole))
                if kind != "fence":  # That one follows from `FenceIssued`.
                    batch.actions.append(Action(_action_id(kind, job, fields), kind, whole))
            case JobState(job, state):
                states[job] = state
            case Order():
                continue
    batch.states = [one for one in states.values() if one]
    batch.gone = [job for job, state in states.items() if state is None]
    return batch


def _action_id(kind: str, job: str, fields: dict[str, Any]) -> str:
    """The same in two fabric-computes where the record is of one event that both see."""
    number = fields.get("generation") if kind == "recovery" else time.time_ns()
    return f"{kind}/{job}/{number}"
