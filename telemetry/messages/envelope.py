"""A CloudEvent 1.0 in structured JSON: the envelope of every message on the broker.

Extension attributes: ``bootid`` and ``incarnation`` name the life of the sender, ``sequence``
counts its messages in that life. ``id`` is derived from these, so a message that is sent twice has
one id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from telemetry.messages.strict_json import load_object
from telemetry.messages.topics import Kind, Topic

SPEC_VERSION = "1.0"
MAX_BYTES = 1 << 20
LARGEST: Mapping[Kind, int] = {
    Kind.HOST_STATUS: 4 << 10,
    Kind.HOST_DOCUMENT: 64 << 10,
    Kind.HOST_OBSERVATIONS: 256 << 10,
    Kind.HOST_JOB: 640 << 10,
    Kind.STOP: 16 << 10,
}
"""Bytes of a message, where it may not have ``MAX_BYTES``: what hosts write, and an operator. A
line of a job's socket has 512 KiB. Of events each fabric-compute has a budget."""
MAX_DEPTH = 64
"""Objects and lists in each other. Whoever writes, copies or prints a value needs a part of the
stack for each, and has less of it left than who has read it."""
_TEXT = ("id", "source", "type", "time", "bootid", "incarnation")
_MAX_TEXT = 512


class BadMessageError(Exception):
    """Bytes that are no message of this version, or of another sender. The text says why."""


@dataclass(frozen=True)
class Sender:
    """One life of a sender: a boot of its machine, and a start of its process."""

    boot_id: str
    incarnation: str


@dataclass(frozen=True)
class Message:
    """One message. ``sequence`` grows by one with each message of a sender's life."""

    topic: Topic
    sender: Sender
    sequence: int
    data: dict[str, Any] = field(default_factory=dict)
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def id(self) -> str:
        """Unique over all messages of all senders; the same when the message is sent again."""
        return f"{self.topic.source}/{self.sender.incarnation}/{self.sequence}"


def encode(message: Message) -> bytes:
    """The payload. Raises ``BadMessageError`` when it is larger than its kind may be."""
    event = {
        "specversion": SPEC_VERSION,
        "id": message.id,
        "source": message.topic.source,
        "type": message.topic.kind.message_type,
        "time": message.time.isoformat(),
        "datacontenttype": "application/json",
        "bootid": message.sender.boot_id,
        "incarnation": message.sender.incarnation,
        "sequence": message.sequence,
        "data": message.data,
    }
    payload = json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
    if len(payload) > (most := LARGEST.get(message.topic.kind, MAX_BYTES)):
        raise BadMessageError(f"{message.id}: {len(payload)} B, at most {most}")
    return payload


def decode(payload: bytes, topic: Topic) -> Message:
    """The message that arrived on ``topic``. Raises ``BadMessageError``."""
    if len(payload) > (most := LARGEST.get(topic.kind, MAX_BYTES)):
        raise BadMessageError(f"{len(payload)} B, at most {most}")
    event = _load(payload)
    if event.get("specversion") != SPEC_VERSION:
        raise BadMessageError(f"no CloudEvent {SPEC_VERSION}: {event.get('specversion')!r:.40}")
    for name in _TEXT:
        value = event.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT:
            raise BadMessageError(f"{name} is no text of 1 to {_MAX_TEXT} characters")
    if event["type"] != topic.kind.message_type:
        raise BadMessageError(f"type {event['type']:.80}, not {topic.kind.message_type}")
    if event["source"] != topic.source:
        raise BadMessageError(f"source {event['source']:.80} on a topic of {topic.source}")
    sequence, data = event.get("sequence"), event.get("data")
    if type(sequence) is not int or not 0 <= sequence < 1 << 63:
        raise BadMessageError(f"sequence {sequence!r:.40} is no count")
    if not isinstance(data, dict):
        raise BadMessageError("data is no object")
    try:
        time = datetime.fromisoformat(event["time"])
    except ValueError:
        raise BadMessageError(f"time {event['time']:.40} is none of ISO 8601") from None
    if time.tzinfo is None:
        raise BadMessageError(f"time {event['time']:.40} has no zone")
    sender = Sender(event["bootid"], event["incarnation"])
    message = Message(topic, sender, sequence, data, time)
    if event["id"] != message.id:
        raise BadMessageError(f"id {event['id']:.80}, not {message.id:.80}")
    return message


def _load(payload: bytes) -> dict[str, Any]:
    try:
        event = load_object(payload)
    except ValueError as error:
        raise BadMessageError(f"no JSON: {error}"[:200]) from None
    if payload.count(b"{") + payload.count(b"[") > MAX_DEPTH and _is_deep(event):
        raise BadMessageError(f"nested deeper than {MAX_DEPTH}")
    return event


def _is_deep(event: dict[str, Any]) -> bool:
    level: list[Any] = [event]
    for _ in range(MAX_DEPTH):
        inner = (one.values() if type(one) is dict else one for one in level)
        level = [value for values in inner for value in values if type(value) in (dict, list)]
        if not level:
            return False
    return True
