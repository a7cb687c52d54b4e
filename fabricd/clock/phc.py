"""Reads NICs' clocks beside this host's: /dev/ptp<n>, and what became of each.

The prober says which clock stamps a link's packets (``LinkRow.phc``); nothing is asked of the
network here. Layouts and numbers are those of <linux/ptp_clock.h>. Nothing is ever set: the device
is opened for reading.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from clocksync.pair.crossing import PRECISE_NS, Crossing, Reading, Wall, through_wall, tightest
from clocksync.pair.model import SECOND

SAMPLES: Final = 9
"""Windows of a reading; a tenth of a second apart, the shortest of so few is short enough."""
MOST_SAMPLES: Final = 25
_TIME: Final = struct.Struct("=qII")
_HEAD: Final = struct.Struct("=4I")
EXTENDED_SIZE: Final = _HEAD.size + 3 * MOST_SAMPLES * _TIME.size
PLAIN_SIZE: Final = _HEAD.size + (2 * MOST_SAMPLES + 1) * _TIME.size
PRECISE_SIZE: Final = 3 * _TIME.size + 16


def _number(way: int, number: int, size: int) -> int:
    """An ioctl's (asm-generic/ioctl.h): 1 write, 3 both."""
    return way << 30 | size << 16 | ord("=") << 8 | number


PTP_SYS_OFFSET: Final = _number(1, 5, PLAIN_SIZE)
PTP_SYS_OFFSET_PRECISE: Final = _number(3, 8, PRECISE_SIZE)
PTP_SYS_OFFSET_EXTENDED: Final = _number(3, 9, EXTENDED_SIZE)

PERIOD_NS: Final = SECOND // 10
BUSY: Final = 20
"""A reading may take a twentieth of the time: some NICs' firmware answers in milliseconds."""
RETRY_NS: Final = 5 * SECOND
QUIET_NS: Final = 60 * SECOND
MISSES: Final = 20
"""So many readings in a row that failed: the next way is tried."""
AGAIN: Final = 600
"""After so many readings, a minute at least, the better way that was busy is tried again."""
_NO_SUCH_WAY: Final = {errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
_NOT_NOW: Final = {errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.EIO, errno.ETIMEDOUT}

Ioctl = Callable[[int, int, bytearray], Any]


class PhcError(Exception):
    """This clock cannot be read; the text says why."""


class PhcDevice:
    """One PHC, by the best way that its driver and this kernel have."""

    WAYS: Final = ("precise", "extended", "extended over the wall clock", "plain")

    def __init__(self, path: Path, ioctl: Ioctl = fcntl.ioctl) -> None:
        """Open it.

        Raises:
            PhcError: there is none, or it may not be read.
        """
        self._ioctl, self._way, self._missed = ioctl, 0, 0
        self._busy: list[int] = []
        """Better ways that were given up though the driver has them."""
        self._until_again = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise PhcError(f"{path}: {error.strerror}") from error
        self._path = path

    @property
    def way(self) -> str:
        """How it is read."""
        return self.WAYS[self._way]

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)

    def read(self) -> Reading | None:
        """One reading; None: not now.

        Raises:
            PhcError: it is gone, or there is no way to read it.
        """
        ways = (self._precise, self._extended, self._extended_wall, self._plain)
        if self._busy:
            self._until_again -= 1
            if self._until_again <= 0:
                self._until_again = AGAIN
                for number, way in enumerate(self._busy):
                    with contextlib.suppress(OSError):
                        found = ways[way]()
                        self._way, self._missed, self._busy = way, 0, self._busy[:number]
                        return found
        while True:
            try:
                found = ways[self._way]()
            except OSError as error:
                if error.errno in _NO_SUCH_WAY:
                    self._next(error)
                    continue
                if error.errno not in _NOT_NOW:
                    raise PhcError(f"{self._path}: {error.strerror}") from error
                self._missed += 1
                if self._missed >= MISSES:
                    self._busy.append(self._way)
                    self._until_again = AGAIN
                    self._next(error)
                return None
            self._missed = 0
            return found

    def _next(self, error: OSError) -> None:
        self._missed = 0
        if self._way == len(self.WAYS) - 1:
            self._way = 0
            self._busy.clear()
            raise PhcError(f"{self._path}: no way to read it ({error.strerror})") from error
        self._way += 1

    def _precise(self) -> Reading:
        data = bytearray(PRECISE_SIZE)
        self._ioctl(self._fd, PTP_SYS_OFFSET_PRECISE, data)
        phc, _, raw = times(data, 0, 3)
        return Reading(raw, phc, PRECISE_NS)

    def _triples(self, clock: int) -> list[tuple[int, int, int]]:
        data = bytearray(EXTENDED_SIZE)
        # `clockid` since Linux 6.12; before, what is not 0 (the wall clock) there is refused.
        _HEAD.pack_into(data, 0, SAMPLES, clock, 0, 0)
        self._ioctl(self._fd, PTP_SYS_OFFSET_EXTENDED, data)
        found = times(data, _HEAD.size, 3 * SAMPLES)
        return [(found[n], found[n + 1], found[n + 2]) for n in range(0, len(found), 3)]

    def _extended(self) -> Reading | None:
        return tightest(self._triples(time.CLOCK_MONOTONIC_RAW))

    def _extended_wall(self) -> Reading | None:
        first = wall()
        triples = self._triples(time.CLOCK_REALTIME)
        return through_wall(triples, first, wall())

    def _plain(self) -> Reading | None:
        data = bytearray(PLAIN_SIZE)
        _HEAD.pack_into(data, 0, SAMPLES, 0, 0, 0)
        first = wall()
        self._ioctl(self._fd, PTP_SYS_OFFSET, data)
        found = times(data, _HEAD.size, 2 * SAMPLES + 1)
        triples = [(found[n], found[n + 1], found[n + 2]) for n in range(0, 2 * SAMPLES, 2)]
        return through_wall(triples, first, wall())


