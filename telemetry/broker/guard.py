"""Refuses messages that were sent before one that is known already. Pure.

The broker keeps the order of one sender's messages on one topic. So a lower sequence number of the
same life, or a life that had ended, is a replay (or a bridge that reorders): it changes nothing.
For retained topics only: events are known by their ids, and may come from an outbox later.
"""

from __future__ import annotations

from collections import deque

from telemetry.messages.envelope import BadMessageError, Message
from telemetry.messages.topics import Topic

LIVES = 16
"""Ended lives that are remembered for each topic."""


class ReplayGuard:
    """What is the newest message on each topic. ``most_topics`` bounds the memory."""

    def __init__(self, most_topics: int = 100_000) -> None:
        self._most = most_topics
        self._newest: dict[Topic, tuple[str, int]] = {}
        self._ended: dict[Topic, deque[str]] = {}

    def is_new(self, message: Message) -> bool:
        """Whether a message is newer than all that were noted. Changes nothing.

        False: it is the newest one again, as after a new subscription.

        Raises:
            BadMessageError: it is older than the newest one, or there are too many topics.
        """
        topic, life = message.topic, message.sender.incarnation
        known = self._newest.get(topic)
        if known is None:
            if len(self._newest) >= self._most:
                raise BadMessageError(f"more than {self._most} topics")
            return True
        if known[0] != life:
            if life in self._ended.get(topic, ()):
                raise BadMessageError(f"replayed: of life {life:.80}, which has ended")
            return True
        if message.sequence < known[1]:
            raise BadMessageError(
                f"replayed: sequence {message.sequence}, {known[1]} is known of life {life:.80}"
            )
        return message.sequence > known[1]

    def note(self, message: Message) -> None:
        """A message that `is_new` was valid, too: nothing older is accepted from now on."""
        topic, life = message.topic, message.sender.incarnation
        known = self._newest.get(topic)
        if known is not None and known[0] != life:
            self._ended.setdefault(topic, deque(maxlen=LIVES)).append(known[0])
        self._newest[topic] = (life, message.sequence)
