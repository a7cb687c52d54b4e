"""Tells the agent that this process is about to end, before its job has.

An interpreter with torch takes a second to be gone after an exception, and the other ranks would
wait for that.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from types import TracebackType

from fabric_train.collectives import FabricGroup
from fabric_train.link import AgentLink, AgentLostError
from fabric_train.messages import Ending


def announce_early_end(link: AgentLink, group: FabricGroup) -> None:
    """From now on an end of this process is told at once, and its connections are shut down.

    Covers exceptions that nobody catches, ``SystemExit``, and a script that leaves its loop.
    """
    told = False

    def announce(reason: str) -> None:
        nonlocal told
        if told or link.released:
            return
        told = True
        with contextlib.suppress(AgentLostError):
            link.send(Ending(reason[:500]))
        group.abort(sys.maxsize)
        with contextlib.suppress(OSError):
            os.nice(19)  # the end of an interpreter must not slow the takeover down

    show = sys.excepthook

    def uncaught(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        announce(f"{kind.__name__}: {error}")
        show(kind, error, traceback)

    sys.excepthook = uncaught
    atexit.register(announce, "left before the job had ended")
