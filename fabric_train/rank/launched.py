"""How a process knows which fabric-run has started it."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass

SOCKET = "FABRIC_TRAIN_SOCKET"
PROCESS = "FABRIC_TRAIN_PROCESS"
TOKEN = "FABRIC_TRAIN_TOKEN"  # noqa: S105
MEMORY = "FABRIC_TRAIN_MEMORY"

_PR_SET_PDEATHSIG = 1


class NotLaunchedError(Exception):
    """The process was not started by fabric-run."""


@dataclass(frozen=True)
class Place:
    """Path of the agent's socket, and what this process says there.

    ``memory``: descriptor of a ``state_memory``; None: states are sent to the agent.
    """

    socket: str
    process: str
    token: str
    memory: int | None


def launched() -> Place:
    """The place of this process, which ends with its agent from now on.

    Raises ``NotLaunchedError``.
    """
    missing = [name for name in (SOCKET, PROCESS, TOKEN) if name not in os.environ]
    if missing:
        raise NotLaunchedError(f"{missing[0]} is not set: start this script with fabric-run")
    # Ranks that outlive their agent would train on without anybody to hear of them.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    memory = int(os.environ[MEMORY]) if os.environ.get(MEMORY) else None
    if memory is not None:
        os.set_inheritable(memory, False)
    return Place(os.environ[SOCKET], os.environ[PROCESS], os.environ[TOKEN], memory)
