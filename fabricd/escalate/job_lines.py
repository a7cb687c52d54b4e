"""What fabric-run and fabricd say on the job socket: one JSON object a line. Pure.

Whatever comes in is untrusted. A line is refused whole, with a reason for its sender.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from telemetry.messages.documents import Fence, HostJob, parse
from telemetry.messages.envelope import BadMessageError
from telemetry.messages.strict_json import load_object

VERSION = 1
MAX_LINE = 512 * 1024
"""A document of a job of 2,000 hosts with 8 ranks each has 240 KB."""
MAX_DEPTH = 32
MAX_BRACKETS = 20_000
"""Objects and lists in one line, both ends counted: more would keep the event loop busy."""
MAX_VALUES = 40_000
"""Brackets, colons and commas outside of texts, and texts: the same."""
VALUE_BYTES = 72
"""What a value or key takes in memory beside its text, at most or nearly so."""
WIDE = 4
"""Bytes of each character of a text that has one outside of ASCII."""
_STRING = re.compile(rb'"[^"]*"')
_NO_MARK = bytes(set(range(256)) - set(b"[]{}:,"))

Json = dict[str, Any]


class LineError(Exception):
    """A line that is none of ours. The text says why."""


@dataclass(frozen=True)
class Register:
    """The first line: this connection is of a fabric-run of ``job``."""

    job: str
    incarnation: str


@dataclass(frozen=True)
class Document:
    """All that the fabric-run says of its job; replaces the one before.

    ``memory``: bytes that it takes here, at most or nearly so.
    """

    document: Json
    memory: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Fenced:
    """The fence ``id`` is applied in the job's processes here."""

    id: str


@dataclass(frozen=True)
class Leave:
    """The job is over here: forget it."""


Line = Register | Document | Fenced | Leave
_KEYS = {
    "register": {"version", "job", "incarnation"},
    "document": {"document"},
    "fenced": {"id"},
    "leave": set(),
}


def parse_line(line: bytes) -> Line:
    """One line of a fabric-run. Raises ``LineError``."""
    message = _load(line)
    kind = message.pop("kind", None)
    keys = _KEYS.get(kind) if isinstance(kind, str) else None
    if keys is None:
        raise LineError(f"kind {kind!r:.40}; allowed: {', '.join(_KEYS)}")
    if message.keys() != keys:
        wrong = ", ".join(sorted(message.keys() ^ keys))
        raise LineError(f"{kind}: missing or unknown keys: {wrong:.200}")
    try:
        if kind == "register":
            if message["version"] != VERSION or isinstance(message["version"], bool):
                raise LineError(f"register: version {message['version']!r:.40}, not {VERSION}")
            job = parse(HostJob, {"job": message["job"], "incarnation": message["incarnation"]})
            return Register(job.job, job.incarnation)
        if kind == "document":
            if not isinstance(message["document"], dict):
                raise LineError("document: no object")
            return Document(message["document"], memory_of(line))
        if kind == "fenced":
            names = {"job": "j", "host": "h", "incarnation": "i"}
            return Fenced(parse(Fence, {"id": message["id"], **names}).id)
    except BadMessageError as error:
        raise LineError(f"{kind}: {error}") from None
    return Leave()


def _load(line: bytes) -> Json:
    if len(line) > MAX_LINE:
        raise LineError(f"line over {MAX_LINE} bytes")
    if line.count(b'"') > 2 * MAX_VALUES or len(marks := _marks(line)) > MAX_VALUES:
        raise LineError(f"more than {MAX_VALUES} values and texts")
    brackets = marks.translate(None, b":,")
    if len(brackets) > MAX_BRACKETS:
        raise LineError(f"more than {MAX_BRACKETS // 2} objects and lists")
    depth = 0
    for one in brackets:
        depth += 1 if one in b"[{" else -1
        if depth > MAX_DEPTH:
            raise LineError(f"nested deeper than {MAX_DEPTH}")
    try:
        return load_object(line)
    except ValueError as error:
        raise LineError(f"not JSON: {error}"[:200]) from None


def _marks(line: bytes) -> bytes:
    """Brackets, colons and commas of a line outside of its strings.

    In steps that each take as much as the line has bytes: one expression for strings with escapes
    takes 120 bytes of memory for each character, and half a second for the longest line.
    """
    plain = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _STRING.sub(b"", plain).translate(None, _NO_MARK)


def memory_of(line: bytes) -> int:
    """Bytes that a line's document takes once it is parsed: text is little of it."""
    text = len(line) if line.isascii() and b"\\u" not in line else WIDE * len(line)
    return text + VALUE_BYTES * len(_marks(line))


def encode_line(kind: str, **fields: Any) -> bytes:  # noqa: ANN401 - JSON values
    """A line of fabricd."""
    return json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n"
