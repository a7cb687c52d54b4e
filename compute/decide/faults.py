"""An error of our own in one job holds that job, and no other. Pure.

What the job wanted last stands meanwhile. After `HOLD_S` it is decided again, as by a
fabric-compute that has just started: what was known of it may be half of a change.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

HOLD_S = 10.0
LONGEST = 300
"""Characters of an error."""


@dataclass(frozen=True)
class Fault:
    """An error in one job. ``where``: file and line in which it was raised."""

    job: str
    error: str
    where: str

    @property
    def reason(self) -> str:
        """For people."""
        return (
            f"fabric-compute failed to decide over this job ({self.error}, in {self.where}); it "
            f"tries again every {HOLD_S:.0f} s"
        )


class JobFaults:
    """Which jobs are held for an error. ``count``: errors since the start."""

    def __init__(self) -> None:
        self.count = 0
        self._held: dict[str, float] = {}
        """Job → until when."""
        self._last: dict[str, Fault] = {}

    def held_until(self, job: str, now: float) -> float | None:
        """Until when nothing is decided of a job; None: it may be."""
        until = self._held.get(job)
        return until if until is not None and now < until else None

    @contextmanager
    def guard(self, job: str, now: float, found: list[Fault]) -> Iterator[None]:
        """What is done for one job. An error in it goes into ``found`` and no further."""
        try:
            yield
        except Exception as error:
            self.count += 1
            self._held[job] = now + HOLD_S
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}"[:LONGEST]
            found.append(Fault(job, text, f"{last.filename.rpartition('/')[2]}:{last.lineno}"))

    def is_news(self, fault: Fault) -> bool:
        """Whether the same was not said of the job before; from now on it was."""
        before = self._last.get(fault.job)
        self._last[fault.job] = fault
        return before != fault

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all other jobs."""
        for gone in self._last.keys() - jobs:
            del self._last[gone]
            self._held.pop(gone, None)