def times(data: bytes | bytearray, at: int, count: int) -> list[int]:
    """Nanoseconds of so many ``struct ptp_clock_time``."""
    return [
        seconds * SECOND + ns
        for seconds, ns, _ in _TIME.iter_unpack(bytes(data[at : at + count * _TIME.size]))
    ]


def wall() -> Wall:
    """The wall clock between two readings of the raw one, the tightest of three."""
    found = []
    for _ in range(3):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        now = time.clock_gettime_ns(time.CLOCK_REALTIME)
        found.append(Wall(before, now, time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)))
    return min(found, key=lambda one: one.after_ns - one.before_ns)


class Device(Protocol):
    """What can be read."""

    @property
    def way(self) -> str:
        """How it is read."""

    def read(self) -> Reading | None:
        """One reading; None: not now."""

    def close(self) -> None:
        """Let go of it."""


def open_device(number: int) -> Device:
    """/dev/ptp<number>."""
    return PhcDevice(Path(f"/dev/ptp{number}"))


@dataclass(slots=True)
class Source:
    """A PHC that stamps packets of ours."""

    number: int
    crossing: Crossing = field(default_factory=lambda: Crossing(generation=secrets.randbelow(256)))
    device: Device | None = None
    due_ns: int = 0
    quiet_ns: int = 0
    """Nothing more is logged of what others do with it before then."""
    why: str = ""
    """Why it is not read."""


class Phcs:
    """Those that stamp now."""

    def __init__(
        self,
        opener: Callable[[int], Device] = open_device,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Args: ``monotonic_ns`` measures how long a reading takes."""
        self.by_number: dict[int, Source] = {}
        self._open, self._monotonic_ns = opener, monotonic_ns
        self._log = structlog.get_logger()

    def read(self, wanted: Iterable[int], now_ns: int) -> None:
        """Read those that are due.

        Args:
            wanted: their numbers; others are let go of, and what comes back is another.
            now_ns: the raw clock.
        """
        numbers = set(wanted)
        for number in self.by_number.keys() - numbers:
            self._let_go(self.by_number[number])
        for number in numbers:
            source = self.by_number.setdefault(number, Source(number))
            if now_ns >= source.due_ns:
                self._read(source, now_ns)

    def source(self, number: int | None) -> Source | None:
        """What is known of a PHC; None: it does not stamp."""
        return None if number is None else self.by_number.get(number)

    def used(self) -> list[int]:
        """Numbers of those that are read, or were to be."""
        return [number for number, one in self.by_number.items() if one.device or one.why]

    def anew(self) -> None:
        """The raw clock is another: what is known over it is void, and each is to be read now."""
        for source in self.by_number.values():
            self._let_go(source)
            source.due_ns = source.quiet_ns = 0

    def close(self) -> None:
        """Let go of all."""
        self.read((), 0)

    def _read(self, source: Source, now_ns: int) -> None:
        began = self._monotonic_ns()
        try:
            if source.device is None:
                source.device = self._open(source.number)
            reading = source.device.read()
        except PhcError as error:
            said = source.why == str(error)
            self._let_go(source)
            source.due_ns, source.why = now_ns + RETRY_NS, str(error)
            if not said:
                self._log.warning("a NIC's clock is not read", reason=source.why)
            return
        if source.why:
            self._log.info("a NIC's clock is read again", phc=source.number)
            source.why = ""
        took = self._monotonic_ns() - began
        # A little less than a step, which is never early.
        source.due_ns = now_ns + max(PERIOD_NS * 9 // 10, BUSY * took)
        if reading is None:
            return
        crossing = source.crossing
        steps, adjusted = crossing.steps, crossing.adjusted
        crossing.add(reading)
        changed = (crossing.steps, crossing.adjusted) != (steps, adjusted)
        if changed and now_ns >= source.quiet_ns:
            source.quiet_ns = now_ns + QUIET_NS
            what = "set" if crossing.steps != steps else "adjusted"
            self._log.warning(f"a NIC's clock was {what} by another program", phc=source.number)

    def _let_go(self, source: Source) -> None:
        source.crossing.lost()
        source.why = ""
        if source.device is not None:
            source.device.close()
            source.device = None
