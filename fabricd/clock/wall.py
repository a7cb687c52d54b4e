"""From the wall clock, in which the kernel's stamps are, to CLOCK_MONOTONIC_RAW. Pure.

The idea is that of ``prober/src/core/cross_timestamp.h``, for whoever looks ten times a second: a
stamp lies between two readings of both clocks, and on the straight line between them. The wall
clock may be slewed or stepped in between; then its rate there is another than before, and what was
stamped in between, or not long before, is not converted.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

WIDE_NS: Final = 2_000
"""A reading that took longer, and twice as long as the shortest of late, is none: the reader was
not running meanwhile."""
WIDEST_NS: Final = 100_000
"""None that took longer than this, on any machine."""
BENT_NS: Final = 1_000
"""So much more than its rate before says, the wall clock may have gained between two readings."""
BENT: Final = 1e-5
"""And so much of the time in between: NTP changes the rate by less from one second to the next."""
SETTLING: Final = 2
"""Readings after a step before stamps are converted: what came before it may be read after it."""
KEPT: Final = 16
KNOWN_NS: Final = 2_000_000_000
"""Apart, readings say nothing of the rate any more."""


class _Reading(NamedTuple):
    wall: int
    raw: int
    width: int
    sound: bool
    """Whether stamps between the reading before and this one can be converted."""


class WallCrossing:
    """Of one host. Read packets first, then both clocks (`add`), then convert what was read."""

    def __init__(self) -> None:
        self.steps = 0
        """Of the wall clock, seen so far."""
        self._readings: deque[_Reading] = deque(maxlen=KEPT)
        self._widths: deque[int] = deque(maxlen=KEPT)
        self._rate: float | None = None
        self._rate_error = 0.0
        self._settling = 0

    def add(self, before_ns: int, wall_ns: int, after_ns: int) -> bool:
        """The wall clock was read between two readings of the raw one.

        Returns:
            Whether it counts; else read again.
        """
        width = after_ns - before_ns
        if not 0 <= width <= WIDEST_NS:
            return False
        self._widths.append(width)
        if width > max(WIDE_NS, 2 * min(self._widths)):
            return False
        raw = before_ns + width // 2
        if not self._readings:
            self._readings.append(_Reading(wall_ns, raw, width, sound=False))
            return True
        last = self._readings[-1]
        passed = raw - last.raw
        if passed <= 0:
            return False
        gained = (wall_ns - last.wall) - passed
        predicted = 0.0 if self._rate is None else self._rate * passed
        read = (width + last.width) / 2
        most = BENT_NS + read + (BENT + self._rate_error) * passed
        known = self._rate is not None and passed <= KNOWN_NS
        if not known:
            # 500 ppm is the most that the kernel lets NTP slew by (kernel/time/ntp.c, MAXFREQ).
            predicted, most = 0.0, most + 600e-6 * passed
        if abs(gained - predicted) > most:
            self.steps += 1
            self._readings.clear()
            self._rate, self._rate_error, self._settling = None, 0.0, SETTLING
            self._readings.append(_Reading(wall_ns, raw, width, sound=False))
            return True
        self._rate, self._rate_error = gained / passed, read / passed
        self._settling = max(0, self._settling - 1)
        sound = known and self._settling == 0
        self._readings.append(_Reading(wall_ns, raw, width, sound))
        return True

    def to_raw(self, stamp_ns: int) -> int | None:
        """A stamp of the wall clock; None: it cannot be said when that was."""
        later = None
        for reading in reversed(self._readings):
            if reading.wall <= stamp_ns:
                if later is None or not later.sound:
                    return None
                part = (stamp_ns - reading.wall) * (later.raw - reading.raw)
                return reading.raw + part // (later.wall - reading.wall)
            later = reading
        return None
