"""How long a changed document may wait for more changes. Pure.

fabricd reads each user's lines at a limited rate, and a large job's document is long.
"""

from __future__ import annotations

from fabric_train.documents import AgentDocument

PROGRESS_S = 30.0  # after the last one, where only steps have changed: 67 a second of 2,000 hosts
GATHER_S = 0.02  # where nothing has happened for which somebody waits


def patience_s(last: AgentDocument | None, document: AgentDocument) -> float:
    """Seconds between ``last``, which was sent, and ``document``: 0 for what decides a takeover."""
    if last is None or _decisive(last) != _decisive(document):
        return 0.0
    return PROGRESS_S if document.is_progress_of(last) else GATHER_S


def _decisive(document: AgentDocument) -> tuple[object, ...]:
    ended = {one.process for one in document.processes if one.state == "ended"}
    accepted = document.accepted.number if document.accepted else 0
    return accepted, document.running, ended, document.misses, document.suspects, document.failed
