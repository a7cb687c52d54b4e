"""Rank-local state goes to the agent before the vote on a step.

A rank enters the vote when the agent has the state in which its next step starts. To wait for the
agent there would take a round trip between hosts from each step. So a state that has to be sent is
sent as soon as gradients are reduced for the first time: the forward pass is over, and most loops
change nothing of it after that. At the gate it is compared with what was sent, and sent again where
it differs.
"""

from __future__ import annotations

import contextlib
import threading

from fabric_train.messages.link import AgentLink, AgentLostError
from fabric_train.state.step_start import StepStart


class HandOver:
    """The states that one process gives to its agent. Made on the training thread."""

    def __init__(self, link: AgentLink, start: StepStart) -> None:
        self._link = link
        self._start = start
        self._thread = threading.get_ident()
        self._open = False  # an attempt is under way, and nothing was sent in it
        self._number: int | None = None  # of what was sent in this attempt

    def begin(self) -> None:
        """An attempt begins."""
        self._open, self._number = self._link.store_takes_time, None

    def send_early(self, rank: int, step: int) -> None:
        """Gradients are reduced: send the state at the start of ``step``, once an attempt."""
        # Another thread must not look at a sampler that the training thread may be using.
        if not self._open or threading.get_ident() != self._thread:
            return
        self._open = False
        with contextlib.suppress(AgentLostError):  # the gate will say so
            self._number = self._link.store(rank, step, self._start.capture_next())

    def complete(self, rank: int, step: int) -> None:
        """Return when the agent has the state as it is now. Raises ``AgentLostError``."""
        self._open = False
        if self._number is None or not self._start.is_captured():
            self._number = self._link.store(rank, step, self._start.capture_next())
        self._link.wait_stored(self._number)

    def again(self) -> None:
        """Who keeps this rank's states may be others now: `complete` sends once more."""
        self._open, self._number = False, None

    def store_late(self, rank: int, step: int) -> None:
        """Send the state at the start of ``step``, if the gate before has not seen all of it.

        Raises ``AgentLostError``. Nobody waits before ``complete``.
        """
        body = self._start.late_state()
        if body is not None:
            self._link.store(rank, step, body, late=True)

    def store_first(self, rank: int, step: int) -> None:
        """As ``complete``, for the state in which the first step starts."""
        self._link.wait_stored(self._link.store(rank, step, self._start.local()))
