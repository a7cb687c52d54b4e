"""What a run of the demo recorded: plain data, times in CLOCK_MONOTONIC nanoseconds.

All hosts of the lab share one kernel and so one clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telemetry.events import Event
from telemetry.statspage import StatsEvent

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Rail = tuple[str, str]
"""(host, interface), such as ("h1", "rail2")."""


@dataclass(frozen=True, slots=True)
class RankSeries:
    """The samples of one rank of fabric-perf.

    ``t_ns`` [rows + 1] are the edges of the intervals; ``rx`` and ``tx`` [rows, rails] the payload
    bytes accepted and sent within each.
    """

    host: str
    rails: tuple[str, ...]
    t_ns: Ints
    rx: Floats
    tx: Floats


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank ended: exit status, and the ``end`` or ``error`` row (None: it wrote none)."""

    host: str
    status: int | None
    """Below 0: ended by that signal; None: still running."""
    end: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def clean(self) -> bool:
        """Done, no error, no corrupt byte."""
        return (
            self.status == 0
            and self.error is None
            and self.end is not None
            and not self.end.get("interrupted")
            and self.end.get("errors") == 0
            and self.end.get("corrupt_bytes") == 0
        )


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A plugin's event, with the names of its rails."""

    host: str
    process: tuple[int, int]
    event: StatsEvent
    local: str
    """Interface on ``host``; empty: none."""


@dataclass(frozen=True, slots=True)
class RetransmitSample:
    """Retransmitted payload of all processes together since they began, bytes."""

    t_ns: int
    total: int


@dataclass(frozen=True, slots=True)
class CpuSample:
    """CPU seconds so far: of all cores, of those idle, and what the demo's own processes used."""

    t_ns: int
    total: float
    idle: float
    own: float


@dataclass(frozen=True, slots=True)
class FaultSpan:
    """One chapter of the story as the ground truth has it."""

    title: str
    kind: str
    rails: tuple[Rail, ...]
    start_ns: int
    end_ns: int
    flaps: int = 0
    """Carrier losses injected per rail."""
    returns_within_s: float = 3.0
    """After its end: the hold-down, or the damping's suppress time, and one second."""

    @property
    def returned_ns(self) -> int:
        """By when its rails have to carry again."""
        return self.end_ns + round(self.returns_within_s * 1e9)


@dataclass(slots=True)
class Recording:
    """Everything a run left behind."""

    start_ns: int = 0
    """The first sample of the job."""
    start_wall_ns: int = 0
    hosts: tuple[str, ...] = ()
    rails: tuple[str, ...] = ()
    series: list[RankSeries] = field(default_factory=list)
    ends: list[RankEnd] = field(default_factory=list)
    planned: int = 0
    """Faults that the story has; each one played to its end is in ``spans``."""
    spans: list[FaultSpan] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """All hosts' timelines."""
    job_events: list[JobEvent] = field(default_factory=list)
    retransmits: list[RetransmitSample] = field(default_factory=list)
    cpu: list[CpuSample] = field(default_factory=list)
