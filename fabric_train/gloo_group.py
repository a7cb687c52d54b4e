"""The connections of one generation over gloo: TCP of the kernel, one connection to each rank."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fabric_train.generation_group import GenerationGroup, generation_store
from fabric_train.limits import COLLECTIVE_S
from fabric_train.messages import Assignment

_LISTENER = "listener/{}"
_PATIENCE = timedelta(seconds=COLLECTIVE_S)


class GlooGeneration(GenerationGroup):
    """Gloo cannot be aborted, so ``abort`` shuts down the sockets that it opened."""

    def __init__(self, assignment: Assignment, timeout_s: float) -> None:
        """Connect to all ranks; blocks until all are here, or raises ``RuntimeError``."""
        super().__init__(assignment)
        self._store = generation_store(assignment, timeout_s)
        self._sockets: list[socket.socket] = []
        before = _descriptors()
        how = _options(assignment.address) if assignment.address else _PATIENCE
        self._group = dist.ProcessGroupGloo(self._store, self.rank, self.world, how)
        self._sockets = _connections(before, self._store, self.rank, self.world)
        self._lock = threading.Lock()
        self._aborted = False

    @property
    def store(self) -> Any:
        """The part of the store that is this generation's."""
        return self._store

    @property
    def group(self) -> Any:
        """The ``ProcessGroupGloo``."""
        return self._group

    def abort(self) -> None:
        """Shut down all connections of this generation."""
        with self._lock:
            if self._aborted:
                return
            self._aborted = True
            for one in self._sockets:
                with contextlib.suppress(OSError):  # the peer's end may be gone already
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def discard(self) -> None:
        """Drop a group that nobody used. Its descriptors may include those of a later one."""
        for one in self._sockets:
            one.close()


def _options(address: str) -> Any:
    """Gloo listens on ``address`` and connects from there."""
    options = dist.ProcessGroupGloo._Options()  # noqa: SLF001
    options._timeout = _PATIENCE  # noqa: SLF001
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]  # noqa: SLF001
    return options


def _descriptors() -> set[int]:
    numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return {number for number in numbers if _is_open(number)}  # not that of the listing itself


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _connections(before: set[int], store: Any, rank: int, world: int) -> list[socket.socket]:
    """Duplicates of the sockets that gloo opened since ``before``.

    Those are of its listening port, or lead to that of a peer. Other threads may have opened
    sockets meanwhile; those stay untouched.
    """
    opened: list[socket.socket] = []
    for number in _descriptors() - before:
        with contextlib.suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                opened.append(socket.socket(fileno=os.dup(number)))
    inet = [one for one in opened if one.family in (socket.AF_INET, socket.AF_INET6)]
    listening = [one for one in inet if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]
    mine = {one.getsockname()[1] for one in listening}
    store.set(_LISTENER.format(rank), ",".join(map(str, mine)))
    theirs: set[int] = set()
    for other in range(world):
        ports = store.get(_LISTENER.format(other)).decode()
        theirs |= {int(port) for port in ports.split(",") if port}
    kept = []
    for one in opened:
        if one in inet and one not in listening and _is_of(one, mine, theirs):
            kept.append(one)
        else:
            one.close()
    return kept


def _is_of(one: socket.socket, mine: set[int], theirs: set[int]) -> bool:
    try:
        return one.getsockname()[1] in mine or one.getpeername()[1] in theirs
    except OSError:
        return False
