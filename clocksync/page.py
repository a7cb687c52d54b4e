"""The clock page: a line over CLOCK_MONOTONIC_RAW that says what fabric time it is, and how surely.

Twin of ``clocksync/include/fabric/clock.h``, which has the layout and the rules; a test compares
the two. Feed-forward: nothing slews or steps the system's clock (Graham, NSDI 2022, and fbclock
work like this). Without NumPy, so that a job may import it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from time import CLOCK_MONOTONIC_RAW, clock_gettime_ns
from types import TracebackType
from typing import Final, NamedTuple, Self

MAGIC: Final = 0x4B4C4346
VERSION: Final = 1
SIZE: Final = 4096
SALT: Final = 0x9E3779B97F4A7C15
HEAD_FIELDS: Final = {"magic": "I", "version": "H", "used": "H", "seq": "Q"}
FIELDS: Final = {
    "check": "Q", "raw_ns": "q", "fabric_ns": "q", "slope": "d", "bound_ns": "d", "drift": "d",
    "wander": "d", "fresh_ns": "Q", "end_ns": "Q", "state": "I", "reference": "I", "epoch": "Q",
    "reserved": "Q",
}  # fmt: skip
_HEAD: Final = struct.Struct("<" + "".join(HEAD_FIELDS.values()))
_LINE: Final = struct.Struct("<" + "".join(FIELDS.values()))
_WORDS: Final = struct.Struct(f"<{_LINE.size // 8}Q")
_SEQ: Final = struct.Struct("<Q")
SEQ_AT: Final = 8
LINES_AT: Final = _HEAD.size
USED: Final = _HEAD.size + 2 * _LINE.size
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
    data = bytearray(
        _LINE.pack(
            0, line.raw_ns, line.fabric_ns, line.slope, line.bound_ns, line.drift, line.wander,
            line.fresh_ns, line.end_ns, line.state, line.reference, line.epoch, 0,
        )
    )  # fmt: skip
    _SEQ.pack_into(data, 0, _check(data))
    return bytes(data)


def _check(data: bytes | bytearray) -> int:
    value = SALT
    for word in _WORDS.unpack(data)[1:]:
        value ^= word
    return value


def decode(data: bytes) -> Line:
    """The inverse of `encode`.

    Raises:
        ClockError: it is no line, is being written, or is damaged.
    """
    if len(data) != _LINE.size:
        raise ClockError(f"{len(data)} bytes instead of {_LINE.size}")
    (check, raw, fabric, slope, bound, drift, wander, fresh, end, state, reference, epoch,
     _) = _LINE.unpack(data)  # fmt: skip
    if check != _check(data):
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


def _place(seq: int) -> slice:
    """Where the line lies that holds after ``seq`` writes."""
    at = LINES_AT + (seq & 1) * _LINE.size
    return slice(at, at + _LINE.size)


NOTHING: Final = Line(0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0, State.UNSYNCED, 0, 0)


_SOUND: Final = struct.pack("<IHH", MAGIC, VERSION, USED)


class ClockPage:
    """The writer. One at a time; whoever starts it sees to that."""

    def __init__(self, directory: Path) -> None:
        """Take over the page that is there, so that readers who hold it go on; or make one.

        Raises:
            OSError: it cannot be written.
        """
        self.path = directory / "clock"
        self._seq = 0
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            self._fd = self._make()
        info = os.fstat(self._fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size != SIZE:
            os.close(self._fd)
            self._fd = self._make()
        data = os.pread(self._fd, USED, 0)
        if not data.startswith(_SOUND):
            os.close(self._fd)
            self._fd = self._make()
            data = os.pread(self._fd, USED, 0)
        self._seq = _SEQ.unpack_from(data, SEQ_AT)[0]
        with contextlib.suppress(ClockError):
            found = decode(data[_place(self._seq)])
            self.last = found if found.state is not State.UNSYNCED else None

    last: Line | None = None
    """What an earlier service said last; for the way back from holdover."""

    def _make(self) -> int:
        draft = self.path.with_name(".clock")
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.fchmod(fd, 0o644)  # whatever the umask: every job reads it
        os.pwrite(fd, (_SOUND + _SEQ.pack(0) + 2 * encode(NOTHING)).ljust(SIZE, b"\0"), 0)
        draft.rename(self.path)
        return fd

    def write(self, line: Line) -> None:
        """Publish: the line that does not hold is written, then it does."""
        self._seq = (self._seq + 1) & (1 << 64) - 1
        os.pwrite(self._fd, encode(line), _place(self._seq).start)
        os.pwrite(self._fd, _SEQ.pack(self._seq), SEQ_AT)

    def close(self) -> None:
        """Let go of it; it stays, and grows old."""
        os.close(self._fd)


class ClockReader:
    """Reads the page of this host. Each thread its own."""

    def __init__(self, directory: Path | None = None) -> None:
        """Map it; ``directory``: default $FABRIC_RUN_DIR, or /run/fabricd.

        Raises:
            ClockError: there is none, or none of this version.
        """
        base = directory or Path(os.environ.get("FABRIC_RUN_DIR") or "/run/fabricd")
        path = base / "clock"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ClockError(f"{path}: {error.strerror}") from error
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or info.st_size != SIZE:
                raise ClockError(f"{path}: not a clock page")
            self._map = mmap.mmap(fd, SIZE, prot=mmap.PROT_READ)
            if self._map[: len(_SOUND)] != _SOUND:
                raise ClockError(f"{path}: not a clock page of version {VERSION}")
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")
        self._seq = -1
        self._last, self._epoch = 0, -1
        self._line = self._load()

    def _load(self) -> Line:
        why = ClockError("written faster than it can be read")
        for _ in range(_TRIES):
            seq = self._words[1]
            data = self._map[_place(seq)]
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
            if line.epoch != self._epoch:
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

    def close(self) -> None:
        """Unmap."""
        self._words.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


_reader: ClockReader | None = None


def now() -> tuple[int, float]:
    """Fabric time and its bound, both in ns, by this host's page.

    Raises:
        ClockError: there is no time now.
    """
    global _reader
    if _reader is None:
        _reader = ClockReader()
    return _reader.read()
