"""A process group that outlives generations.

``FabricGroup`` is what DDP and the training loop hold; it never changes. Inside it is the
``GenerationGroup`` of the newest generation: gloo over TCP. When a peer is lost, ``abort`` shuts
down this process's own connections of that generation. Every pending collective then fails within
milliseconds, here and, as the connections close, at every peer. No root is needed for that.

A collective that fails in an attempt does not raise in the middle of a backward pass, which would
leave DDP's reducer unusable. It ends with whatever the memory holds, and marks the group as broken.
The gate before the optimizer step sees the mark, so nothing computed from such memory is ever
applied. Where there is no gate behind it a collective is refused: see ``Use``.
"""

from __future__ import annotations

import contextlib
import enum
import os
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future

from fabric_train.addresses import split
from fabric_train.messages import Assignment

_LISTENER = "listener/{}"
_PATIENCE = timedelta(minutes=30)  # torch's own; a lost process is known much earlier


class Use(enum.Enum):
    """What the training thread may do with the group at present."""

    SETUP = "setup"  # before the loop: a failure raises, and the job starts again
    LOCAL = "local"  # answered at once, as if this process were alone
    ATTEMPT = "attempt"  # a failure marks the group; the gate sees it
    CLOSED = "closed"  # behind the gate, or between two steps: refused


