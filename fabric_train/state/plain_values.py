"""Values that go from one process to another: plain ones, as bytes. Nothing in them runs.

Numbers, texts, containers, tensors, arrays of numpy and a few classes of the standard library. The
bytes are pickle's, but writer and reader take no name that is not in one list: bytes of somebody
who is no rank of the job run no code. `carry` adds a class of the script to the list.

The writer refuses as well, so that a state that no replacement could read is refused in the healthy
job. Tensors that share memory, or that are views, arrive as tensors of their own.
"""

from __future__ import annotations

import collections
import ctypes
import datetime as dt
import decimal
import enum
import fractions
import importlib
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fabric_train.rules.loop import RuleError

MOST_BYTES = 1 << 30
"""Of one value: more is refused before memory is taken for it."""

_CLASSES: set[type] = {
    bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range,
    slice, collections.OrderedDict, collections.defaultdict, collections.Counter, collections.deque,
    dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone,
    decimal.Decimal, fractions.Fraction, torch.Size, torch.device,
}  # fmt: skip


class NotPlainError(RuleError):
    """A state has something in it that is not carried from one process to another."""


class ForeignValueError(Exception):
    """Bytes that `pack` has not written, or with a name that this process does not take."""


def carry(cls: type) -> type:
    """Let instances of ``cls``, a class without behaviour of its own when it is made, be carried.

    All ranks run the same script, so all of them have it on their list. Returns ``cls``.
    """
    if not isinstance(cls, type):
        raise TypeError(f"{cls!r} is no class")
    _CLASSES.add(cls)
    return cls


def pack(value: object) -> bytes:
    """``value`` as bytes. Raises ``NotPlainError``."""
    out = io.BytesIO()
    try:
        _Writer(out, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, RecursionError) as error:
        raise NotPlainError(f"a value is not carried to a replacement: {error}") from None
    return out.getvalue()


def unpack(data: bytes) -> Any:  # noqa: ANN401
    """What `pack` was given, in this process or in another. Raises ``ForeignValueError``."""
    if len(data) > MOST_BYTES:
        raise ForeignValueError(f"{len(data)} bytes, more than {MOST_BYTES}")
    try:
        return _Reader(io.BytesIO(data)).load()
    except ForeignValueError:
        raise
    except Exception as error:  # whatever such bytes make of pickle and of constructors
        raise ForeignValueError(f"no value: {type(error).__name__}: {error}"[:300]) from None


class _Writer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401
        kind = type(value)
        if kind in (Tensor, nn.Parameter):
            return _reduced_tensor(value)
        if isinstance(value, torch.dtype):
            return dtype_of, (str(value).removeprefix("torch."),)
        if kind in _CLASSES:
            # Python would write a member of an enumeration as a call of getattr.
            return (_member, (kind, value.name)) if isinstance(value, enum.Enum) else NotImplemented
        if _key(value) in _MAKERS or (isinstance(value, type) and value in _CLASSES):
            return NotImplemented
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            return _reduced_array(value)
        named = value if isinstance(value, type) else kind
        raise NotPlainError(
            f"a state has a {named.__module__}.{named.__qualname__} in it, which is not carried to "
            "a replacement: give numbers, texts, tensors, arrays, lists and dicts, or name its "
            "class by fabric_train.carry() before protect()"
        )


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        key = f"{module}.{name}"
        if key in _MAKERS:
            return _MAKERS[key]
        for cls in _CLASSES:
            if _key(cls) == key:
                return cls
        raise ForeignValueError(f"the name {key:.100} is not taken")


def _key(value: Any) -> str:  # noqa: ANN401
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


# Tensors and arrays: their bytes, and what it takes to make them again.


def _reduced_tensor(value: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    if value.layout != torch.strided or value.is_quantized:
        raise NotPlainError(
            f"a state has a tensor of layout {value.layout} in it, which is not carried to a "
            "replacement: give a dense one"
        )
    flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    body = ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())
    kind = str(value.dtype).removeprefix("torch.")
    own = type(value) is nn.Parameter
    return _tensor, (
        body, kind, tuple(value.shape), value.device.type, value.requires_grad, own
    )  # fmt: skip


def _tensor(
    body: bytes, kind: str, shape: tuple[int, ...], device: str, grad: bool, parameter: bool
) -> Tensor:
    dtype = dtype_of(kind)
    data = bytearray(body)
    made = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    made = made.reshape(shape).to(device)
    if parameter:
        return nn.Parameter(made, requires_grad=grad)
    return made.requires_grad_(grad)


def dtype_of(name: str) -> torch.dtype:
    """The type of elements of that name. Raises ``ForeignValueError``."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ForeignValueError(f"{name:.40} is no type of elements")
    return found


def _reduced_array(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:  # noqa: ANN401
    numpy = sys.modules["numpy"]
    array = numpy.ascontiguousarray(value)
    if array.dtype.hasobject or array.dtype.names is not None:
        raise NotPlainError(
            f"a state has an array of type {array.dtype} in it, which is not carried to a "
            "replacement: give arrays of numbers"
        )
    alone = not isinstance(value, numpy.ndarray)
    return _array, (array.tobytes(), array.dtype.str, tuple(value.shape), alone)


def _array(body: bytes, kind: str, shape: tuple[int, ...], alone: bool) -> Any:  # noqa: ANN401
    numpy = importlib.import_module("numpy")
    dtype = numpy.dtype(kind)
    if dtype.hasobject:
        raise ForeignValueError(f"an array of type {kind:.40}")
    made = numpy.frombuffer(bytearray(body), dtype=dtype).reshape(shape)
    return made[()] if alone else made


def _member(cls: type[enum.Enum], name: str) -> enum.Enum:
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise ForeignValueError(f"{cls!r:.100} is no enumeration")
    return cls[name]


_MAKERS: dict[str, Callable[..., Any]] = {
    _key(one): one for one in (_tensor, dtype_of, _array, _member)
}
