"""The connections of one generation over gloo: TCP of the kernel, one connection to each rank."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fabric_train.groups.generation_group import LOOK_S, LOOKS, GenerationGroup, method
from fabric_train.messages.process import Assignment
from fabric_train.rules.limits import COLLECTIVE_S

_LISTENER = "listener/{}"
_MEETING = "meeting"
_PROOF_BYTES = 32
_SO_ATTACH_FILTER = 26  # Linux, asm-generic/socket.h
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K: keep no byte
_RUNNER = "pt_gloo_runloop"  # ProcessGroupGloo::runLoop; 15 characters, as the kernel keeps
_PATIENCE = timedelta(seconds=COLLECTIVE_S)


class GlooGeneration(GenerationGroup):
    """Gloo cannot be aborted, so ``abort`` shuts down the sockets that it opened.

    Gloo closes them then, and ends its collectives with an error. About one time in 50 it misses
    one that began just then (torch 2.13): its thread waits for data until its own time-out.

    Gloo asks nobody who he is. So its port takes no connection any more once all ranks are
    connected, and each rank proves over each connection that it knows what only the generation's
    store says, before anything of the job goes over it.
    """

    carries_beside = True  # each message has its tag

    def __init__(self, assignment: Assignment, store: dist.Store, timeout_s: float) -> None:
        """Connect to all ranks; blocks until all are here, or raises ``RuntimeError``."""
        super().__init__(assignment, store, timeout_s)
        self._sockets: list[socket.socket] = []
        before = _descriptors()
        how = _options(assignment.address) if assignment.address else _PATIENCE
        self._group = dist.ProcessGroupGloo(store, self.rank, self.world, how)
        self._sockets = _connections(before, store, self.rank, self.world)
        self._inodes = {os.fstat(one.fileno()).st_ino for one in self._sockets}
        self._lock = threading.Lock()
        self._aborted = False
        try:
            prove_ranks(self._group, store, self.rank, self.world)
        except RuntimeError:
            self.end()
            raise

    @property
    def group(self) -> Any:
        """The ``ProcessGroupGloo``."""
        return self._group

    def end(self) -> None:
        """Shut down all connections."""
        with self._lock:
            if self._aborted:
                return
            self._aborted = True
            for one in self._sockets:
                with contextlib.suppress(OSError):  # the peer's end may be gone already
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def is_mistake(self, error: RuntimeError) -> bool:
        """Errors of connections name a source file of gloo; others are of types and sizes."""
        return not self._aborted and "gloo/" not in str(error)

    def is_stuck(self) -> bool:
        """Whether gloo has closed all sockets, and all threads that run collectives sleep.

        Nobody can wake those: what is pending will neither end nor write memory.
        """
        if not self._aborted or self._inodes & set(_descriptors().values()):
            return False
        states = set(_thread_states(_RUNNER))
        return states == {"S"}

    def attended(self, work: Callable[[], None]) -> None:
        """Do it on a thread of its own, which is left alone where nothing can wake it any more."""
        raised: list[BaseException] = []
        over = threading.Event()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                raised.append(error)
            over.set()

        threading.Thread(target=run, name="fabric-messages", daemon=True).start()
        stuck = 0
        while not over.wait(LOOK_S):
            stuck = stuck + 1 if self.is_stuck() else 0
            if stuck >= LOOKS:
                self.keep()
                raise RuntimeError("a message was missed when its connection ended")
        if raised:
            raise raised[0]

    def keep(self) -> None:
        """Never destroy the ``ProcessGroupGloo``: its destructor joins its threads."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))

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


def _thread_states(name: str) -> Iterator[str]:
    """Of the threads of that name: R runs or waits for a core, S sleeps … (proc(5))."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            before, _, after = (task / "stat").read_text().rpartition(")")
            if before.partition("(")[2] == name:
                yield after.split()[0]


def _descriptors() -> dict[int, int]:
    """What is open: descriptor → inode."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself, or closed meanwhile
            found[int(entry.name)] = os.fstat(int(entry.name)).st_ino
    return found


def _opened_since(before: dict[int, int]) -> list[int]:
    """Descriptors that were not there, or were of something else.

    Gloo closes the sockets of the last generation on a thread of its own: their numbers are taken
    by those of the next one while it connects.
    """
    return [number for number, inode in _descriptors().items() if before.get(number) != inode]


def _connections(before: dict[int, int], store: Any, rank: int, world: int) -> list[socket.socket]:
    """Duplicates of the sockets that gloo opened since ``before``.

    Those are of its listening port, or lead to that of a peer. Other threads may have opened
    sockets meanwhile; those stay untouched.
    """
    opened: list[socket.socket] = []
    for number in _opened_since(before):
        with contextlib.suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                opened.append(socket.socket(fileno=os.dup(number)))
    inet = [one for one in opened if one.family in (socket.AF_INET, socket.AF_INET6)]
    listening = [one for one in inet if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]
    mine = {one.getsockname()[1] for one in listening}
    for one in listening:
        _close_to_all(one)
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


def prove_ranks(group: Any, store: dist.Store, rank: int, world: int) -> None:
    """Prove to each rank, over its connection, who is at this end, and have it proved.

    Raises ``RuntimeError``, which names the ranks in whose place somebody else is connected.
    """
    if rank == 0:
        store.set(_MEETING, secrets.token_hex(_PROOF_BYTES))
    secret = store.get(_MEETING)
    others = range(world)
    said = b"".join(_proof(secret, rank, other) for other in others)
    mine = torch.frombuffer(bytearray(said), dtype=torch.uint8)
    theirs = torch.zeros_like(mine)
    exchange = method(group, "all_to_all_single")
    exchange(theirs, mine, [], [], dist.AllToAllOptions()).wait()
    heard = bytes(theirs.tolist())
    strangers = [
        other
        for other in others
        if not hmac.compare_digest(
            heard[other * _PROOF_BYTES : (other + 1) * _PROOF_BYTES], _proof(secret, other, rank)
        )
    ]
    if strangers:
        who = ", ".join(map(str, strangers))
        raise RuntimeError(f"who is connected as rank {who} does not know the generation's secret")


def _proof(secret: bytes, sender: int, receiver: int) -> bytes:
    return hmac.digest(secret, f"gloo {sender} {receiver}".encode(), hashlib.sha256)


def _close_to_all(listener: socket.socket) -> None:
    """Its connections stay; of whoever else tries to connect, the kernel drops each packet."""
    program = ctypes.create_string_buffer(_DROP_ALL)
    at = struct.pack("@HP", 1, ctypes.addressof(program))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, at)
