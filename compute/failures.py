"""What a record says of a failure: class, outcome, protected or not, pause, steps lost. Pure.

The core's records of takeovers (``recovery``) and of jobs that ended by a failure (``job_failed``)
are completed before they are stored, by what was known *before* the failure: whether the job was
protected then, and how many ranks it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLASSES = ("host", "rank", "connections", "planned", "job")
OUTCOMES = ("recovered", "failed")
_OUTCOME_OF = {"recovery": "recovered", "job_failed": "failed"}


@dataclass(frozen=True)
class Failure:
    """One failure of a job. ``pause_s``: from the first evidence to a commit of all ranks."""

    job: str
    failure_class: str
    outcome: str
    protected: bool
    pause_s: float | None
    steps_lost: int
    gpu_seconds: float

    @property
    def kept_progress(self) -> bool:
        """The job went on, and no step was lost."""
        return self.outcome == "recovered" and self.steps_lost == 0


def complete(
    kind: str, fields: Mapping[str, Any], *, protected: bool, ranks: int
) -> dict[str, Any]:
    """The fields of a record of a failure, completed; those of another record as they are.

    ``protected``: whether the job was, while it last ran with all of its ranks. ``ranks``: its
    world size. What the core says itself is kept.
    """
    outcome = _OUTCOME_OF.get(kind)
    if outcome is None:
        return dict(fields)
    pause_ms = fields.get("committed_ms")
    pause = pause_ms / 1000 if isinstance(pause_ms, int | float) else None
    added = {
        "class": _class_of(kind, fields),
        "outcome": outcome,
        "protected": protected,
        "gpu_seconds": round((pause or 0.0) * ranks, 3),
    }
    return {**added, **fields}


def _class_of(kind: str, fields: Mapping[str, Any]) -> str:
    if kind == "job_failed":
        return "job"
    if not fields.get("ranks"):
        return "connections"
    return "rank"


def failure_of(kind: str, fields: Mapping[str, Any]) -> Failure | None:
    """The failure that a completed record describes; None: it describes none, or not fully."""
    outcome, job = _OUTCOME_OF.get(kind), fields.get("job")
    if outcome is None or not isinstance(job, str):
        return None
    failure_class, protected = fields.get("class"), fields.get("protected")
    lost, spent = fields.get("steps_lost"), fields.get("gpu_seconds")
    if (
        failure_class not in CLASSES
        or type(protected) is not bool
        or type(lost) is not int
        or not isinstance(spent, int | float)
    ):
        return None
    pause_ms = fields.get("committed_ms")
    pause = pause_ms / 1000 if isinstance(pause_ms, int | float) else None
    return Failure(job, str(failure_class), outcome, protected, pause, lost, float(spent))
