"""A training that is not taken over, because it could not be exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fabric_train.rank.framework_job import FrameworkJob

from fabric_train.rules.loop import RuleError


class RefusedTrainingError(RuleError):
    """This training cannot be taken over. The text says why."""


def refuse_second_loop(job: FrameworkJob) -> None:
    """Raises ``RefusedTrainingError`` where the training loop of ``job`` has begun."""
    if job.has_loop:
        raise RefusedTrainingError("a job has one training loop, and this is the second one")
