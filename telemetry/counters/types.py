"""What all counter sources share: shapes of counters, samples, the state of a source. Pure.

A source reads one thing about one device (the hw_counters of mlx5_0 port 1, the ethtool statistics
of rail0) and speaks canonical names (`telemetry.counters.vocabulary`), so that no rule, metric or
page ever sees a driver's own. It is on, or off and says why: an absent device is no error.

Times are integer nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class CounterError(ValueError):
    """Bytes or text from the kernel that are not what they should be; the message says what."""


class CounterClass(StrEnum):
    """What an increase means for a link."""

    HARD = "hard"
    """Any increase is a fault of the link."""
    SOFT = "soft"
    """Evidence by its rate: noise at a low one, a sick link at a high one."""
    CONGESTION = "congestion"
    """The network is full; never a link fault."""
    INFO = "info"
    """Traffic, and what explains other counters."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a counter is kept by whoever counts.

    Attributes:
        width: bits; it wraps at 2**width, or stays there.
        saturates: it stays at its maximum (InfiniBand PMA counters) instead of wrapping.
    """

    width: int = 64
    saturates: bool = False

    @property
    def maximum(self) -> int:
        """The largest value it can show."""
        return (1 << self.width) - 1


WIDE = Shape()


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of a histogram: ``low`` to ``high`` (both included), ``count`` so far."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What a source read at one moment.

    Attributes:
        source: which kind, e.g. ``ib_hw``, ``ethtool``, ``module``, ``aer``.
        device: as the kernel names it: ``mlx5_0/1`` for a verbs port, ``rail0`` for a netdev,
            ``0000:3b:00.0`` for a PCI function.
        incarnation: changes when the device was reborn (driver reload, hot-plug): ifindex, inode of
            its sysfs folder. Counters of different incarnations are never subtracted.
        at_ns: when.
        values: canonical counter → absolute value, since the device began.
        shapes: of those in `values` that are not 64 bits wide.
        gauges: canonical gauge → value now, in base units (°C, W, A, V, bit/s).
        flags: canonical alarms and warnings raised now.
        histograms: canonical histogram → bins in order.
        info: serial numbers, versions, names: text that rarely changes.
        skipped: what could not be read, or counts no more → why. Never silently a number.
    """

    source: str
    device: str
    incarnation: Hashable
    at_ns: int
    values: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()
    histograms: Mapping[str, tuple[Bin, ...]] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a source works, for people and metrics.

    Attributes:
        source, device: as in `Sample`.
        on: it is read.
        reason: why it is off; what is missing of it when it is on; may be empty.
    """

    source: str
    device: str
    on: bool
    reason: str = ""


class Source(Protocol):
    """One thing read about one device.

    Opened by ``open(device, …)``, which never raises for an absent device: the source is then off,
    `read` gives None and tries again at its own period, so hot-plug needs no new object.

    Attributes:
        period_ns: not read more often; at least the counters' own ``lifespan``.
    """

    period_ns: int

    @property
    def status(self) -> Status: ...  # noqa: D102

    def read(self, now_ns: int) -> Sample | None:
        """Read it now; None: off (`status` says why). Never raises for what the kernel said."""
        ...

    def close(self) -> None: ...  # noqa: D102
