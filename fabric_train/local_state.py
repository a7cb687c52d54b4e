"""Rank-local state: what differs between ranks and so has no replica.

Random generators, the position in the data, and buffers that forward passes change: batch norm's
statistics are of this rank's batches, and DDP overwrites them with rank 0's only later.

Each rank gives all this to its agent *before* the last collective of a step. When a step has been
applied anywhere, the start of the next one is safe for every rank.
"""

from __future__ import annotations

import ctypes
import importlib
import pickle
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Stateful(Protocol):
    """What can say and take back its state, e.g. a sampler or a data loader."""

    def state_dict(self) -> dict[str, Any]:
        """All that ``load_state_dict`` needs."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be as the object was that gave ``state``."""


@dataclass(frozen=True, eq=False)
class RandomStates:
    """States of the random generators of this process, to be compared."""

    python: object
    torch: Tensor
    numpy: bytes

    @staticmethod
    def now() -> RandomStates:
        """Those at present."""
        loaded = sys.modules.get("numpy")
        numpy = pickle.dumps(loaded.random.get_state()) if loaded else b""
        return RandomStates(random.getstate(), torch.get_rng_state(), numpy)

    def same(self, other: RandomStates) -> bool:
        """No random number was drawn between the two."""
        return (
            self.python == other.python
            and torch.equal(self.torch, other.torch)
            and (self.numpy == other.numpy or not (self.numpy and other.numpy))
        )


class LocalStates:
    """Captures and restores random generators, ``parts`` by name, and given buffers."""

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = dict(parts)

    @property
    def parts(self) -> dict[str, Stateful]:
        """What is captured by its ``state_dict``, by name."""
        return dict(self._parts)

    def describe(self) -> dict[str, str]:
        """What is captured beside buffers, for people."""
        generators = ["python", "torch"]
        generators += ["numpy"] * ("numpy" in sys.modules)
        generators += ["cuda"] * torch.cuda.is_initialized()
        parts = {name: type(part).__qualname__ for name, part in self._parts.items()}
        return {"random generators": ", ".join(generators), **parts}

    def capture(self, buffers: Mapping[str, Tensor]) -> bytes:
        """All of it, and ``buffers``, as bytes for ``restore``."""
        # Tensors as plain bytes: pickled as tensors they take several times as long.
        state: dict[str, Any] = {
            "buffers": {name: _bytes_of(buffer) for name, buffer in buffers.items()},
            "python": random.getstate(),
            "torch": _bytes_of(torch.get_rng_state()),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
        }
        if "numpy" in sys.modules:
            state["numpy"] = sys.modules["numpy"].random.get_state()
        if torch.cuda.is_initialized():
            state["cuda"] = [_bytes_of(one) for one in torch.cuda.get_rng_state_all()]
        return pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)

    def restore(self, data: bytes, buffers: Mapping[str, Tensor]) -> None:
        """Take back what ``capture`` gave, here or in another process of the same job.

        Buffers that it contains are written into those of ``buffers``.
        """
        # From a rank of this job, over the agent's socket of this user: who could forge it already
        # runs code in the job.
        state = pickle.loads(data)  # noqa: S301
        random.setstate(state["python"])
        torch.set_rng_state(_tensor_of(state["torch"], torch.uint8))
        if "numpy" in state:
            importlib.import_module("numpy").random.set_state(state["numpy"])
        if "cuda" in state:
            torch.cuda.set_rng_state_all([_tensor_of(one, torch.uint8) for one in state["cuda"]])
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        for name, value in state["buffers"].items():
            buffer = buffers[name]
            buffer.copy_(_tensor_of(value, buffer.dtype).view(buffer.shape))


def _bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def _tensor_of(data: bytes, kind: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
