"""What a process of a job and its agent say to each other over a Unix stream socket.

A frame is two little-endian uint32, the length of the JSON header and of the binary body, then
both. The header is one object: ``{"kind": "hello", …}`` with the fields of the class of that name.
The body is the ``body`` field of the classes that have one. ``Hello`` carries ``VERSION``; both
sides speak one version, for agent and process come from the same installation.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass

VERSION = 1
MAX_HEADER = 1 << 20
MAX_BODY = 64 << 20
_LENGTHS = struct.Struct("<II")


class MessageError(Exception):
    """Bytes that are no message of this version. The text says what is wrong with them."""


# A process to its agent.


@dataclass(frozen=True)
class Hello:
    """First message of a process. ``software`` names versions that have to agree in a job."""

    process: str
    token: str
    pid: int
    software: dict[str, str]
    version: int = VERSION


@dataclass(frozen=True)
class Protected:
    """The process has built its model.

    ``layout`` is a hash of names, shapes and types of its state.
    ``report`` is for people: what is protected and how large it is.
    """

    layout: str
    report: dict[str, str]


@dataclass(frozen=True)
class LocalState:
    """Rank-local state at the start of ``step``: random generators, position in the data."""

    rank: int
    step: int
    body: bytes = b""


@dataclass(frozen=True)
class LocalStateRequest:
    """Ask for the ``LocalState`` of ``rank`` at the start of ``step``."""

    rank: int
    step: int


@dataclass(frozen=True)
class Suspect:
    """A collective of ``generation`` failed; ``error`` is its text."""

    generation: int
    error: str


@dataclass(frozen=True)
class Acknowledged:
    """The process has heard of ``generation`` and begins to recover."""

    generation: int


@dataclass(frozen=True)
class Recovered:
    """The process has the state after ``step`` steps in ``generation``.

    ``role`` is keep, apply or copy. ``spans_ms`` are times of the recovery's parts by name.
    """

    generation: int
    step: int
    role: str
    spans_ms: dict[str, float]


@dataclass(frozen=True)
class Committed:
    """The process has applied ``step`` steps.

    Sent for the first step after a recovery, and then at most once a second.
    """

    generation: int
    step: int


@dataclass(frozen=True)
class Failed:
    """The process cannot go on, and nobody else can in its place. ``reason`` is for people."""

    reason: str


@dataclass(frozen=True)
class Finished:
    """The loop of this process has ended with ``step`` steps."""

    step: int


# The agent to a process.


@dataclass(frozen=True)
class Welcome:
    """Answer to ``Hello``: the job, its world size, and whether the process is a spare."""

    job: str
    world: int
    spare: bool


@dataclass(frozen=True)
class Assignment:
    """A new generation. ``rank`` is the receiver's, or None for a spare that stays one.

    ``store`` is the address (``host:port``) of the generation's key-value store.
    """

    generation: int
    rank: int | None
    world: int
    store: str


@dataclass(frozen=True)
class Stored:
    """The ``LocalState`` of this step is off the process."""

    step: int


@dataclass(frozen=True)
class LocalStateAnswer:
    """Answer to ``LocalStateRequest``; ``known`` is False when nobody has it."""

    rank: int
    step: int
    known: bool
    body: bytes = b""


@dataclass(frozen=True)
class Refused:
    """The agent does not take this process. ``reason`` names what and where."""

    reason: str


@dataclass(frozen=True)
class Release:
    """All ranks have finished: the process may end. A spare ends now."""


Message = (
    Hello
    | Protected
    | LocalState
    | LocalStateRequest
    | Suspect
    | Acknowledged
    | Recovered
    | Committed
    | Failed
    | Finished
    | Welcome
    | Assignment
    | Stored
    | LocalStateAnswer
    | Refused
    | Release
)


def _kind(cls: type) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("_")


_CLASSES: dict[str, type] = {_kind(cls): cls for cls in typing.get_args(Message)}
_HINTS = {cls: typing.get_type_hints(cls) for cls in _CLASSES.values()}


def encode(message: Message) -> bytes:
    """One frame. Raises ``MessageError`` when header or body is over its limit."""
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    body: bytes = fields.pop("body", b"")
    header = json.dumps({"kind": _kind(type(message)), **fields}).encode()
    if len(header) > MAX_HEADER or len(body) > MAX_BODY:
        raise MessageError(
            f"{_kind(type(message))}: header of {len(header)} B, body of {len(body)} B: "
            f"at most {MAX_HEADER} and {MAX_BODY}"
        )
    return _LENGTHS.pack(len(header), len(body)) + header + body


class Decoder:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Messages that ``data`` completes. Raises ``MessageError``; the stream is lost then."""
        self._bytes += data
        while len(self._bytes) >= _LENGTHS.size:
            header_size, body_size = _LENGTHS.unpack_from(self._bytes)
            if header_size > MAX_HEADER or body_size > MAX_BODY:
                raise MessageError(f"a frame of {header_size} + {body_size} B is over the limit")
            end = _LENGTHS.size + header_size + body_size
            if len(self._bytes) < end:
                return
            header = bytes(self._bytes[_LENGTHS.size : _LENGTHS.size + header_size])
            body = bytes(self._bytes[_LENGTHS.size + header_size : end])
            del self._bytes[:end]
            yield _decode(header, body)


def _decode(header: bytes, body: bytes) -> Message:
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the header is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise MessageError("the header is no object")
    kind = fields.pop("kind", None)
    cls = _CLASSES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise MessageError(f"unknown kind {kind!r:.80}")
    hints = _HINTS[cls]
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
    message: Message = cls(**fields)
    return message


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
