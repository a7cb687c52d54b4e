"""What an attempt may change before its gate, kept so that the attempt can be taken back."""

from __future__ import annotations

import torch
from torch import Tensor

from fabric_train.local_state import LocalStates
from fabric_train.state import ReplicatedState


class StepStart:
    """The start of the present step, of one process."""

    def __init__(self, state: ReplicatedState, local: LocalStates) -> None:
        self._state = state
        self._states = local
        self.local = b""  # rank-local state, as bytes
        self._scalars = b""
        self._buffers: dict[str, Tensor] = {}
        self._changing: set[str] = set()  # buffers that attempts change

    def capture(self) -> None:
        """Keep what is there now."""
        buffers = self._state.buffers()
        self.local = self._states.capture({})
        self._scalars = self._state.scalars()
        self._buffers = {name: one.detach().clone() for name, one in buffers.items()}

    def restore(self) -> None:
        """Take back what an attempt has changed, and drop its gradients."""
        buffers = self._state.buffers()
        for name, value in self._buffers.items():
            buffers[name].copy_(value)
        self._state.apply_scalars(self._scalars)
        self._states.restore(self.local, buffers)
        for optimizer in self._state.optimizers():
            optimizer.zero_grad(set_to_none=True)

    def capture_next(self) -> bytes:
        """Rank-local state as it is now, before the gate: with all buffers that attempts change."""
        buffers = self._state.buffers()
        for name, value in self._buffers.items():
            if name not in self._changing and not torch.equal(value, buffers[name]):
                self._changing.add(name)
        return self._states.capture({name: buffers[name] for name in sorted(self._changing)})
