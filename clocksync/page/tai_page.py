"""The page of TAI: a line over CLOCK_MONOTONIC_RAW like that of fabric time, and whose time it is.

Twin of ``clocksync/include/fabric/tai.h``. Without NumPy, so that a job may import it.

    ns, bound_ns = tai.now()
"""

from __future__ import annotations

import contextlib
import struct
import threading
from pathlib import Path
from time import CLOCK_MONOTONIC_RAW, clock_gettime_ns
from typing import Final, NamedTuple

from clocksync.page import clock_page
from clocksync.page.clock_page import NOTHING, ClockError, Line, State
from clocksync.page.latch import Kind, LatchFile, is_sealed, seal

FIELDS: Final = {
    "grandmaster": "Q", "utc_offset_s": "i", "flags": "I", "steps_removed": "H",
    "clock_class": "B", "accuracy": "B", "leap": "i",
}  # fmt: skip
"""After those of a clock page's line."""
_ORIGIN: Final = struct.Struct("<" + "".join(FIELDS.values()))
_LINE: Final = struct.calcsize("<" + "".join(clock_page.FIELDS.values()))
KIND: Final = Kind("clock-tai", magic=0x49415446, version=1, record=_LINE + _ORIGIN.size)
UTC_KNOWN, TRACEABLE = 1, 2
"""Flags."""
_TRIES: Final = 1000


class Source(NamedTuple):
    """Whose time it is; the fields of IEEE 1588's Announce."""

    grandmaster: int = 0
    """clockIdentity, as a number."""
    clock_class: int = 255
    accuracy: int = 0xFE
    steps_removed: int = 0
    utc_offset_s: int | None = None
    """TAI less UTC; None: not known."""
    traceable: bool = False
    """To a primary reference."""
    leap: int = 0
    """At the end of the UTC day: +1 or -1 second, or 0."""


class TaiLine(NamedTuple):
    """What the page says: TAI in the line's ``fabric_ns``, and in ``reference`` which host has it.

    Another ``epoch`` of the line: TAI may have been set back.
    """

    line: Line
    source: Source


class TaiTime(NamedTuple):
    """A moment."""

    ns: int
    """TAI since 1970-01-01 00:00:00 TAI; never less than in the call before, but for another
    epoch."""
    bound_ns: float
    """How far off it may be."""
    state: State
    host: int
    """Id of the host that has it from a master."""
    epoch: int
    source: Source

    @property
    def utc_ns(self) -> int | None:
        """UTC since 1970, in which leap seconds do not count; None: the offset is not known."""
        offset = self.source.utc_offset_s
        return None if offset is None else self.ns - offset * 10**9


NO_TAI: Final = TaiLine(NOTHING, Source())


def encode(said: TaiLine) -> bytes:
    """As it lies in the page."""
    source = said.source
    flags = UTC_KNOWN * (source.utc_offset_s is not None) | TRACEABLE * source.traceable
    return seal(
        clock_page.encode(said.line)
        + _ORIGIN.pack(
            source.grandmaster, source.utc_offset_s or 0, flags, source.steps_removed,
            source.clock_class, source.accuracy, source.leap,
        )
    )  # fmt: skip


def decode(data: bytes) -> TaiLine:
    """The inverse of `encode`.

    Raises:
        ClockError: it is none, is being written, or is damaged.
    """
    if len(data) != KIND.record:
        raise ClockError(f"{len(data)} bytes instead of {KIND.record}")
    if not is_sealed(data):
        raise ClockError("being written, or damaged")
    grandmaster, offset, flags, steps, grade, accuracy, leap = _ORIGIN.unpack_from(data, _LINE)
    return TaiLine(
        clock_page.decode(seal(data[:_LINE])),
        Source(
            grandmaster, grade, accuracy, steps, offset if flags & UTC_KNOWN else None,
            bool(flags & TRACEABLE), leap,
        ),
    )  # fmt: skip


class TaiPage:
    """The writer. One at a time; whoever starts it sees to that."""

    def __init__(self, directory: Path) -> None:
        """Take over the page that is there, or make one.

        Raises:
            OSError: it cannot be written.
        """
        self._file = LatchFile(KIND, directory, encode(NO_TAI))
        self.last = NO_TAI
        """What an earlier service said last."""
        with contextlib.suppress(ClockError):
            self.last = decode(self._file.found)

    def write(self, said: TaiLine) -> None:
        """Publish."""
        self._file.write(encode(said))

    def close(self) -> None:
        """Let go of it; it stays, and grows old."""
        self._file.close()


class TaiReader(clock_page.PageReader):
    """Reads the page of this host. Each thread its own."""

    def __init__(self, directory: Path | None = None) -> None:
        """Map it; ``directory``: default $FABRIC_RUN_DIR, or /run/fabricd.

        Raises:
            ClockError: there is none, or none of this version.
        """
        self._path = clock_page.page_path(KIND, directory)
        self._last, self._epoch = 0, -1
        self._open()

    def _open(self) -> None:
        self._map(self._path, KIND, "a page of TAI")
        self._seq = -1
        self._said = NO_TAI

    def line(self) -> TaiLine:
        """What the page says.

        Raises:
            ClockError: it is damaged.
        """
        why = ClockError("written faster than it can be read")
        for _ in range(_TRIES):
            seq = self._words[1]
            if seq == self._seq:
                return self._said
            data = self._file.page[KIND.place(seq)]
            if self._words[1] != seq:
                continue
            try:
                self._said, self._seq = decode(data), seq
            except ClockError as error:
                why = error
        if self._seq == self._words[1]:
            return self._said
        raise why

    def now(self) -> TaiTime:
        """TAI, how far off it may be, and whose it is.

        Raises:
            ClockError: there is none now.
        """
        said, raw = self.line(), clock_gettime_ns(CLOCK_MONOTONIC_RAW)
        if abs(raw - said.line.raw_ns) > said.line.fresh_ns and self._file.replaced():
            old = self._file
            self._open()
            old.close()
            return self.now()
        found = said.line.at(raw)
        if found.epoch != self._epoch:
            self._last, self._epoch = 0, found.epoch
        # A newer line may lie a little lower: wait for it rather than go back.
        ns = max(found.ns, self._last)
        self._last = ns
        bound = found.bound_ns + (ns - found.ns)
        return TaiTime(ns, bound, found.state, found.reference, found.epoch, said.source)


class _Own(threading.local):
    """A reader is for one thread."""

    reader: TaiReader | None = None


_own = _Own()


def now() -> tuple[int, float]:
    """TAI and its bound, both in ns, by this host's page; of any thread.

    Raises:
        ClockError: there is none now.
    """
    if _own.reader is None:
        _own.reader = TaiReader()
    found = _own.reader.now()
    return found.ns, found.bound_ns
