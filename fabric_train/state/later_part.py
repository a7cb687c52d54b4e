"""The part of a state that moves while this process computes its next step.

After a planned move the weights go to the new process first. What only an optimizer's step needs
(with Adam two thirds of the state) follows on a thread, while both ends compute gradients. Neither
end votes on that step before all has moved and the receiver has compared its hashes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_LOOK_S = 0.1


class LaterPart:
    """One that is under way, at either end."""

    def __init__(self, move: Callable[[], None], *, receives: bool) -> None:
        """``move`` runs on a thread of its own. ``receives``: this process has no state without."""
        self.receives = receives
        self._error: Exception | None = None
        self._ended = threading.Event()

        def run() -> None:
            try:
                move()
            except Exception as error:  # ``wait`` raises it
                self._error = error
            self._ended.set()

        threading.Thread(target=run, name="fabric-later", daemon=True).start()

    def wait(self, go_on: Callable[[], bool]) -> bool:
        """Whether all has moved, when it has or ``go_on`` does not hold any more.

        Raises what moving it has raised.
        """
        while not self._ended.wait(_LOOK_S):
            if not go_on():
                return False
        if self._error is not None:
            raise self._error
        return True

    def drop(self, timeout_s: float) -> bool:
        """Whether this process still holds a state; its generation has ended.

        Raises ``TimeoutError`` where something still moves.
        """
        if not self._ended.wait(timeout_s):
            raise TimeoutError("a copy of the last generation does not end")
        return self._error is None or not self.receives
