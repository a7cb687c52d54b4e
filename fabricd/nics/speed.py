"""Is a link slower than it was: its negotiated speed against the best that it had. Pure.

Sources are the netdev's speed (sysfs ``speed``, as ethtool has it) and the verbs port's rate
(``ports/N/rate``: signalling rate times width, "25 Gb/sec (1X EDR)"). Each is compared with its own
best, and the lesser ratio counts. A value is believed when two readings in a row say it while the
link has carrier: links that train show speeds that they do not keep. A source that says nothing
`ABSENCES` times in a row counts no more: its device may be gone. The best is kept over restarts and
reboots; an operator who means the lower speed, or expects a higher one, configures it. That is the
netdev's, so the verbs rate, which may be rounded otherwise, is compared with it only where the
netdev says none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

SOURCES = ("netdev", "verbs")
ALIKE = 0.99
"""Of the best: what is no less is the same speed, rounded otherwise (56 and 56.25 Gbit/s)."""
ABSENCES = 3
LEAST, MOST = 1e6, 1e14
"""Bit/s that a link may have; all else is a driver that does not know."""


@dataclass(slots=True)
class LinkSpeed:
    """What one link negotiated. Bit/s.

    Attributes:
        expected: by the configuration, instead of the best; None: the best that was seen.
        best: by source, the best that it had.
        now: by source, as two readings in a row said.
        slower_ns: since when (CLOCK_MONOTONIC) it is slower than it was; None: it is not.
        settlings: how often it came to have carrier and an active port: then it is read anew soon.
    """

    expected: float | None = None
    best: dict[str, float] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)
    slower_ns: int | None = None
    settlings: int = 0
    _settled: bool = False
    _absent: dict[str, int] = field(default_factory=dict)
    """By source, readings in a row that said nothing."""
    _read: dict[str, float] = field(default_factory=dict)
    """By source, the last reading alone."""

    def read(self, source: str, speed: float | None, at_ns: int) -> None:
        """Take a reading; None: the source does not know, and what it said before stays a while.

        Args:
            source: one of `SOURCES`.
            speed: bit/s.
            at_ns: CLOCK_MONOTONIC.
        """
        if speed is None or not LEAST <= speed <= MOST:
            self._read.pop(source, None)
            self._absent[source] = self._absent.get(source, 0) + 1
            if self._absent[source] >= ABSENCES:
                self.now.pop(source, None)
                self.update(at_ns)
            return
        self._absent[source] = 0
        if self._read.get(source) == speed:
            self.now[source] = speed
            self.best[source] = max(speed, self.best.get(source, 0.0))
        self._read[source] = speed
        self.update(at_ns)

    def unsettled(self) -> None:
        """The carrier is away, or was: the next reading is a first one."""
        self._read.clear()
        self._absent.clear()
        self._settled = False

    def settled(self) -> None:
        """It has carrier, and its port is active."""
        self.settlings += not self._settled
        self._settled = True

    def update(self, at_ns: int) -> None:
        """Compare anew, also when another speed is expected."""
        slower = (self.ratio or 1.0) < 1.0
        self.slower_ns = (self.slower_ns or at_ns) if slower else None

    @property
    def ratio(self) -> float | None:
        """Speed now by the speed that it had, in (0, 1]; None: not known."""
        found = self._found()
        if not found:
            return None
        least = min(found.values())
        return 1.0 if least >= ALIKE else least

    @property
    def text(self) -> str:
        """What it negotiated of what it had, or what it has; empty: not known."""
        found = self._found()
        if not found:
            return ""
        source = min(found, key=lambda name: found[name])
        has = f"{self.now[source] / 1e9:g}"
        if (self.ratio or 1.0) == 1.0:
            return f"{has} Gbit/s"
        return f"negotiated {has} of {self._wanted(source) / 1e9:g} Gbit/s"

    def restore(self, best: Mapping[str, float]) -> None:
        """Go on from the best of an earlier life of the daemon."""
        for source, value in best.items():
            self.best[source] = max(value, self.best.get(source, 0.0))

    def forget(self) -> None:
        """It is another device: what its predecessor had is no measure."""
        self.best.clear()
        self.now.clear()
        self.unsettled()

    def _found(self) -> dict[str, float]:
        """By source that counts, speed now by the speed that it should have."""
        netdev_alone = self.expected is not None and "netdev" in self.now
        return {
            source: value / self._wanted(source)
            for source, value in self.now.items()
            if source == "netdev" or not netdev_alone
        }

    def _wanted(self, source: str) -> float:
        return self.expected if self.expected is not None else self.best[source]


def rate(text: str) -> float | None:
    """Bit/s of ``ports/N/rate`` (sysfs-class-infiniband): "400 Gb/sec (4X NDR)".

    None for anything else: a port without a rate, or another text.
    """
    number, unit, *_ = [*text.split(), "", ""]
    try:
        value = float(number)
    except ValueError:
        return None
    return value * 1e9 if unit == "Gb/sec" and math.isfinite(value) and value > 0 else None
