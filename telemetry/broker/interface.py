"""What a user of the connection deals with. Loads no MQTT library."""

from __future__ import annotations

from typing import Any, Protocol

from telemetry.messages.envelope import Message, Sender
from telemetry.messages.topics import Topic


class NotConnectedError(Exception):
    """The connection is down or went down: whether the broker has the message is not known."""


class Receiver(Protocol):
    """What a user of the connection does with what comes. No method may block."""

    def received(self, message: Message, *, retained: bool) -> None:
        """A message of the right form. May raise ``BadMessageError``: it is refused, too."""

    def cleared(self, topic: Topic) -> None:
        """A retained topic was cleared."""

    def refused(self, topic: str, reason: str) -> None:
        """A message was refused; nothing has changed."""

    def connection_changed(self, *, connected: bool, reason: str) -> None:
        """The connection is up, is lost, or could not be made. ``reason`` is for people."""


class MessageFactory:
    """Numbers the messages of one life of a sender, over all its connections."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self._number = 0

    def make(self, topic: Topic, data: dict[str, Any]) -> Message:
        """The next message of this life."""
        self._number += 1
        return Message(topic, self.sender, self._number, data)
