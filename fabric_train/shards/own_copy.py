"""A rank's copy of its own state, to go back to."""

from __future__ import annotations

import torch
from torch import Tensor

from fabric_train.state.replicated import Manifest, ReplicatedState


class OwnCopy:
    """A copy of this process's own state, in host memory."""

    def __init__(self) -> None:
        self.step: int | None = None
        """Steps in it; None: there is none."""
        self._manifest: Manifest | None = None
        self._tensors: list[Tensor] = []

    def take(self, state: ReplicatedState, step: int) -> None:
        """Copy ``state``, which has ``step`` steps."""
        self.step = None
        manifest, tensors, _ = state.offer()
        if self._manifest is None or self._manifest.tensors != manifest.tensors:
            self._tensors = [_on_host(one) for one in tensors]
        self._manifest = manifest
        for mine, one in zip(self._tensors, tensors, strict=True):
            mine.copy_(one)
        self.step = step

    def forget(self) -> None:
        """It is of another rank, or void."""
        self.step = None

    def put_back(self, state: ReplicatedState) -> None:
        """Make ``state`` what it was, as far as it is tensors. Raises ``LayoutError``."""
        assert self._manifest is not None
        for one, mine in zip(state.accept(self._manifest), self._tensors, strict=True):
            one.copy_(mine)


def _on_host(tensor: Tensor) -> Tensor:
    pinned = tensor.device.type == "cuda"
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
