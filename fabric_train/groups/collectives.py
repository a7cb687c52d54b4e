"""A process group that outlives generations.

``FabricGroup`` is what DDP and the training loop hold; it never changes. Inside it is the
``GenerationGroup`` of the newest generation: gloo over TCP, or the network plugin. When a peer is
lost, ``abort`` shuts down this process's own connections of that generation. Every pending
collective then fails within milliseconds, here and, as the connections close, at every peer. No
root is needed for that. What gloo misses of them, ``_end_stuck`` ends after half a second.

A collective that fails in an attempt does not raise in the middle of a backward pass, which would
leave DDP's reducer unusable. It ends with whatever the memory holds, and marks the group as broken.
The gate before the optimizer step sees the mark, so nothing computed from such memory is ever
applied. Where there is no gate behind it a collective is refused: see ``Use``.
"""

from __future__ import annotations

import enum
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future

from fabric_train.groups import backend
from fabric_train.groups.generation_group import GenerationGroup
from fabric_train.groups.gloo_group import GlooGeneration
from fabric_train.groups.nccl_group import NcclGeneration
from fabric_train.groups.one_group import REFUSAL
from fabric_train.groups.plugin_group import PluginGeneration
from fabric_train.messages.link import AgentLink
from fabric_train.messages.process import Assignment

__all__ = [
    "Connecting",
    "FabricGroup",
    "GenerationGroup",
    "Use",
    "connect",
    "connect_generation",
    "start_connecting",
]


_LOOK_S = 0.1
_LOOKS = 5  # in a row, until what looks stuck is


class Use(enum.Enum):
    """What the training thread may do with the group at present."""

    SETUP = "setup"  # before the loop: a failure raises, and the job starts again
    LOCAL = "local"  # answered at once, as if this process were alone
    ATTEMPT = "attempt"  # a failure marks the group; the gate sees it
    CLOSED = "closed"  # behind the gate, or between two steps: refused


def connect_generation(assignment: Assignment, timeout_s: float) -> GenerationGroup:
    """Connect to all ranks with the backend that ``FABRIC_TRAIN_BACKEND`` names.

    Blocks until all are here, or raises ``RuntimeError``; ``BackendError`` for another backend,
    ``LibraryMissingError`` where a library of the backend is not there.
    """
    makers: dict[str, Callable[[Assignment, float], GenerationGroup]]
    makers = {"gloo": GlooGeneration, "plugin": PluginGeneration, "nccl": NcclGeneration}
    return makers[backend.chosen(os.environ)](assignment, timeout_s)


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
        self._pending: dict[Any, _Pending] = {}
        self._stuck: list[_Pending] = []  # their memory stays, for gloo has its address
        self._idle = threading.Condition()
        self._awaited = False  # somebody waits until nothing is pending
        self._changing = threading.Lock()
        self.use = Use.LOCAL
        self.broken = False
        self.on_broken: Callable[[int, str], None] = lambda _generation, _error: None
        self.on_broadcast: Callable[[Tensor], None] = lambda _tensor: None
        self.on_reduce: Callable[[], None] = lambda: None  # before a sum of an attempt begins

    def adopt(self, inner: GenerationGroup) -> None:
        """Use ``inner`` from now on; the one before has to be quiet by then."""
        with self._changing:
            gone = [self._inner]
            self._inner = inner
            self._rank = inner.rank
            self.broken = False
        # Its end takes tens of milliseconds, for gloo joins its threads.
        threading.Thread(target=gone.clear, name="fabric-gone").start()

    @property
    def inner(self) -> GenerationGroup | None:
        """Connections of the newest generation that this process is part of."""
        return self._inner

    @property
    def generation(self) -> int:
        """The generation whose collectives work; 0: none."""
        inner = self._inner
        return inner.generation if inner is not None and not self.broken else 0

    def abort(self, before: int) -> None:
        """End all collectives of a generation older than ``before``; from any thread."""
        with self._changing:
            inner = self._inner
            if inner is None or inner.generation >= before:
                return
            self.broken = True
        inner.abort()
        if self._pending:
            threading.Thread(target=self._end_stuck, args=(inner,), daemon=True).start()

    def _end_stuck(self, inner: GenerationGroup) -> None:
        """End those collectives of ``inner`` that its abort has missed."""
        stuck = 0
        while any(one.inner is inner for one in list(self._pending.values())):
            time.sleep(_LOOK_S)
            stuck = stuck + 1 if inner.is_stuck() else 0
            if stuck < _LOOKS:
                continue
            inner.keep()
            for work, one in list(self._pending.items()):
                if one.inner is inner:
                    self._stuck.append(one)
                    self._end(work)

    def wait_quiet(self, timeout_s: float) -> bool:
        """Wait until no collective can write memory any more. False: some still might."""
        with self._idle:
            self._awaited = True
            quiet = self._idle.wait_for(lambda: not self._pending, timeout_s)
            self._awaited = False
        inner = self._inner
        return quiet and (inner is None or inner.quiet(timeout_s))

    def settle(self) -> bool:
        """Wait until all collectives of this attempt are over. True: each has done its work."""
        inner = self._inner
        if inner is not None and not self.broken:
            try:
                inner.settle()
            except RuntimeError as error:
                self._fail(inner, error)
        return not self.broken

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
        future = work.get_future()
        pending = _Pending(inner, result, work, _future_of(result))
        self._pending[work] = pending  # under the GIL, as its end

        def end(ended: Future[Any]) -> None:
            try:
                ended.value()
            except RuntimeError as error:
                self._fail(inner, error)
            finally:
                self._end(work)

        future.then(end)
        return _create_work_from_future(pending.future)

    def _end(self, work: Any) -> None:
        """The collective has ended, or counts as ended; once for each."""
        pending = self._pending.pop(work, None)
        if pending is None:
            return
        pending.future.set_result(pending.result)
        if self._awaited:  # who sets it looks at what is pending after that
            with self._idle:
                self._idle.notify_all()

    def _fail(self, inner: GenerationGroup, error: RuntimeError) -> None:
        if inner is self._inner and not self.broken:
            self.broken = True
            self.on_broken(inner.generation, str(error))

    # What torch calls. Names and arguments are those of ProcessGroup.

    def getBackendName(self) -> str:
        return "fabric"

    @property
    def group_name(self) -> str:
        raise RuntimeError(REFUSAL)  # device meshes ask for it

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._world

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        if self.use is Use.ATTEMPT and not self.broken:
            self.on_reduce()
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


