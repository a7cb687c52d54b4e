"""How far a process is, in memory that its agent reads when it has to know: nobody is woken.

The process writes whenever it has finished a step or a collective, for about a microsecond each,
and its newest window of own times every 12 s.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from dataclasses import dataclass

from fabric_train.messages.step_window import BLOCKS, StepWindow

VARIABLE = "FABRIC_TRAIN_PROGRESS"
_FORM = struct.Struct("<qqq")  # step, collectives, alone since; each is written by itself
_WINDOW = struct.Struct(f"<{4 + BLOCKS}q")
_CHECK = struct.Struct("<L")  # CRC-32 of the window: it may be half written
_WINDOW_AT = _FORM.size
_CHECK_AT = _WINDOW_AT + _WINDOW.size
_MORE = struct.Struct("<qqq")  # heartbeat, paused since, longest step; each is written by itself
_MORE_AT = _CHECK_AT + _CHECK.size
_SIZE = _MORE_AT + _MORE.size

_IN_FORM = 3
_BEAT, _PAUSED, _LONGEST = range(_IN_FORM, _IN_FORM + 3)
"""Places behind those of `_FORM`."""


@dataclass(frozen=True)
class Finished:
    """The newest step that a process has applied, and how many collectives it has finished.

    Only those count that no rank finishes before all have given their part. ``window``: own times
    of its newest window; None: there is none, or it is being written. ``alone_since``: when it
    began to work by itself, nanoseconds, monotonic; 0: it waits for others. ``stopped``: by a
    signal, as its agent sees. ``beat``: its last heartbeat, nanoseconds, monotonic, which takes its
    interpreter's lock; 0: it has none before its first step. ``paused``: since when it says that it
    does something long by itself; 0: it does not. ``longest_s``: its own time of its longest step.
    """

    step: int
    collectives: int
    window: StepWindow | None = None
    alone_since: int = 0
    stopped: bool = False
    beat: int = 0
    paused: int = 0
    longest_s: float = 0.0


def create(process: str) -> int:
    """The descriptor of an empty memory for ``process``. Raises ``OSError``."""
    memory = os.memfd_create(f"fabric-progress-{process}", os.MFD_CLOEXEC)
    os.ftruncate(memory, _SIZE)
    return memory


def read(memory: int) -> Finished:
    """What the process has written; zeros where it has written nothing, or has cut its memory."""
    data = os.pread(memory, _SIZE, 0).ljust(_SIZE, b"\0")
    step, collectives, alone_since = _FORM.unpack_from(data)
    beat, paused, longest_ns = _MORE.unpack_from(data, _MORE_AT)
    return Finished(
        step, collectives, _read_window(data), alone_since,
        beat=beat, paused=paused, longest_s=max(0, longest_ns) / 1e9,
    )  # fmt: skip


def _read_window(data: bytes) -> StepWindow | None:
    body = data[_WINDOW_AT:_CHECK_AT]
    if _CHECK.unpack_from(data, _CHECK_AT)[0] != zlib.crc32(body):
        return None
    generation, last, steps, wall_ns, *blocks_ns = _WINDOW.unpack(body)
    window = StepWindow(generation, last, steps, wall_ns, blocks_ns)
    return window if window.is_sound else None


class ProgressMemory:
    """The process's side. Without a memory, as in a job on one machine, it counts for nobody."""

    def __init__(self, descriptor: str = "") -> None:
        """``descriptor``: the value of ``VARIABLE``; "": there is none."""
        self._map: mmap.mmap | bytearray = bytearray(_SIZE)
        if descriptor.isdigit():
            # An agent of the version before has made it for steps and collectives alone.
            size = min(_SIZE, os.fstat(int(descriptor)).st_size)
            self._map = mmap.mmap(int(descriptor), size)
            os.close(int(descriptor))  # what this process starts needs none
        self._collectives = 0

    def stepped(self, step: int) -> None:
        """``step`` steps are applied."""
        struct.pack_into("<q", self._map, 0, step)

    def collective_ended(self) -> None:
        """One more collective is finished; from any thread, as each count is about right."""
        self._collectives += 1
        struct.pack_into("<q", self._map, 8, self._collectives)

    def alone(self, since_ns: int) -> None:
        """Since when it works by itself; 0: it waits. From any thread."""
        self._put(2, since_ns)

    def beat(self, now_ns: int) -> None:
        """Its interpreter runs. From any thread."""
        self._put(_BEAT, now_ns)

    def paused(self, since_ns: int) -> None:
        """Since when it does something long by itself, as it says; 0: it does not."""
        self._put(_PAUSED, since_ns)

    def longest(self, own_ns: int) -> None:
        """Own time of the longest step."""
        self._put(_LONGEST, own_ns)

    def _put(self, place: int, value: int) -> None:
        at = 8 * place if place < _IN_FORM else _MORE_AT + 8 * (place - _IN_FORM)
        if len(self._map) == _SIZE:
            struct.pack_into("<q", self._map, at, value)

    def measured(self, window: StepWindow) -> None:
        """``window`` is the newest one."""
        if len(self._map) < _SIZE:
            return
        body = _WINDOW.pack(
            window.generation, window.last, window.steps, window.wall_ns, *window.blocks_ns
        )
        self._map[_WINDOW_AT:_MORE_AT] = body + _CHECK.pack(zlib.crc32(body))
