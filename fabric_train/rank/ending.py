"""Tells the agent that this process is about to end, before its job has.

An interpreter with torch takes a second to be gone after an exception, and longer where the script
has handlers of its own. The other ranks do not wait for that.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NoReturn

from fabric_train.groups.collectives import FabricGroup
from fabric_train.messages.link import AgentLink, AgentLostError
from fabric_train.messages.plain_text import say
from fabric_train.messages.process import Ending, Failed
from fabric_train.rules.loop import RuleError


def announce_early_end(link: AgentLink, group: FabricGroup) -> Callable[[str], None]:
    """From now on an end of this process is told at once, and its connections are shut down.

    Covers exceptions that nobody catches, and the end of the script. Returns what tells the agent;
    it takes the reason, and does nothing after the first time or after the release.
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
        if isinstance(error, RuleError):
            with contextlib.suppress(AgentLostError):
                link.send(Failed(str(error)[:2000]))
        announce(f"{kind.__name__}: {error}")
        show(kind, error, traceback)

    sys.excepthook = uncaught
    atexit.register(announce, "left before the job had ended")
    return announce


def watch_loop(steps: Iterator[int], announce: Callable[[str], None]) -> Iterator[int]:
    """The same ``steps``; a loop over them that is left early is announced.

    It is closed as soon as an exception leaves the loop: before any other handler runs.
    """
    try:
        yield from steps
    except GeneratorExit:
        announce("left its loop before the job had ended")
        raise


def end_at_once(reason: str) -> NoReturn:
    """End this process with status 1. ``reason`` is for people.

    Not by SystemExit: the others wait for this process, and an interpreter takes long to end.
    """
    say(reason)
    os._exit(1)
