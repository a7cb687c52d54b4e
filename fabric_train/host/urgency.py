"""How long a changed document may wait for more changes. Pure.

fabricd reads each user's lines at a limited rate, and a large job's document is long. Documents in
which only steps have changed come ever more rarely: after a minute of calm, 67 a second of 2,000
hosts. One with a new window of own times waits no longer than a third of a window.
"""

from __future__ import annotations

from fabric_train.messages.documents import AgentDocument
from fabric_train.messages.step_window import patience_s

PROGRESS_S = (1.0, 30.0)  # after the last one, where only steps have changed: at first, at most
ALERT_S = 0.2  # the same, while a host of the job is in question
LOOK_S = 1.0  # between two looks at the own times of ranks
GATHER_S = 0.02  # where nothing has happened for which somebody waits


class Urgency:
    """Knows the last document that was sent."""

    def __init__(self) -> None:
        self._last: AgentDocument | None = None
        self._progress_s = PROGRESS_S[0]
        self.alert = False
        """A host of the job is in question: whether the job steps has to be known."""

    def patience_s(self, document: AgentDocument) -> float:
        """Seconds between the last one and ``document``: 0 for what decides a takeover."""
        last = self._last
        if last is None or _decisive(last) != _decisive(document):
            return 0.0
        if not document.is_progress_of(last):
            return GATHER_S
        if self.alert:
            return ALERT_S
        if _windows(last) == _windows(document):
            return self._progress_s
        return min(self._progress_s, patience_s(document.nodes * document.nproc))

    def sent(self, document: AgentDocument) -> None:
        """It is the last one now."""
        calm = self._last is not None and document.is_progress_of(self._last)
        self._progress_s = min(2 * self._progress_s, PROGRESS_S[1]) if calm else PROGRESS_S[0]
        self._last = document


def _decisive(document: AgentDocument) -> tuple[object, ...]:
    ended = {one.process for one in document.processes if one.state == "ended"}
    accepted = document.accepted.number if document.accepted else 0
    return accepted, document.running, ended, document.misses, document.suspects, document.failed


def _windows(document: AgentDocument) -> list[tuple[int, int] | None]:
    return [
        None if one.window is None else (one.window.generation, one.window.last)
        for one in document.processes
    ]
