"""Netlink messages as bytes: split and decoded exactly, by pyroute2's message classes. Pure.

The messages are declared as pyroute2 classes (`telemetry.counters.messages`), which also encode the
requests. Decoding is our own: pyroute2 takes about 15 µs for an attribute, a sweep of eight links
has a thousand of them each second, and it lets broken attributes pass in silence. `layout` reads a
class's ``nla_map`` once; `decode` gives what pyroute2's ``msg['attrs']`` would hold.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from telemetry.counters.types import CounterError

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
ATTRIBUTE = struct.Struct("=HH")  # length, type
NLMSG_ERROR, NLMSG_DONE = 2, 3
TYPE_MASK = 0x3FFF
"""Without NLA_F_NESTED and NLA_F_NET_BYTEORDER."""

_NUMBERS = {
    name: struct.Struct(code)
    for name, code in (("uint8", "=B"), ("uint16", "=H"), ("uint32", "=I"), ("uint64", "=Q"))
}
Attributes = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Message:
    """One netlink message: its type, flags, sequence and what follows the header."""

    type: int
    flags: int
    sequence: int
    payload: memoryview


class Field(NamedTuple):
    """One attribute of a layout: its name, and a number's format, a nested layout or a kind."""

    name: str
    kind: str
    number: struct.Struct | None
    nested: Layout | None


Layout = Mapping[int, Field]


def layout(message: type[Any], skip: Collection[str] = ()) -> Layout:
    """The layout of a pyroute2 message or attribute class.

    Args:
        message: the class.
        skip: names of attributes that nobody wants; they are left out.

    Raises:
        TypeError: it uses a kind of attribute that is not known here.
    """
    out: dict[int, Field] = {}
    for position, item in enumerate(message.nla_map):
        index, name, kind = item if isinstance(item[0], int) else (position, *item)
        if name in skip:
            continue
        nested = getattr(message, kind, None) if kind not in _KINDS else None
        if nested is None and kind not in _KINDS:
            raise TypeError(f"{message.__name__}: attribute of kind {kind}")
        out[index] = Field(
            name, kind, _NUMBERS.get(kind), layout(nested, skip) if nested is not None else None
        )
    return out


_KINDS = frozenset([*_NUMBERS, "none", "asciiz", "cdata", "flag", "hex", "uint"])


def messages(data: bytes) -> Iterator[Message]:
    """The messages of one datagram.

    Raises:
        CounterError: a header or length does not fit.
    """
    view = memoryview(data)
    at, end = 0, len(data)
    while at < end:
        if end - at < HEADER.size:
            raise CounterError(f"netlink: {end - at} bytes left for a header")
        length, kind, flags, sequence, _ = HEADER.unpack_from(data, at)
        if length < HEADER.size or length > end - at:
            raise CounterError(f"netlink: message of {length} bytes in {end - at}")
        yield Message(kind, flags, sequence, view[at + HEADER.size : at + length])
        at += (length + 3) & ~3


def error_code(message: Message) -> int:
    """The errno of an NLMSG_ERROR or NLMSG_DONE; 0: an acknowledgement.

    Raises:
        CounterError: it is too short.
    """
    if len(message.payload) < 4:
        raise CounterError("netlink: error message without a code")
    code: int = struct.unpack_from("=i", message.payload)[0]
    return -code


def decode(data: memoryview | bytes, fields: Layout) -> Attributes:
    """The attributes of a message or nest, in order; unknown ones are left out.

    Args:
        data: after the fixed header.
        fields: what is known of them.

    Raises:
        CounterError: an attribute's length does not fit it, its nest or its kind.
    """
    return _decode(data, 0, len(data), fields)


def _decode(data: memoryview | bytes, at: int, end: int, fields: Layout) -> Attributes:
    out: Attributes = []
    unpack = ATTRIBUTE.unpack_from
    while at < end:
        if end - at < 4:
            raise CounterError(f"netlink: {end - at} bytes left for an attribute")
        length, kind = unpack(data, at)
        if length < 4 or length > end - at:
            raise CounterError(f"netlink: attribute of {length} bytes in {end - at}")
        field = fields.get(kind & TYPE_MASK)
        if field is not None:
            name, what, number, nested = field
            if number is not None:
                if length - 4 != number.size:
                    raise CounterError(f"{name}: {length - 4} bytes")
                out.append((name, number.unpack_from(data, at + 4)[0]))
            elif nested is not None:
                out.append((name, _decode(data, at + 4, at + length, nested)))
            elif what != "none":
                out.append((name, _other(name, what, bytes(data[at + 4 : at + length]))))
        at += (length + 3) & ~3
    return out


def first(attributes: Attributes, name: str) -> Any:  # noqa: ANN401 - as declared
    """The value of the first attribute of that name; None: there is none."""
    return next((value for key, value in attributes if key == name), None)


def unsigned(name: str, value: bytes) -> int:
    """A ``uint`` attribute: 4 or 8 bytes, as the number needs.

    Raises:
        CounterError: it has another size.
    """
    if len(value) not in (4, 8):
        raise CounterError(f"{name}: {len(value)} bytes")
    return int.from_bytes(value, sys.byteorder)


def _other(name: str, kind: str, value: bytes) -> str | int | bytes:
    if kind == "asciiz":
        return value.split(b"\0", 1)[0].decode("utf-8", "replace")
    if kind == "uint":
        return unsigned(name, value)
    return True if kind == "flag" else value
