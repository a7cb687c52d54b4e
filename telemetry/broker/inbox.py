"""Received messages that are not handled yet: of a retained topic only the newest.

A receiver that is slower than its senders so holds one message per retained topic. Messages of
other topics wait in order; beyond ``MAX_EVENTS`` of them the oldest is dropped and counted.

Messages that are urgent are handled before others. One of the others is handled after each
``MAX_AHEAD`` of them, so that a flood of urgent ones delays the others and does not stop them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiomqtt

MAX_EVENTS = 10_000
MAX_AHEAD = 16


class Inbox(asyncio.Queue[aiomqtt.Message]):
    """The queue that ``aiomqtt.Client`` fills.

    ``keeps_newest``: whether of a topic, by name, only the newest message matters.
    ``is_urgent``: whether, besides, messages of that topic are handled before others.
    ``admits``: whether a message of that topic and size in bytes is taken at all; None: all are.
    ``superseded``: messages that newer ones replaced; the broker still waits for their
    acknowledgement.
    """

    def __init__(
        self,
        keeps_newest: Callable[[str], bool],
        is_urgent: Callable[[str], bool] = lambda _: False,
        admits: Callable[[str, int], bool] | None = None,
    ) -> None:
        self._keeps_newest, self._is_urgent, self._admits = keeps_newest, is_urgent, admits
        self.superseded: list[aiomqtt.Message] = []
        self.dropped = 0
        super().__init__()

    def _init(self, maxsize: int) -> None:  # noqa: ARG002 - asyncio's own hook
        self._queue: dict[Any, aiomqtt.Message] = {}
        self._urgent: dict[str, aiomqtt.Message] = {}
        self._ahead = 0
        self._number = 0
        self._events = 0

    def _put(self, item: aiomqtt.Message) -> None:
        name = item.topic.value
        if self._admits is not None and not self._admits(name, len(item.payload)):
            return
        if self._keeps_newest(name):
            queue = self._urgent if self._is_urgent(name) else self._queue
            if (older := queue.get(name)) is not None:
                self.superseded.append(older)
            queue[name] = item  # In its old place: a busy topic is not put off forever.
            return
        if self._events >= MAX_EVENTS:
            oldest = next(key for key in self._queue if isinstance(key, int))
            self.superseded.append(self._queue.pop(oldest))
            self._events -= 1
            self.dropped += 1
        self._number += 1
        self._events += 1
        self._queue[self._number] = item

    def qsize(self) -> int:
        """Messages that wait."""
        return len(self._queue) + len(self._urgent)

    def empty(self) -> bool:
        """No message waits."""
        return not self._queue and not self._urgent

    def _get(self) -> aiomqtt.Message:
        if self._urgent and (self._ahead < MAX_AHEAD or not self._queue):
            self._ahead += 1
            return self._urgent.pop(next(iter(self._urgent)))
        self._ahead = 0
        key = next(iter(self._queue))
        self._events -= isinstance(key, int)
        return self._queue.pop(key)
