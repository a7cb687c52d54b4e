"""What an attempt may change before its gate, kept so that the attempt can be taken back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fabric_train.state.rank_local import LocalStates, RandomStates
from fabric_train.state.replicated import ReplicatedState


class DrawnError(RuntimeError):
    """Random numbers were drawn where a replacement would not draw them."""


@dataclass(frozen=True)
class _Next:
    """Rank-local state at the start of the next step, as it was at some moment of an attempt."""

    generators: RandomStates
    parts: bytes
    buffers: dict[str, Tensor]


class StepStart:
    """The start of the present step, of one process, and that of the next one."""

    def __init__(self, state: ReplicatedState, local: LocalStates) -> None:
        self._state = state
        self._states = local
        self._generators: RandomStates | None = None
        self._parts = b""
        self._scalars = b""
        self._buffers: dict[str, Tensor] = {}
        self._changing: set[str] = set()  # buffers that attempts change
        self._next: _Next | None = None

    def capture(self) -> None:
        """Keep what is there now.

        Raises ``DrawnError`` where random numbers were drawn since the last attempt's gate.
        """
        at_gate, self._next = self._next, None
        if at_gate is None:
            self._generators = RandomStates.now()
        elif at_gate.generators.is_now():
            self._generators = at_gate.generators
        else:
            raise DrawnError(
                "random numbers were drawn between optimizer.step() and the next step: a "
                "replacement would not draw them. Draw them before optimizer.step()"
            )
        self._parts = self._states.parts_now()
        self._scalars = self._state.scalars()
        buffers = self._state.buffers()
        self._buffers = {name: one.detach().clone() for name, one in buffers.items()}

    def local(self) -> bytes:
        """Rank-local state as it was captured, without buffers: no attempt has changed them."""
        assert self._generators is not None
        return self._states.encode(self._generators, self._parts, {})

    def restore(self) -> None:
        """Take back what an attempt has changed, and drop its gradients."""
        buffers = self._state.buffers()
        for name, value in self._buffers.items():
            buffers[name].copy_(value)
        self._state.apply_scalars(self._scalars)
        self._states.restore(self.local(), buffers)
        for optimizer in self._state.optimizers():
            optimizer.zero_grad(set_to_none=True)

    def capture_next(self) -> bytes:
        """Rank-local state as it is now, before the gate: with all buffers that attempts change."""
        buffers = self._state.buffers()
        for name, value in self._buffers.items():
            if name not in self._changing and not torch.equal(value, buffers[name]):
                self._changing.add(name)
        changed = {name: buffers[name].detach().clone() for name in sorted(self._changing)}
        self._next = _Next(RandomStates.now(), self._states.parts_now(), changed)
        return self._states.encode(self._next.generators, self._next.parts, changed)

    def is_captured(self) -> bool:
        """What ``capture_next`` gave is rank-local state as it is now, too."""
        known = self._next
        if known is None or not known.generators.is_now():
            return False
        if known.parts != self._states.parts_now():
            return False
        buffers = self._state.buffers()
        return all(
            torch.equal(known.buffers.get(name, before), buffers[name])
            for name, before in self._buffers.items()
        )

    def forget_next(self) -> None:
        """There was no gate: this attempt does not count."""
        self._next = None
