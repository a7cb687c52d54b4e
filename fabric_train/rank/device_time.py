"""Own time of a step on a device: from the gate to the last collective, by events in its stream.

With NCCL the host runs ahead of its device, and its own clock says nothing of the device's work.
DDP reduces on a stream of its own, so the stream of the backward pass waits for no other rank
before its last gradients are there. An event just before each collective marks how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class StreamEvent(Protocol):
    """``torch.cuda.Event`` with timing."""

    def record(self) -> None:
        """Happens when the current stream has done all that it was given until now."""

    def elapsed_time(self, end_event: Any) -> float:  # noqa: ANN401
        """Milliseconds from this one to ``end_event``. Raises ``RuntimeError`` before both."""


class DeviceTime:
    """Used by the training thread, and by the thread of a backward pass while that one waits."""

    def __init__(self, event: Callable[[], StreamEvent], capturing: Callable[[], bool]) -> None:
        """``event`` makes one; ``capturing``: the stream only records a graph."""
        self._event, self._capturing = event, capturing
        self._events: tuple[StreamEvent, StreamEvent] | None = None
        self._begun = self._marked = False

    def gate_left(self) -> None:
        """A step begins. Nothing is asked of a device that no collective was on yet."""
        self._begun, self._marked = self._events is not None, False
        if self._events is not None:
            self._events[0].record()

    def started(self, result: Sequence[Any]) -> None:
        """A collective begins that writes to ``result``: tensors, or lists of them."""
        first = result[0] if result else None
        if isinstance(first, list):
            first = first[0] if first else None
        if not getattr(first, "is_cuda", False) or self._capturing():
            return
        if self._events is None:
            self._events = self._event(), self._event()
        self._events[1].record()
        self._marked = True

    def seconds(self) -> float | None:
        """Of the step whose work on the device has ended; None: nothing of it was measured."""
        if self._events is None or not (self._begun and self._marked):
            return None
        try:
            return self._events[0].elapsed_time(self._events[1]) / 1000
        except RuntimeError:  # on another stream than the one that was waited for
            return None
