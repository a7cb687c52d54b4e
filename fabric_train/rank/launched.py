"""How a process knows which fabric-run has started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
from dataclasses import dataclass

from fabric_train.groups import backend
from fabric_train.messages.documents import NETWORK

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
    leave_interrupts_to_agent()
    memory = int(os.environ[MEMORY]) if os.environ.get(MEMORY) else None
    if memory is not None:
        os.set_inheritable(memory, False)
    return Place(os.environ[SOCKET], os.environ[PROCESS], os.environ[TOKEN], memory)


def software() -> dict[str, str]:
    """Versions and settings that all processes of a job have to agree in."""
    import torch

    from fabric_train.groups.generation_group import RANKS_VERSION

    return {
        "fabric_train": f"ranks' version {RANKS_VERSION}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        NETWORK: backend.network(os.environ),
    }


def leave_interrupts_to_agent() -> None:
    """Ignore interrupts, unless the script has its own handler, and block them no more.

    A terminal sends them to fabric-run and to all ranks; fabric-run ends the ranks.
    """
    with contextlib.suppress(ValueError):  # another thread may not set it
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
