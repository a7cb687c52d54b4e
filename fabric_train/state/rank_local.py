"""Rank-local state: what differs between ranks and so has no replica.

Random generators, the position in the data, and buffers that forward passes change: batch norm's
statistics are of this rank's batches, and DDP overwrites them with rank 0's only later.

Each rank gives all this to its agent *before* the last collective of a step. When a step has been
applied anywhere, the start of the next one is safe for every rank.
"""

from __future__ import annotations

import ctypes
import importlib
import random
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from fabric_train.state.plain_values import ForeignValueError, pack, unpack


class Stateful(Protocol):
    """What can say and take back its state, e.g. a sampler or a data loader."""

    def state_dict(self) -> dict[str, Any]:
        """All that ``load_state_dict`` needs."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be as the object was that gave ``state``."""


@dataclass(frozen=True, eq=False)
class RandomStates:
    """States of the random generators of this process, to be compared and kept."""

    python: object
    torch: Tensor
    numpy: bytes  # packed; empty: numpy is not loaded
    cuda: tuple[Tensor, ...]  # of each device; empty where CUDA is not in use
    numpy_memory: bytes  # see ``_NumpyMemory``; empty: whether ``numpy`` holds needs all of it

    @staticmethod
    def now() -> RandomStates:
        """Those at present."""
        numpy, memory = _numpy_now()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ()
        return RandomStates(random.getstate(), torch.get_rng_state(), numpy, tuple(cuda), memory)

    def same(self, other: RandomStates) -> bool:
        """No random number was drawn between the two."""
        return (
            self.python == other.python
            and torch.equal(self.torch, other.torch)
            and _same_tensors(self.cuda, other.cuda)
            and (self.numpy == other.numpy or not (self.numpy and other.numpy))
        )

    def is_now(self) -> bool:
        """No random number was drawn since. Cheaper than ``now`` and ``same``."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ()
        return (
            self.python == random.getstate()
            and torch.equal(self.torch, torch.get_rng_state())
            and _same_tensors(self.cuda, cuda)
            and self._is_numpy_now()
        )

    def _is_numpy_now(self) -> bool:
        loaded = sys.modules.get("numpy")
        if loaded is None or not self.numpy:
            return True  # whoever has loaded it since has its own reason to seed it
        if self.numpy_memory and self.numpy_memory == _NUMPY_MEMORY.read(loaded):
            return True
        return self.numpy == _numpy_now()[0]


@dataclass(frozen=True)
class LocalContent:
    """Rank-local state of one process; random generators and parts are packed, tensors bytes."""

    buffers: dict[str, bytes]
    settings: dict[str, Any]
    python: bytes
    torch: bytes
    numpy: bytes
    cuda: list[bytes]
    parts: bytes
    late: bool

    def without(self, names: Container[str]) -> LocalContent:
        """The same without these buffers and settings."""
        return replace(
            self,
            buffers={name: one for name, one in self.buffers.items() if name not in names},
            settings={name: one for name, one in self.settings.items() if name not in names},
        )


class LocalStates:
    """Captures and restores random generators, ``parts`` by name, and given buffers."""

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = dict(parts)
        self._python: tuple[object, bytes] | None = None  # the last one, encoded

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

    def parts_now(self) -> bytes:
        """The state of each part, to be compared and for ``encode``."""
        states = {name: part.state_dict() for name, part in self._parts.items()}
        return pack(states)

    def capture(self, buffers: Mapping[str, Tensor]) -> bytes:
        """All of it, and ``buffers``, as bytes for ``restore``."""
        return self.encode(RandomStates.now(), self.parts_now(), buffers)

    def encode(
        self,
        generators: RandomStates,
        parts: bytes,
        buffers: Mapping[str, Tensor],
        settings: Mapping[str, Any] | None = None,
        *,
        late: bool = False,
    ) -> bytes:
        """What was captured before, ``buffers`` and ``settings``, as bytes for ``decode``.

        ``late``: it was captured at the start of the step, and not already at the gate before.
        """
        # Tensors as plain bytes: packed as tensors they take several times as long.
        state = LocalContent(
            {name: _bytes_of(buffer) for name, buffer in buffers.items()},
            dict(settings or {}),
            self._encode_python(generators.python),
            _bytes_of(generators.torch),
            generators.numpy,
            [_bytes_of(one) for one in generators.cuda],
            parts,
            late,
        )
        return pack(vars(state))

    @staticmethod
    def decode(data: bytes) -> LocalContent:
        """What ``encode`` was given, here or in another process. Raises ``ForeignValueError``."""
        try:
            return LocalContent(**unpack(data))
        except TypeError:
            raise ForeignValueError("no rank-local state") from None

    def _encode_python(self, state: object) -> bytes:
        """625 integers, which seldom change."""
        if self._python is None or self._python[0] != state:
            self._python = state, pack(state)
        return self._python[1]

    def restore(self, data: bytes, buffers: Mapping[str, Tensor]) -> None:
        """Take back what ``capture`` gave, here or in another process of the same job.

        Buffers that it contains are written into those of ``buffers``.
        """
        self.restore_content(self.decode(data), buffers)

    def restore_content(self, content: LocalContent, buffers: Mapping[str, Tensor]) -> None:
        """As ``restore``; the settings are left to the caller."""
        random.setstate(unpack(content.python))
        torch.set_rng_state(_tensor_of(content.torch, torch.uint8))
        if content.numpy:
            importlib.import_module("numpy").random.set_state(unpack(content.numpy))
        if content.cuda:
            torch.cuda.set_rng_state_all([_tensor_of(one, torch.uint8) for one in content.cuda])
        parts = unpack(content.parts)
        for name, part in self._parts.items():
            part.load_state_dict(parts[name])
        for name, value in content.buffers.items():
            buffer = buffers[name]
            buffer.copy_(_tensor_of(value, buffer.dtype).view(buffer.shape))


def _bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def _tensor_of(data: bytes, kind: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)


def _same_tensors(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def _numpy_now() -> tuple[bytes, bytes]:
    """``numpy`` and ``numpy_memory`` of ``RandomStates``."""
    loaded = sys.modules.get("numpy")
    if loaded is None:
        return b"", b""
    state = loaded.random.get_state(legacy=False)
    # A normal number in reserve is drawn without the generator: its memory stays as it is.
    memory = b"" if state.get("has_gauss", 1) else _NUMPY_MEMORY.read(loaded)
    return pack(state), memory


_MERSENNE_BYTES = 624 * 4 + 4  # the state's words, then the place in them, as an int


class _NumpyMemory:
    """The state of numpy's global generator as it is in memory.

    Numpy takes 40 us to give it as an array.
    """

    def __init__(self) -> None:
        self._generator: Any = None  # for which the address is known
        self._address = 0

    def read(self, numpy: ModuleType) -> bytes:
        """Those bytes; empty where they are not known."""
        get = getattr(numpy.random, "get_bit_generator", None)
        generator = get() if get is not None else None
        if generator is None or type(generator).__name__ != "MT19937":
            return b""
        if generator is not self._generator:
            self._generator, self._address = generator, generator.ctypes.state_address
            state = numpy.random.get_state(legacy=False)["state"]
            place = int(state["pos"]).to_bytes(4, sys.byteorder)
            expected = state["key"].astype("uint32").tobytes() + place
            if ctypes.string_at(self._address, _MERSENNE_BYTES) != expected:
                self._address = 0  # another layout than that of numpy 1.17 to 2
        return ctypes.string_at(self._address, _MERSENNE_BYTES) if self._address else b""


_NUMPY_MEMORY = _NumpyMemory()
