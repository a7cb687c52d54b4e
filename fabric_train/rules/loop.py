"""What every process that runs the same script does wrong, and so ends its job."""

from __future__ import annotations


class RuleError(RuntimeError):
    """The training loop breaks a rule. The text says which, and what to do instead."""
