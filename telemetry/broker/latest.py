"""Retained messages that are to be at the broker: the newest of each topic. Pure.

A topic has at most one message under way. While one is, newer data replace each other, so a slow
broker costs one message per topic, not a queue. After a reconnect everything is published again:
the broker may have lost it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from telemetry.messages.topics import Topic

Data = dict[str, Any]


@dataclass
class _Entry:
    data: Data | None
    version: int = 1
    sent: int = 0
    """The version that is under way or acknowledged; 0: none."""
    in_flight: bool = False


class LatestStates:
    """What is to be retained at the broker, by topic. ``None``: nothing, the topic is cleared."""

    def __init__(self) -> None:
        self._entries: dict[Topic, _Entry] = {}
        self._due: dict[Topic, None] = {}
        """Topics with something to send and nothing under way, in order of their change."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def settled(self) -> bool:
        """The broker has acknowledged all of it."""
        return not self._due and not any(entry.in_flight for entry in self._entries.values())

    def value(self, topic: Topic) -> Data | None:
        """What is to be retained on a topic; None: nothing."""
        entry = self._entries.get(topic)
        return None if entry is None else entry.data

    def set(self, topic: Topic, data: Data | None) -> bool:
        """Publish ``data`` soon. Returns False when the topic has just that already."""
        entry = self._entries.get(topic)
        if entry is None:
            entry = self._entries[topic] = _Entry(data)
        elif entry.data == data:
            return False
        else:
            entry.data = data
            entry.version += 1
        if not entry.in_flight:
            self._due[topic] = None
        return True

    def take(self, late: Container[Topic] = ()) -> tuple[Topic, Data | None] | None:
        """The next message to send, now under way; None: there is none at present.

        Args:
            late: topics that are sent after all others are acknowledged, one at a time.
        """
        topic = next((one for one in self._due if one not in late), None)
        if topic is None:
            if not self._due or any(entry.in_flight for entry in self._entries.values()):
                return None
            topic = next(iter(self._due))
        del self._due[topic]
        entry = self._entries[topic]
        entry.in_flight, entry.sent = True, entry.version
        return topic, entry.data

    def acknowledged(self, topic: Topic) -> None:
        """The broker has what ``take`` gave for the topic."""
        entry = self._entries.get(topic)
        if entry is None or not entry.in_flight:
            return
        entry.in_flight = False
        if entry.sent != entry.version:
            self._due[topic] = None
        elif entry.data is None:
            del self._entries[topic]

    def connection_lost(self) -> None:
        """Everything is to be published again, in the order in which the topics came."""
        for entry in self._entries.values():
            entry.in_flight, entry.sent = False, 0
        self._due = dict.fromkeys(self._entries)
