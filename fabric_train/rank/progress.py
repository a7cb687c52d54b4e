"""Tells the agent how far this process is: now and then, and at once when it goes on.

And how long this rank works by itself in a step: see ``own_time``; and whether it does: ``pulse``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from fabric_train.groups.collectives import FabricGroup, GenerationGroup
from fabric_train.messages.link import AgentLink
from fabric_train.messages.process import Committed
from fabric_train.messages.progress_memory import VARIABLE, ProgressMemory
from fabric_train.rank.device_time import DeviceTime, StreamEvent
from fabric_train.rank.heartbeat import Heartbeat, Pauses
from fabric_train.rank.own_time import OwnTime, WindowLog
from fabric_train.rank.pulse import Pulse

_EVERY_S = 1.0


class Progress:
    """What one process has said. Used by its training thread."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._memory = ProgressMemory(os.environ.get(VARIABLE, ""))
        self._heartbeat = Heartbeat(self._memory)
        self.pauses = Pauses(self._memory)
        self._longest_s = 0.0
        self._said_at = 0.0
        self._at_once = True
        self._own = OwnTime()
        self._pulse = Pulse(self._memory.alone)
        self._windows = WindowLog(1)
        self._step_s: float | None = None
        self._lock = threading.Lock()
        self._processor = time.pthread_getcpuclockid(threading.get_ident())
        self._used_s = 0.0
        self._device = DeviceTime(_event, lambda: torch.cuda.is_current_stream_capturing())

    def watch(self, group: FabricGroup) -> None:
        """Count the collectives of ``group``, and measure how long this rank waits in them."""
        self._windows = WindowLog(group.size())
        group.on_joint_end = self._memory.collective_ended
        group.on_start, group.on_end, group.on_settle = self._started, self._ended, self._reached

    def _started(self, result: Sequence[Any]) -> None:
        self._device.started(result)
        with self._lock:
            self._own.started(time.monotonic(), self._used())
            self._pulse.started()

    def _ended(self) -> None:
        with self._lock:
            self._own.ended(time.monotonic(), self._used())
            self._pulse.ended(time.monotonic_ns())

    def _reached(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._step_s = self._own.gate_reached(now, self._used())
            self._pulse.waits()

    def _used(self) -> float:
        """Processor time of the training thread; what it was, once the thread has ended."""
        with contextlib.suppress(OSError):  # no collective may fail to end for that
            self._used_s = time.clock_gettime(self._processor)
        return self._used_s

    def resumed(self) -> None:
        """The next step is the first one of a generation."""
        self._at_once = True
        with self._lock:
            self._own.reset()
            self._pulse.works(time.monotonic_ns())
        self._windows.reset()

    def recovers(self) -> None:
        """This rank waits for others, until it is `resumed`."""
        with self._lock:
            self._pulse.waits()

    def vote(
        self, inner: GenerationGroup, number: int, digest: int | None, step: int
    ) -> tuple[int, bool]:
        """`GenerationGroup.vote` on the next step after ``step``, and on the end of a window.

        Raises ``RuntimeError``.
        """
        agreed, equal, ends = inner.vote(
            number, digest, ends=self._windows.wants_end(time.monotonic())
        )
        now = time.monotonic()
        self._heartbeat.start()
        own, self._step_s = self._step_s, None
        self._note_longest(own, self.pauses.take_s())
        if own is not None:
            own = self._device.seconds() or own
        window = self._windows.add(own, inner.generation, step + 1, now, ends=ends)
        if window is not None:
            self._memory.measured(window)
        with self._lock:
            self._own.gate_left(now)
            self._pulse.works(time.monotonic_ns())
        self._device.gate_left()
        return agreed, equal

    def _note_longest(self, own_s: float | None, paused_s: float) -> None:
        if own_s is not None and own_s - paused_s > self._longest_s:
            self._longest_s = own_s - paused_s
            self._memory.longest(round(self._longest_s * 1e9))

    def committed(self, generation: int, step: int) -> None:
        """This process has applied ``step`` steps, the last one in ``generation``.

        Raises ``AgentLostError``.
        """
        self._memory.stepped(step)
        now = time.monotonic()
        if self._at_once or now - self._said_at > _EVERY_S:
            self._link.send(Committed(generation, step))
            self._said_at, self._at_once = now, False


def _event() -> StreamEvent:
    event: StreamEvent = torch.cuda.Event(enable_timing=True)
    return event
