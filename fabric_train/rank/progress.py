"""Tells the agent how far this process is: now and then, and at once when it goes on."""

from __future__ import annotations

import time

from fabric_train.messages.link import AgentLink
from fabric_train.messages.process import Committed

_EVERY_S = 1.0


class Progress:
    """What one process has said. Used by its training thread."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._said_at = 0.0
        self._at_once = True

    def resumed(self) -> None:
        """The next step is the first one of a generation."""
        self._at_once = True

    def committed(self, generation: int, step: int) -> None:
        """This process has applied ``step`` steps, the last one in ``generation``.

        Raises ``AgentLostError``.
        """
        now = time.monotonic()
        if self._at_once or now - self._said_at > _EVERY_S:
            self._link.send(Committed(generation, step))
            self._said_at, self._at_once = now, False
