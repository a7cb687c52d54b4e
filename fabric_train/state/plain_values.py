"""Values that go from one process to another: plain ones, as bytes. Nothing in them runs.

Numbers, texts, containers, tensors, arrays of numpy and a few classes of the standard library. The
bytes are pickle's, but writer and reader take no name that is not in one list, and the reader hands
pickle nothing that could be changed: bytes of somebody who is no rank of the job run no code, and
change no class. `carry` adds a class of the script.

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
import inspect
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

_CLASSES: frozenset[type] = frozenset({
    bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range,
    slice, collections.OrderedDict, collections.defaultdict, collections.deque, dt.datetime,
    dt.date, dt.time, dt.timedelta, dt.timezone, decimal.Decimal, torch.Size, torch.device,
})  # fmt: skip
"""None of them takes an attribute."""
_carried: dict[str, type] = {}
"""Classes of `carry`, by module and name."""


class NotPlainError(RuleError):
    """A state has something in it that is not carried from one process to another."""


class ForeignValueError(Exception):
    """Bytes that `pack` has not written, or with a name that this process does not take."""


def carry(cls: type) -> type:
    """Let instances of ``cls``, a dataclass or an enumeration, be carried; returns ``cls``.

    An instance is made from its attributes, without a call of the class. All ranks run the same
    script, so all of them know it. Raises ``TypeError`` for a class whose instances have more.
    """
    if not isinstance(cls, type):
        raise TypeError(f"{cls!r} is no class")
    new: object = cls.__new__
    plain = new is object.__new__ and cls.__dictoffset__ and cls.__itemsize__ == 0
    if not (plain or issubclass(cls, enum.Enum)):
        raise TypeError(
            f"{cls.__qualname__}: only a class is carried whose instances are their attributes "
            "(no __slots__, no base class such as dict), or an enumeration"
        )
    _carried[_key(cls)] = cls
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
        if kind in _CLASSES or (isinstance(value, type) and value in _CLASSES):
            return NotImplemented
        if inspect.isfunction(value) and value in _MAKERS.values():
            return NotImplemented
        if kind is collections.Counter:
            return _counter, (dict(value),)
        if kind is fractions.Fraction:
            return _fraction, (value.numerator, value.denominator)
        if _carried.get(_key(kind)) is kind:
            if isinstance(value, enum.Enum):
                return _member, (_key(kind), value.name)
            return _instance, (_key(kind), dict(vars(value)))
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
            maker: Any = _MAKERS[key]
            return maker.__call__  # a function would take attributes
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


def _counter(counts: dict[Any, int]) -> collections.Counter[Any]:
    return collections.Counter(counts)


def _fraction(numerator: int, denominator: int) -> fractions.Fraction:
    return fractions.Fraction(numerator, denominator)


# Instances of classes that are carried.


def _class_of(key: str) -> type:
    if (cls := _carried.get(key)) is None:
        raise ForeignValueError(f"the class {key:.100} is not carried")
    return cls


def _member(key: str, name: str) -> enum.Enum:
    cls = _class_of(key)
    if not issubclass(cls, enum.Enum):
        raise ForeignValueError(f"{key:.100} is no enumeration")
    return cls[name]


def _instance(key: str, attributes: dict[str, Any]) -> object:
    cls = _class_of(key)
    if issubclass(cls, enum.Enum):
        raise ForeignValueError(f"{key:.100} is an enumeration")
    made = object.__new__(cls)
    vars(made).update(attributes)
    return made


_MAKERS: dict[str, Callable[..., Any]] = {
    _key(one): one for one in (_tensor, dtype_of, _array, _counter, _fraction, _member, _instance)
}
