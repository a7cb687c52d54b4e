"""Messages as frames of a byte stream: between a process and its agent, and between agents.

A frame is two little-endian uint32, the length of the JSON header and of the binary body, then
both. The header is one object: ``{"kind": "hello", …}`` with the fields of the class of that name.
The body is the ``body`` field of the classes that have one.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import types
import typing
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

MAX_HEADER = 1 << 20
MAX_BODY = 64 << 20
_LENGTHS = struct.Struct("<II")

M = TypeVar("M")


class MessageError(Exception):
    """Bytes that are no message of this version. The text says what is wrong with them."""


class Codec(Generic[M]):
    """Encodes and decodes the dataclasses of ``union``, a union type."""

    def __init__(self, union: Any) -> None:  # noqa: ANN401
        classes: tuple[type, ...] = typing.get_args(union)
        self._classes = {_kind(cls): cls for cls in classes}
        self._hints = {cls: typing.get_type_hints(cls) for cls in classes}

    def encode(self, message: M) -> bytes:
        """One frame. Raises ``MessageError`` when header or body is over its limit."""
        kind = _kind(type(message))
        names = [field.name for field in dataclasses.fields(typing.cast("Any", message))]
        fields = {name: getattr(message, name) for name in names}
        body: bytes = fields.pop("body", b"")
        header = json.dumps({"kind": kind, **fields}).encode()
        if len(header) > MAX_HEADER or len(body) > MAX_BODY:
            raise MessageError(
                f"{kind}: header of {len(header)} B, body of {len(body)} B: "
                f"at most {MAX_HEADER} and {MAX_BODY}"
            )
        return _LENGTHS.pack(len(header), len(body)) + header + body

    def decode(self, header: bytes, body: bytes) -> M:
        """The message of one frame. Raises ``MessageError``."""
        try:
            fields = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise MessageError(f"the header is no JSON: {error}") from None
        if not isinstance(fields, dict):
            raise MessageError("the header is no object")
        kind = fields.pop("kind", None)
        cls = self._classes.get(kind) if isinstance(kind, str) else None
        if cls is None:
            raise MessageError(f"unknown kind {kind!r:.80}")
        hints = self._hints[cls]
        if "body" in hints:
            fields["body"] = body
        elif body:
            raise MessageError(f"{kind} has no body")
        if fields.keys() != hints.keys():
            wrong = ", ".join(sorted(fields.keys() ^ hints.keys()))
            raise MessageError(f"{kind}: missing or unknown fields: {wrong:.200}")
        for name, hint in hints.items():
            if not _is_a(fields[name], hint):
                raise MessageError(f"{kind}.{name} is no {hint}: {fields[name]!r:.80}")
        message: M = cls(**fields)
        return message


class Decoder(Generic[M]):
    """Cuts a byte stream into messages. ``max_header`` and ``max_body`` are bytes of one frame."""

    def __init__(
        self, codec: Codec[M], max_header: int = MAX_HEADER, max_body: int = MAX_BODY
    ) -> None:
        self._codec = codec
        self._bytes = bytearray()
        self.max_header = max_header
        self.max_body = max_body

    def feed(self, data: bytes) -> Iterator[M]:
        """Messages that ``data`` completes. Raises ``MessageError``; the stream is lost then."""
        self._bytes += data
        while len(self._bytes) >= _LENGTHS.size:
            header_size, body_size = _LENGTHS.unpack_from(self._bytes)
            if header_size > self.max_header or body_size > self.max_body:
                raise MessageError(f"a frame of {header_size} + {body_size} B is over the limit")
            end = _LENGTHS.size + header_size + body_size
            if len(self._bytes) < end:
                return
            header = bytes(self._bytes[_LENGTHS.size : _LENGTHS.size + header_size])
            body = bytes(self._bytes[_LENGTHS.size + header_size : end])
            del self._bytes[:end]
            yield self._codec.decode(header, body)


def _kind(cls: type) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("_")


def _is_a(value: object, hint: object) -> bool:
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return any(_is_a(value, one) for one in typing.get_args(hint))
    if origin is list:
        (item,) = typing.get_args(hint)
        return isinstance(value, list) and all(_is_a(one, item) for one in value)
    if origin is dict:
        item = typing.get_args(hint)[1]
        return isinstance(value, dict) and all(_is_a(one, item) for one in value.values())
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    return isinstance(value, hint)  # type: ignore[arg-type]
