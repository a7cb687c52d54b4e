"""Refuses messages that were sent before one that is known already. Pure.

The broker keeps the order of one sender's messages on one topic. So a lower sequence number of the
same life, or a life that had ended, is a replay (or a bridge that reorders): it changes nothing.
For retained topics only: events are known by their ids, and may come from an outbox later.

Memory is bounded by owner: whoever writes below its own name fills its own share. A topic without a
name (a status, an operator's stop) is always taken. What was cleared is forgotten: its owner alone
could send an old message of it again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from telemetry.messages.envelope import BadMessageError, Message
from telemetry.messages.topics import Topic

LIVES = 16
"""Ended lives that are remembered for each topic."""


MOST_NAMES = 1000
"""Topics with a name (jobs of a host) that one owner may have at a time."""


class TooManyTopicsError(BadMessageError):
    """An owner has as many topics as it may have."""


class ReplayGuard:
    """What is the newest message on each topic. ``most_names``: topics with a name of one owner."""

    def __init__(self, most_names: int = MOST_NAMES) -> None:
        self._most = most_names
        self._newest: dict[Topic, tuple[str, int]] = {}
        self._ended: dict[Topic, deque[str]] = {}
        self._names: Counter[str] = Counter()
        """Owner → how many of the known topics are its own and have a name."""

    def is_new(self, message: Message) -> bool:
        """Whether a message is newer than all that were noted. Changes nothing.

        False: it is the newest one again, as after a new subscription.

        Raises:
            BadMessageError: it is older than the newest one.
            TooManyTopicsError: its owner has too many topics.
        """
        topic, life = message.topic, message.sender.incarnation
        known = self._newest.get(topic)
        if known is None:
            if topic.name and self._names[topic.owner] >= self._most:
                raise TooManyTopicsError(f"{topic.owner} has more than {self._most} topics")
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
        if known is None and topic.name:
            self._names[topic.owner] += 1
        self._newest[topic] = (life, message.sequence)

    def forget(self, topic: Topic) -> None:
        """The topic's message was taken away."""
        if self._newest.pop(topic, None) is not None and topic.name:
            self._names[topic.owner] -= 1
            if not self._names[topic.owner]:
                del self._names[topic.owner]
        self._ended.pop(topic, None)

    def names(self) -> Mapping[str, int]:
        """Owner → its topics with a name."""
        return self._names