class GenerationGroup:
    """The connections of one generation, between all its ranks."""

    def __init__(self, assignment: Assignment, timeout_s: float) -> None:
        """Connect to all ranks; blocks until all are here, or raises ``RuntimeError``."""
        assert assignment.rank is not None
        rank, world = assignment.rank, assignment.world
        host, port = split(assignment.store)
        tcp = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s))
        prefix = assignment.prefix or f"g{assignment.generation}"
        self._store = dist.PrefixStore(prefix, tcp)
        self.generation = assignment.generation
        self.rank = rank
        self.world = world
        self._sockets: list[socket.socket] = []
        before = _descriptors()
        how = _options(assignment.address) if assignment.address else _PATIENCE
        self.group = dist.ProcessGroupGloo(self._store, rank, world, how)
        self._sockets = _connections(before, self._store, rank, world)
        self._lock = threading.Lock()
        self._aborted = False

    def abort(self) -> None:
        """Shut down all connections of this generation; from any thread, any number of times."""
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

    def exchange(self, data: bytes) -> list[bytes]:
        """Give ``data`` to all ranks, and return that of each. Raises ``RuntimeError``."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        self.group.allgather([sizes], [torch.tensor([len(data)])]).wait()
        longest = max(int(size.item()) for size in sizes)
        padded = bytearray(data.ljust(longest, b"\0"))
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
        self.group.allgather([parts], [torch.frombuffer(padded, dtype=torch.uint8)]).wait()
        return [
            bytes(part.tolist())[: int(size.item())]
            for part, size in zip(parts, sizes, strict=True)
        ]

    def vote(self) -> None:
        """Return when every rank has called it. Raises ``RuntimeError`` where one has not."""
        self.group.allreduce([torch.zeros(1, dtype=torch.int32)]).wait()


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


class FabricGroup(dist.ProcessGroup):
    """The group that a job's objects hold. ``rank`` and its inside change with the generation.

    While its use is LOCAL each collective is answered at once, from what this process gives: sums
    and broadcasts leave it as it is, gathers repeat it, what is received is zero. So a spare can
    build DDP and rehearse a step without a peer.
    """

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank, world)
        self._rank = rank
        self._world = world
        self._inner: GenerationGroup | None = None
        self._pending: set[Any] = set()
        self._idle = threading.Condition()
        self._changing = threading.Lock()
        self.use = Use.LOCAL
        self.broken = False
        self.on_broken: Callable[[int, str], None] = lambda _generation, _error: None
        self.on_broadcast: Callable[[Tensor], None] = lambda _tensor: None

    def adopt(self, inner: GenerationGroup) -> None:
        """Use ``inner`` from now on; the one before has to be quiet by then."""
        with self._changing:
            self._inner = inner
            self._rank = inner.rank
            self.broken = False

    @property
    def inner(self) -> GenerationGroup | None:
        """Connections of the newest generation that this process is part of."""
        return self._inner

    def abort(self, before: int) -> None:
        """End all collectives of a generation older than ``before``; from any thread."""
        with self._changing:
            inner = self._inner
            if inner is None or inner.generation >= before:
                return
            self.broken = True
        inner.abort()

    def wait_quiet(self, timeout_s: float) -> bool:
        """Wait until no collective can write memory any more. False: some still might."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._pending, timeout_s)

    def _run(self, start: Callable[[Any], Any], result: list[Any]) -> Any:
        """Start a collective of the inner group; its failure marks this group as broken."""
        inner = self._inner
        if self.use is Use.CLOSED:
            raise RuntimeError(
                "a collective between optimizer.step() and the next attempt: it would be lost with "
                "a rank. Do it inside attempt(), before optimizer.step()"
            )
        if self.use is Use.LOCAL or inner is None:
            return _done(result)
        if self.use is Use.SETUP:
            return start(inner.group)
        if self.broken:
            return _done(result)
        try:
            work = start(inner.group)
        except RuntimeError as error:
            self._fail(inner, error)
            return _done(result)
        with self._idle:
            self._pending.add(work)

        def end(future: Future[Any]) -> list[Any]:
            try:
                future.value()
            except RuntimeError as error:
                self._fail(inner, error)
            with self._idle:
                self._pending.discard(work)
                self._idle.notify_all()
            return result

        return _create_work_from_future(work.get_future().then(end))

    def _fail(self, inner: GenerationGroup, error: RuntimeError) -> None:
        if inner is self._inner and not self.broken:
            self.broken = True
            self.on_broken(inner.generation, str(error))

    # What torch calls. Names and arguments are those of ProcessGroup.

    def getBackendName(self) -> str:
        return "fabric"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._world

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.AllreduceOptions()
        return self._run(lambda group: group.allreduce(tensors, opts), tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._run(lambda group: group.allreduce_coalesced(tensors, opts), tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        if self.use is Use.LOCAL:
            for tensor in tensors:
                self.on_broadcast(tensor)
        return self._run(lambda group: group.broadcast(tensors, opts), tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        if self.use is Use.LOCAL:
            for output, tensor in zip(outputs, inputs, strict=True):
                for one in output:
                    one.copy_(tensor)
        opts = opts or dist.AllgatherOptions()
        return self._run(lambda group: group.allgather(outputs, inputs, opts), outputs)

    def _allgather_base(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        if self.use is Use.LOCAL:
            output.view(self._world, -1).copy_(tensor.reshape(1, -1).expand(self._world, -1))
        opts = opts or dist.AllgatherOptions()
        return self._run(lambda group: group._allgather_base(output, tensor, opts), [output])  # noqa: SLF001

    def _reduce_scatter_base(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        if self.use is Use.LOCAL:
            output.copy_(tensor.view(self._world, -1)[self._rank].view_as(output))
        opts = opts or dist.ReduceScatterOptions()
        return self._run(lambda group: group._reduce_scatter_base(output, tensor, opts), [output])  # noqa: SLF001

    def reduce(self, tensors: list[Tensor], opts: Any) -> Any:
        return self._run(lambda group: group.reduce(tensors, opts), tensors)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Any:
        if self.use is Use.LOCAL:
            for output, tensor in zip(outputs, inputs, strict=False):
                for one in output:
                    one.copy_(tensor)
        return self._run(lambda group: group.gather(outputs, inputs, opts), outputs)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Any:
        if self.use is Use.LOCAL:
            for output, tensors in zip(outputs, inputs, strict=False):
                output.copy_(tensors[self._rank])
        return self._run(lambda group: group.scatter(outputs, inputs, opts), outputs)

    def barrier(self, opts: Any = None) -> Any:
        opts = opts or dist.BarrierOptions()
        return self._run(lambda group: group.barrier(opts), [])

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> Any:
        return self._run(lambda group: group.send(tensors, destination, tag), tensors)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Any:
        if self.use is Use.LOCAL:
            for tensor in tensors:
                tensor.zero_()
        return self._run(lambda group: group.recv(tensors, source, tag), tensors)


def _done(result: Sequence[Any]) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    return _create_work_from_future(future)


def build_group(
    make: Callable[[], GenerationGroup],
    give_up: Callable[[], bool],
    wait: Callable[..., bool],
    notify: Callable[[], None],
) -> GenerationGroup | None:
    """Connect on a thread of its own, and return None as soon as ``give_up`` holds.

    Connecting cannot be interrupted; an abandoned attempt ends with its own timeout.
    """  # fmt: skip
    box: list[GenerationGroup | Exception] = []
    abandoned = threading.Event()

    def connect() -> None:
        try:
            box.append(make())
        except Exception as error:  # the training thread raises it
            box.append(error)
        if abandoned.is_set() and isinstance(box[0], GenerationGroup):
            box[0].discard()
        notify()

    threading.Thread(target=connect, name="fabric-connect", daemon=True).start()
    wait(lambda: bool(box) or give_up())
    if box:
        got = box[0]
        if isinstance(got, Exception):
            raise got
        return got
    abandoned.set()
    if box and isinstance(box[0], GenerationGroup):
        box[0].discard()
    return None
