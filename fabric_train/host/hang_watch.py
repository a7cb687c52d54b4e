"""Which ranks of this host stand still, and which wait. Pure.

Only time counts that this agent has seen pass: whoever stops all processes of a job, as a scheduler
does that suspends it, stops the agent with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabric_train.messages.documents import STANDS, WAITS
from fabric_train.messages.progress_memory import Finished

MOST_SEEN_S = 2.0
"""Between two looks: the agent, or its machine, was stopped for what is longer."""


@dataclass
class _Still:
    """A process that has been doing the same thing since it was looked at first."""

    sign: tuple[int, ...]
    looked_at: float
    seen_s: float = 0.0


class HangWatch:
    """Of one host. Times are seconds, monotonic."""

    def __init__(self, hang_s: float) -> None:
        """``hang_s``: a rank that works so long without a collective stands; 0: none does."""
        self._hang_s = hang_s
        self._still: dict[str, _Still] = {}

    def look(self, process: str, done: Finished, now: float) -> tuple[str, str]:
        """`STANDS`, `WAITS` or "", and why, for people. ``process`` holds a rank."""
        works = bool(done.alone_since or done.stopped)
        sign = (done.step, done.collectives, done.alone_since, done.stopped)
        one = self._still.get(process)
        if one is None or one.sign != sign:
            self._still[process] = _Still(sign, now)
            return "", ""
        one.seen_s += min(now - one.looked_at, MOST_SEEN_S)
        one.looked_at = now
        # Others wait as long as the one stands, less the time to find that out.
        if not self._hang_s or one.seen_s < (self._hang_s if works else self._hang_s / 2):
            return "", ""
        if not works:
            return WAITS, ""
        what = "is stopped by a signal" if done.stopped else "works without a collective"
        return STANDS, f"hangs: it {what}, for {self._hang_s:g} s already, and the others wait"

    def forget(self, process: str) -> None:
        """``process`` has ended."""
        self._still.pop(process, None)
