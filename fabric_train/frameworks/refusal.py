"""A training that is not taken over, because it could not be exact."""

from __future__ import annotations

from fabric_train.rules.loop import RuleError


class RefusedTrainingError(RuleError):
    """This training cannot be taken over. The text says why."""
