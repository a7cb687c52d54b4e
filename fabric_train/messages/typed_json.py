"""JSON values of dataclasses and back: exactly the described fields and types, or an error. Pure.

Fields may be ``str``, ``bool``, ``int`` of 64 bits, another dataclass, lists and dicts of these,
and each of them ``| None``. A class with a method ``from_json(value, read)`` reads its own values;
``read`` is what it would be read by otherwise. One with ``to_json()`` writes its own.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Reader = Callable[[object], Any]


class DocumentError(Exception):
    """Data that is no document of this version. The text names the field."""


class FieldError(Exception):
    """What is wrong with a value. ``path`` grows on the way out: ``.members[3].host``."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.path = ""

    def within(self, step: str) -> None:
        """The value is at ``step`` of another one."""
        self.path = step + self.path


def read(cls: type[T], value: object) -> T:
    """``value`` as ``cls``. Raises ``DocumentError``."""
    hint: Any = cls
    try:
        found: T = _reader(hint)(value)
    except FieldError as error:
        raise DocumentError(f"{cls.__name__}{error.path} {error}") from None
    return found


def write(document: Any) -> dict[str, Any]:  # noqa: ANN401
    """The JSON value of a dataclass, by its fields."""
    cls: Any = type(document)
    return {name: _value_of(getattr(document, name)) for name in _form(cls)[0]}


def _value_of(value: Any) -> Any:  # noqa: ANN401
    kind = type(value)
    if kind is str or kind is int or value is None or kind is bool:
        return value
    if kind is list:
        return [one if type(one) is str else _value_of(one) for one in value]
    if kind is dict:
        return {name: _value_of(one) for name, one in value.items()}
    return value.to_json() if hasattr(kind, "to_json") else write(value)


@functools.cache
def _form(cls: Any) -> tuple[tuple[str, ...], frozenset[str]]:  # noqa: ANN401
    """Names of all fields of a class, and of those that have to be there."""
    fields = dataclasses.fields(cls)
    needed = {
        one.name
        for one in fields
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    }
    return tuple(one.name for one in fields), frozenset(needed)


@functools.cache
def _reader(hint: Any) -> Reader:  # noqa: ANN401
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        (other,) = (one for one in inner if one is not types.NoneType)
        known = _reader(other)
        return lambda value: None if value is None else known(value)
    if origin is list:
        return _texts if inner[0] is str else functools.partial(_list, _reader(inner[0]))
    if origin is dict:
        return functools.partial(_dict, _reader(inner[1]))
    if dataclasses.is_dataclass(hint):
        plain = _class_reader(hint)
        own = getattr(hint, "from_json", None)
        return plain if own is None else functools.partial(own, read=plain)
    return functools.partial(_plain, hint)


def _plain(hint: type[Any], value: object) -> object:
    if type(value) is not hint or (hint is int and not -(1 << 63) < value < 1 << 63):  # type: ignore[operator]
        raise FieldError(f"is {value!r:.80}, not {hint.__name__}")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise FieldError(f"is {value!r:.80}, not list")
    for i, one in enumerate(value):
        if type(one) is not str:
            error = FieldError(f"is {one!r:.80}, not str")
            error.within(f"[{i}]")
            raise error
    return list(value)


def _list(known: Reader, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise FieldError(f"is {value!r:.80}, not list")
    found: list[Any] = []
    try:
        for one in value:
            found.append(known(one))  # noqa: PERF401 - how many there are says where it is wrong
    except FieldError as error:
        error.within(f"[{len(found)}]")
        raise
    return found


def _dict(known: Reader, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(f"is {value!r:.80}, not dict")
    found: dict[str, Any] = {}
    for name, one in value.items():
        try:
            found[str(name)] = known(one)
        except FieldError as error:
            error.within(f".{name}")
            raise
    return found


def _class_reader(cls: Any) -> Reader:  # noqa: ANN401
    readers: dict[str, Reader] = {}

    def read_fields(value: object) -> Any:  # noqa: ANN401
        if not isinstance(value, dict):
            raise FieldError(f"is no object: {value!r:.80}")
        if not readers:  # When all of a module's classes are there.
            readers.update({k: _reader(one) for k, one in typing.get_type_hints(cls).items()})
        needed = _form(cls)[1]
        if not (value.keys() <= readers.keys() and needed <= value.keys()):
            wrong = {*map(str, value.keys() - readers.keys()), *(needed - value.keys())}
            raise FieldError(f"has missing or unknown fields: {', '.join(sorted(wrong)):.200}")
        found: dict[str, Any] = {}
        name = ""
        try:
            for name, one in value.items():
                found[name] = readers[name](one)
        except FieldError as error:
            error.within(f".{name}")
            raise
        return cls(**found)

    return read_fields
