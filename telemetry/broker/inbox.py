"""Received messages that are not handled yet: of a retained topic only the newest.

A receiver that is slower than its senders so holds one message per retained topic. Messages of
other topics wait in order; beyond ``MAX_EVENTS`` of them the oldest is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiomqtt

MAX_EVENTS = 10_000


class Inbox(asyncio.Queue[aiomqtt.Message]):
    """The queue that ``aiomqtt.Client`` fills.

    ``keeps_newest``: whether of a topic, by name, only the newest message matters.
    ``superseded``: messages that newer ones replaced; the broker still waits for their
    acknowledgement.
    """

    def __init__(self, keeps_newest: Callable[[str], bool]) -> None:
        self._keeps_newest = keeps_newest
        self.superseded: list[aiomqtt.Message] = []
        self.dropped = 0
        super().__init__()

    def _init(self, maxsize: int) -> None:  # noqa: ARG002 - asyncio's own hook
        self._queue: dict[Any, aiomqtt.Message] = {}
        self._number = 0
        self._events = 0

    def _put(self, item: aiomqtt.Message) -> None:
        name = item.topic.value
        if self._keeps_newest(name):
            if (older := self._queue.get(name)) is not None:
                self.superseded.append(older)
            self._queue[name] = item  # In its old place: a busy topic is not put off forever.
            return
        if self._events >= MAX_EVENTS:
            oldest = next(key for key in self._queue if isinstance(key, int))
            self.superseded.append(self._queue.pop(oldest))
            self._events -= 1
            self.dropped += 1
        self._number += 1
        self._events += 1
        self._queue[self._number] = item

    def _get(self) -> aiomqtt.Message:
        key = next(iter(self._queue))
        self._events -= isinstance(key, int)
        return self._queue.pop(key)
