"""Which exit status a failed job has: that of the script, where the script has ended it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FAILED = 1
RECENT_S = 120.0
"""A job that fails fails for what has ended so shortly before it, or while it ends."""


@dataclass
class ExitStatuses:
    """How processes of one fabric-run have ended by themselves. Times are seconds, monotonic."""

    _last: tuple[float, int] | None = None

    def ended(self, code: int, now: float) -> None:
        """A process has ended by itself, with the return code ``code`` (negative: a signal)."""
        if code:
            self._last = now, code

    def of_failure(self, failed_at: float) -> int:
        """Exit status of a job that has failed then: the script's, else 1; signal n is 128 + n."""
        if self._last is None or failed_at - self._last[0] > RECENT_S:
            return FAILED
        code = self._last[1]
        return code if code > 0 else 128 - code