@dataclass(frozen=True, eq=False)
class _Pending:
    """A collective that was started: what it may write, and the future of who waits for it."""

    inner: GenerationGroup
    result: list[Any]
    work: Any
    future: Future[Any]


def _future_of(result: Sequence[Any]) -> Future[Any]:
    devices = {one.device for one in _tensors(result) if one.device.type == "cuda"}
    return Future(devices=list(devices))


def _done(result: Sequence[Any]) -> Any:
    future = _future_of(result)
    future.set_result(result)
    return _create_work_from_future(future)


def _tensors(result: Sequence[Any]) -> Iterator[Tensor]:
    for one in result:
        if isinstance(one, Tensor):
            yield one
        else:
            yield from _tensors(one)


class Connecting:
    """Connects to a generation on a thread of its own, for that cannot be interrupted.

    ``notify`` is called when it has ended. Who does not want the group any more abandons it; what
    was abandoned ends with its own timeout.
    """

    def __init__(self, make: Callable[[], GenerationGroup], notify: Callable[[], None]) -> None:
        self._box: list[GenerationGroup | Exception] = []
        self._abandoned = threading.Event()

        def connect() -> None:
            try:
                self._box.append(make())
            except Exception as error:  # the training thread raises it
                self._box.append(error)
            if self._abandoned.is_set():
                self._discard()
            notify()

        threading.Thread(target=connect, name="fabric-connect", daemon=True).start()

    @property
    def ended(self) -> bool:
        """All ranks are connected, or that has failed."""
        return bool(self._box)

    @property
    def error(self) -> Exception | None:
        """Why it has failed."""
        got = self._box[0] if self._box else None
        return got if isinstance(got, Exception) else None

    def result(
        self, wait: Callable[[Callable[[], bool]], bool], give_up: Callable[[], bool]
    ) -> GenerationGroup | None:
        """The group, when all ranks are connected; None as soon as ``give_up`` holds.

        ``wait`` returns when its condition holds. Raises what the connecting has raised.
        """
        wait(lambda: self.ended or give_up())
        if not self._box:
            self.abandon()
            return None
        got = self._box[0]
        if isinstance(got, Exception):
            raise got
        return got

    def abandon(self) -> None:
        """Nobody wants the group."""
        self._abandoned.set()
        if self._box:
            self._discard()

    def _discard(self) -> None:
        if isinstance(self._box[0], GenerationGroup):
            self._box[0].discard()


def start_connecting(link: AgentLink, assignment: Assignment, timeout_s: float) -> Connecting:
    """Connect to all ranks of ``assignment``. Its result raises as ``connect_generation`` does."""
    return Connecting(lambda: connect_generation(assignment, timeout_s), link.notify)


def connect(link: AgentLink, assignment: Assignment, timeout_s: float) -> GenerationGroup | None:
    """The group of ``assignment``; None: a newer one has arrived meanwhile.

    Raises as ``connect_generation`` does.
    """
    started = start_connecting(link, assignment, timeout_s)
    return started.result(link.wait, lambda: link.newer_than(assignment.generation))
