"""What follows from a decision, for the service to store, publish and record. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compute.decide.evidence import Votes
from telemetry.messages.documents import ComputeJob, ComputeOrder, Fence


@dataclass(frozen=True)
class Order:
    """Publish this as the present order to ``host``."""

    host: str
    order: ComputeOrder


@dataclass(frozen=True)
class JobState:
    """Publish this as the present state of a job; ``None``: the job is no more."""

    job: str
    state: ComputeJob | None


@dataclass(frozen=True)
class FenceIssued:
    """Store this before any order that contains it leaves."""

    fence: Fence


@dataclass(frozen=True)
class Record:
    """For ledger, log and metrics."""

    kind: str
    fields: dict[str, Any]


def fence_record(job: str, fence: Fence, votes: Votes) -> Record:
    """That ``fence`` was issued in ``job``, and what was said for and against it."""
    return Record(
        "fence",
        {
            "job": job, "host": fence.host, "id": fence.id, "reason": fence.reason,
            "silent": list(votes.silent), "heard": list(votes.heard),
            "abstained": list(votes.abstained), "last_will": votes.last_will,
            "missed_by": list(votes.missed_by),
        },
    )  # fmt: skip


Effect = Order | JobState | FenceIssued | Record
