"""What a training process records of itself, and how a benchmark paces it. Standard library only.

Each process has two files in the directory of its job. ``events.PID`` gets one line per event, so
that what a killed process did is known. ``page.PID`` is a page in shared memory with the phase that
the process is in: after a SIGKILL it still holds the phase of the death. One page ``control`` tells
all processes up to which step they may run. All times are CLOCK_MONOTONIC in ns.

======  ==============================================================================
event   fields behind the time
======  ==============================================================================
draw    rank, step, samples: an attempt at ``step`` begins with these samples
commit  rank, generation, step: the process has applied ``step`` steps
state   rank, step, SHA-256 of the state after ``step`` steps
crash   rank, step: the process does what `Control.crash` asks for
======  ==============================================================================
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_PAGE = struct.Struct("<8q")
_CONTROL = struct.Struct("<4q")
UNLIMITED = (1 << 63) - 1


class Phase(enum.IntEnum):
    """What a process does at a moment."""

    STARTING = 0
    WARM = 1  # a spare that waits
    BETWEEN = 2  # between two steps
    FORWARD = 3
    BACKWARD = 4
    COLLECTIVE = 5  # all gradients are computed here, and not all are reduced
    GATE = 6  # gradients are reduced; the optimizer may not apply them yet
    OPTIMIZER = 7


class Deed(enum.IntEnum):
    """What a process does when the benchmark tells it to fail."""

    RAISE = 0  # an exception, as a CUDA error is one
    ABORT = 1  # SIGABRT, as a failed assertion of a library
    STICK = 2  # it stays in the loop's own code, and ends nothing
    CORRUPT = 3  # it calls `Trace.corrupt`, and goes on
    RAISE_ALWAYS = 4  # an exception; so does every process that gets its rank


@dataclass(frozen=True, slots=True)
class PageState:
    """What the page of a process says.

    ``step`` counts applied steps; ``committed`` is the generation of the last one. ``at_ns``: when.
    ``rank`` is -1 for a process that has none.
    """

    phase: Phase
    rank: int
    step: int
    committed: int
    at_ns: int


class CrashError(RuntimeError):
    """The benchmark told this process to fail."""


class Control:
    """How far the processes of a job may run, and which of them is to crash where."""

    def __init__(self, directory: Path) -> None:
        self._memory = _map(directory / "control", _CONTROL.size)

    def allow(self, steps: int) -> None:
        """Let the processes start a step that is below ``steps``."""
        struct.pack_into("<q", self._memory, 0, steps)

    def crash(self, pid: int, phase: Phase, deed: Deed = Deed.RAISE) -> None:
        """Let ``pid`` do ``deed``, once, when it next enters ``phase``."""
        struct.pack_into("<2q", self._memory, 16, phase, deed)
        struct.pack_into("<q", self._memory, 8, pid)

    def crash_rank(self, rank: int, phase: Phase) -> None:
        """Let each process with ``rank`` raise an exception when it next enters ``phase``."""
        self.crash(-1 - rank, phase, Deed.RAISE_ALWAYS)

    def wait(self, step: int) -> None:
        """Return when ``step`` may start."""
        while struct.unpack_from("<q", self._memory, 0)[0] <= step:
            time.sleep(0.002)

    def deed(self, pid: int, rank: int, phase: Phase) -> Deed | None:
        """What ``pid``, which has ``rank``, is to do in ``phase``."""
        _, who, where, deed = _CONTROL.unpack_from(self._memory)
        return Deed(deed) if where == phase and who in (pid, -1 - rank) else None


class Trace:
    """The record of this process."""

    def __init__(self, directory: Path) -> None:
        self._pid = os.getpid()
        self.control = Control(directory)
        self._page = _map(directory / f"page.{self._pid}", _PAGE.size)
        self._events = os.open(
            directory / f"events.{self._pid}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        self._rank, self._step, self._committed, self._at_ns = -1, 0, 0, 0
        self._phase = Phase.STARTING
        self.corrupt: Callable[[Phase], None] = lambda _: None
        """Called where the benchmark wants a wrong result."""
        self._publish()

    def phase(self, phase: Phase) -> None:
        """Enter ``phase``. Raises ``CrashError`` where the benchmark says so."""
        self._phase = phase
        struct.pack_into("<q", self._page, 0, phase)
        deed = self.control.deed(self._pid, self._rank, phase)
        if deed is None:
            return
        if deed is not Deed.RAISE_ALWAYS:
            self.control.crash(0, Phase.STARTING)
        self._write("crash", self._rank, self._step)
        if deed is Deed.ABORT:
            os.abort()
        if deed is Deed.CORRUPT:
            self.corrupt(phase)
            return
        while deed is Deed.STICK:
            time.sleep(1)
        raise CrashError(f"the benchmark lets rank {self._rank} fail in {phase.name}")

    def draw(self, rank: int, step: int, samples: Sequence[int]) -> None:
        """An attempt at ``step`` begins; call it before the samples have any effect."""
        self._rank = rank
        self._write("draw", rank, step, ",".join(map(str, samples)))

    def commit(self, rank: int, generation: int, step: int) -> None:
        """``step`` steps are applied, the last one in ``generation``."""
        self._at_ns = self._write("commit", rank, generation, step)
        self._rank, self._step, self._committed = rank, step, generation
        self._publish()

    def state(self, rank: int, step: int, digest: str) -> None:
        """The SHA-256 of the state after ``step`` steps."""
        self._write("state", rank, step, digest)

    def _write(self, kind: str, *fields: object) -> int:
        now = time.monotonic_ns()
        os.write(self._events, " ".join(map(str, (kind, now, *fields, "\n"))).encode())
        return now

    def _publish(self) -> None:
        _PAGE.pack_into(
            self._page, 0, self._phase, self._rank, self._step, self._committed, self._at_ns,
            0, 0, 0,
        )  # fmt: skip


def read_page(directory: Path, pid: int) -> PageState | None:
    """The page of a process; None while it has none."""
    try:
        data = (directory / f"page.{pid}").read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _PAGE.size:
        return None
    phase, rank, step, committed, at_ns, *_ = _PAGE.unpack_from(data)
    return PageState(Phase(phase), rank, step, committed, at_ns)


def _map(path: Path, size: int) -> mmap.mmap:
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(number, size)
        return mmap.mmap(number, size)
    finally:
        os.close(number)
