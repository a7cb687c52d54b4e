"""The daemon above the threads of a training job.

A job computes on every core, and what the daemon decides is worth milliseconds: at nice -10 the
page said DOWN of a black hole up to 60 ms after it was there, with SCHED_RR 14 ms after
(docs/design/daemon.md). Priority 1 is the least (sched(7)), below the prober's. All threads of
the process, not the event loop's alone: a thread that holds Python's lock and waits for a core
behind the job would keep the loop waiting, too.

Only once everything is loaded: until then there is nothing to decide, and RLIMIT_RTTIME, which ends
a daemon that runs away, would count the start.
"""

from __future__ import annotations

import os
from pathlib import Path

PRIORITY = 1
_TASKS = Path("/proc/self/task")


def enter() -> str:
    """Have all threads of this process scheduled so, and those that they make.

    Returns:
        Why it may not be, or "".
    """
    for task in _TASKS.iterdir():
        try:
            os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(PRIORITY))
        except ProcessLookupError:
            continue
        except OSError as error:
            return error.strerror or str(error)
    return ""


def leave() -> None:
    """All of them as any other process again, which needs no permission."""
    for task in _TASKS.iterdir():
        try:
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))
        except OSError:
            continue
