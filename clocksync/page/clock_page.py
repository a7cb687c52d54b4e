"""The clock page: a line over CLOCK_MONOTONIC_RAW that says what fabric time it is, and how surely.

Twin of ``clocksync/include/fabric/clock.h``, which has the layout and the rules; a test compares
the two. Feed-forward: nothing slews or steps the system's clock (Graham, NSDI 2022, and fbclock
work like this). Without NumPy, so that a job may import it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from time import CLOCK_MONOTONIC_RAW, clock_gettime_ns
from types import TracebackType
from typing import Final, NamedTuple, Self

from clocksync.page.latch import Kind, LatchError, LatchFile, Mapped, is_sealed, seal

FIELDS: Final = {
    "check": "Q", "raw_ns": "q", "fabric_ns": "q", "slope": "d", "bound_ns": "d", "drift": "d",
    "wander": "d", "fresh_ns": "Q", "end_ns": "Q", "state": "I", "reference": "I", "epoch": "Q",
    "reserved": "Q",
}  # fmt: skip
_LINE: Final = struct.Struct("<" + "".join(FIELDS.values()))
KIND: Final = Kind("clock", magic=0x4B4C4346, version=1, record=_LINE.size)
_TRIES: Final = 1000


class ClockError(Exception):
    """There is no fabric time, or no page to read it from; the text says why."""


class State(IntEnum):
    """How fabric time is known."""

    UNSYNCED = 0
    LOCKED = 1
    HOLDOVER = 2
    """Nobody was heard lately; the bound grows."""


class FabricTime(NamedTuple):
    """A moment."""

    ns: int
    """Fabric time; never less than in the call before, but for another epoch."""
    bound_ns: float
    """How far off it may be."""
    state: State
    reference: int
    """Id of the host whose time it is."""
    epoch: int


@dataclass(frozen=True, slots=True)
class Line:
    """What the clock service publishes; see the C header for each member."""

    raw_ns: int
    fabric_ns: int
    slope: float
    bound_ns: float
    drift: float
    wander: float
    fresh_ns: int
    end_ns: int
    state: State
    reference: int
    epoch: int

    def at(self, raw_ns: int) -> FabricTime:
        """Fabric time at a moment of CLOCK_MONOTONIC_RAW.

        Raises:
            ClockError: the line says nothing of that moment.
        """
        age = raw_ns - self.raw_ns
        far = abs(age)
        if self.state is State.UNSYNCED:
            raise ClockError("unsynchronized")
        if far > self.end_ns:
            raise ClockError(f"nothing was published for {far / 1e9:.1f} s")
        state = State.HOLDOVER if far > self.fresh_ns else self.state
        bound = self.bound_ns + (self.drift + self.wander * far / 2) * far
        time_ns = self.fabric_ns + age + int(self.slope * age)
        return FabricTime(time_ns, bound, state, self.reference, self.epoch)


def encode(line: Line) -> bytes:
    """A line as it lies in the page."""
    return seal(
        _LINE.pack(
            0, line.raw_ns, line.fabric_ns, line.slope, line.bound_ns, line.drift, line.wander,
            line.fresh_ns, line.end_ns, line.state, line.reference, line.epoch, 0,
        )
    )  # fmt: skip


def decode(data: bytes) -> Line:
    """The inverse of `encode`.

    Raises:
        ClockError: it is no line, is being written, or is damaged.
    """
    if len(data) != _LINE.size:
        raise ClockError(f"{len(data)} bytes instead of {_LINE.size}")
    (_, raw, fabric, slope, bound, drift, wander, fresh, end, state, reference, epoch,
     _) = _LINE.unpack(data)  # fmt: skip
    if not is_sealed(data):
        raise ClockError("being written, or damaged")
    if state not in State._value2member_map_:
        raise ClockError(f"no state {state}")
    if not all(0 <= each < 1e18 for each in (bound, drift, wander)):
        raise ClockError("a bound that is none")
    if not abs(slope) < 1:
        raise ClockError("a slope that is none")
    return Line(
        raw, fabric, slope, bound, drift, wander, fresh, end, State(state), reference, epoch
    )


NOTHING: Final = Line(0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0, State.UNSYNCED, 0, 0)


class ClockPage:
    """The writer. One at a time; whoever starts it sees to that."""

    def __init__(self, directory: Path) -> None:
        """Take over the page that is there, or make one.

        Raises:
            OSError: it cannot be written.
        """
        self._file = LatchFile(KIND, directory, encode(NOTHING))
        self.last: Line | None = None
        """What an earlier service said last; for the way back from holdover."""
        with contextlib.suppress(ClockError):
            found = decode(self._file.found)
            self.last = found if found.state is not State.UNSYNCED else None

    def write(self, line: Line) -> None:
        """Publish a line."""
        self._file.write(encode(line))

    def close(self) -> None:
        """Let go of it; it stays, and grows old."""
        self._file.close()


def page_path(kind: Kind, directory: Path | None) -> Path:
    """Of a page; ``directory``: default $FABRIC_RUN_DIR, or /run/fabricd."""
    return (directory or Path(os.environ.get("FABRIC_RUN_DIR") or "/run/fabricd")) / kind.name


class PageReader:
    """A mapped page of a clock service, as a context manager. Each thread has its own reader."""

    def _map(self, path: Path, kind: Kind, what: str) -> None:
        """Map the file; ``what``: "a clock page", for the error.

        Raises:
            ClockError: the file is missing, or of another version.
        """
        try:
            self._file = Mapped(path, kind, what)
        except LatchError as error:
            raise ClockError(str(error)) from error
        self._words = self._file.words

    def close(self) -> None:
        """Unmap."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class ClockReader(PageReader):
    """Reads the page of this host. Each thread its own.

    A page that grows old is looked for anew: a service of another version makes its own.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """Map it; ``directory``: default $FABRIC_RUN_DIR, or /run/fabricd.

        Raises:
            ClockError: there is none, or none of this version.
        """
        self._path = page_path(KIND, directory)
        self._last, self._epoch = 0, -1
        self._open()

    def _open(self) -> None:
        self._map(self._path, KIND, "a clock page")
        self._seq = -1
        self._line = self._load()

    def _reopen(self) -> None:
        old = self._file
        try:
            self._open()
        finally:
            if self._file is not old:
                old.close()

    def _load(self) -> Line:
        why = ClockError("written faster than it can be read")
        for _ in range(_TRIES):
            seq = self._words[1]
            data = self._file.page[KIND.place(seq)]
            if self._words[1] != seq:
                continue
            try:
                self._line = decode(data)
            except ClockError as error:
                why = error
                continue
            self._seq = seq
            line = self._line
            # Unpacked at once in `read`, which is to take less than a microsecond.
            self._numbers = (line.raw_ns, line.fabric_ns, line.slope, line.bound_ns, line.drift,
                             line.wander / 2)  # fmt: skip
            self._fresh = line.fresh_ns if line.state is not State.UNSYNCED else -1
            # No time has no epoch of its own: what was said before it holds.
            if line.epoch != self._epoch and line.state is not State.UNSYNCED:
                self._last, self._epoch = 0, line.epoch
            return line
        raise why

    def read(self) -> tuple[int, float]:
        """Fabric time in ns, and how far off it may be.

        Raises:
            ClockError: there is none now.
        """
        if self._words[1] != self._seq:
            self._load()
        raw, ns, slope, bound, drift, half = self._numbers
        age = clock_gettime_ns(CLOCK_MONOTONIC_RAW) - raw
        if not 0 <= age <= self._fresh:
            if self._file.replaced():
                self._reopen()
                return self.read()
            found = self._line.at(raw + age)
            ns, bound = found.ns, found.bound_ns
        else:
            ns += age + int(slope * age)
            bound += (drift + half * age) * age
        if ns < self._last:
            # A newer line lies a little lower: wait for it rather than go back.
            return self._last, bound + self._last - ns
        self._last = ns
        return ns, bound

    def now(self) -> FabricTime:
        """The same, and all else that is known of it."""
        ns, bound = self.read()
        line = self._line
        age = clock_gettime_ns(CLOCK_MONOTONIC_RAW) - line.raw_ns
        state = State.HOLDOVER if abs(age) > line.fresh_ns else line.state
        return FabricTime(ns, bound, state, line.reference, line.epoch)


class _Own(threading.local):
    """A reader is for one thread."""

    reader: ClockReader | None = None


_own = _Own()


def now() -> tuple[int, float]:
    """Fabric time and its bound, both in ns, by this host's page; of any thread.

    Raises:
        ClockError: there is no time now.
    """
    if _own.reader is None:
        _own.reader = ClockReader()
    return _own.reader.read()
