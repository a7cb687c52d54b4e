"""What all sources have in common: their period, when they are due, on or off and why. Thin.

A source is not read before it is due: cached counters (``lifespan``) would only show the same
again, and make a rate of nothing. One that is off is tried again every `RETRY_NS`, so a device that
is plugged in, or whose driver comes back, is found.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod

from telemetry.counters.types import CounterError, Sample, Status

PERIOD_NS = 1_000_000_000
RETRY_NS = 10_000_000_000
SLACK_NS = 20_000_000
"""A caller's timer may be early by so much; never to within a counter's lifespan."""


class SourceOff(Exception):  # noqa: N818 - a state, not an error
    """The source has nothing to say; the message says why."""


def why(error: OSError) -> str:
    """One line for people about a system call that failed."""
    if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY):
        return "not supported by the driver"
    if error.errno in (errno.ENODEV, errno.ENOENT, errno.ENXIO):
        return "no such device"
    return os.strerror(error.errno) if error.errno else str(error)


def _reason(error: Exception) -> str:
    if isinstance(error, CounterError):
        return f"unreadable: {error}"
    return why(error) if isinstance(error, OSError) else str(error)


class Polled(ABC):
    """A source that is read at intervals.

    Attributes:
        period_ns: not read more often. A subclass raises it to what the kernel says.
    """

    source: str

    def __init__(self, device: str, period_ns: int = PERIOD_NS) -> None:
        self.device = device
        self.period_ns = self._asked_ns = period_ns
        self._lifespan_ns = 0
        self._due_ns = 0
        self._status = Status(self.source, device, on=False, reason="not read yet")

    @property
    def status(self) -> Status:
        """On or off, and why."""
        return self._status

    @property
    def due_ns(self) -> int:
        """When it is due again; 0: at once."""
        return self._due_ns

    def read(self, now_ns: int) -> Sample | None:
        """Read it; None when it is off or not due yet.

        Args:
            now_ns: CLOCK_MONOTONIC.
        """
        if now_ns < self._due_ns:
            return None
        try:
            sample = self.sample(now_ns)
        except (SourceOff, CounterError, OSError) as error:
            self._status = Status(self.source, self.device, on=False, reason=_reason(error))
            self._due_ns = now_ns + max(RETRY_NS, self.period_ns)
            return None
        missing = ", ".join(f"{name}: {reason}" for name, reason in sample.skipped.items())
        self._status = Status(self.source, self.device, on=True, reason=missing)
        self._due_ns = now_ns + max(self._asked_ns - SLACK_NS, self._lifespan_ns)
        return sample

    @abstractmethod
    def sample(self, now_ns: int) -> Sample:
        """Read it now.

        Raises:
            SourceOff, OSError: absent, not supported or refused.
            CounterError: the kernel's answer is not what it should be.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Give back what it holds."""

    def lives(self, lifespan_ns: int) -> None:
        """Say how long the counters are cached by whoever counts."""
        self._lifespan_ns = lifespan_ns
        self.period_ns = max(self._asked_ns, lifespan_ns)
