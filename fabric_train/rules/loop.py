"""What every process that runs the same script does wrong, and so ends its job."""

from __future__ import annotations


class RuleError(RuntimeError):
    """The training loop breaks a rule. The text says which, and what to do instead."""


class RunAgainError(BaseException):
    """Ends an attempt that has to be run again. Not an Exception: the loop must not catch it."""
