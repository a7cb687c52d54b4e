"""The interface of torch's process groups, as torch 2.13 calls it.

torch.distributed and functional collectives call these methods, with these names and arguments. A
later torch may call others: a test compares the names that are here with those of the installed
torch. Groups of torch's own backends still have the names before 2.13, e.g. ``_allgather_base``.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future, collect_all

from fabric_train.groups.generation_group import method
from fabric_train.groups.one_group import REFUSAL

_MESHES = "torch.distributed.device_mesh"
_DDP = "torch.nn.parallel.distributed"


class Use(enum.Enum):
    """What the training thread may do with the group at present."""

    SETUP = "setup"  # before the loop: a failure raises, and the job starts again
    LOCAL = "local"  # answered at once, as if this process were alone
    ATTEMPT = "attempt"  # a failure marks the group; the gate sees it
    CLOSED = "closed"  # behind the gate, or between two steps: refused


_JOINT = ("allreduce", "allgather", "all_gather", "reduce_scatter", "all_to_all", "alltoall")


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a collective, which can be repeated with other tensors."""

    name: str
    arguments: tuple[Any, ...]

    @property
    def fills(self) -> bool:
        """Its result has no value before it has ended."""
        return self.name.startswith((*_JOINT[1:], "gather", "scatter"))

    def __call__(self, group: Any) -> Any:
        """Start it on ``group``; returns its ``Work``."""
        return method(group, self.name)(*self.arguments)


class TorchCalls(dist.ProcessGroup):
    """Answers each call locally where the use is LOCAL, and starts it by ``_run`` otherwise."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank, world)
        self._rank = rank
        self._world = world
        self.use = Use.LOCAL
        self.has_meshes = False
        """Device meshes may be made of it."""
        self.broken = False
        self.on_ddp_broadcast: Callable[[Tensor], None] = lambda _tensor: None
        self.on_reduce: Callable[[], None] = lambda: None  # before a sum of an attempt begins

    def _run(self, start: Callable[[Any], Any], result: list[Any], *, joint: bool = False) -> Any:
        """Start a collective of the group of this generation, which writes to ``result``.

        ``joint``: no rank finishes it before all have given their part.
        """
        raise NotImplementedError

    def _start(self, name: str, result: list[Any], *arguments: Any) -> Any:
        joint = name.startswith(_JOINT)
        return self._run(Call(name, arguments), result, joint=joint)

    def _reduces(self) -> None:
        if self.use is Use.ATTEMPT and not self.broken:
            self.on_reduce()

    # Names and arguments are those of ProcessGroup.

    def getBackendName(self) -> str:
        return "fabric"

    @property
    def group_name(self) -> str:
        if not self.has_meshes and _caller() == _MESHES:
            raise RuntimeError(REFUSAL)
        name: str = dist.distributed_c10d._get_process_group_name(self)  # noqa: SLF001
        return name

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._world

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        self._reduces()
        return self._start("allreduce", tensors, tensors, opts or c10d.AllreduceOptions())

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        self._reduces()
        opts = opts or c10d.AllreduceCoalescedOptions()
        return self._start("allreduce_coalesced", tensors, tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        if self.use is Use.LOCAL and _caller() == _DDP:
            for tensor in tensors:
                self.on_ddp_broadcast(tensor)
        return self._start("broadcast", tensors, tensors, opts or c10d.BroadcastOptions())

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        if self.use is Use.LOCAL:
            for output, tensor in zip(outputs, inputs, strict=True):
                for one in output:
                    one.copy_(tensor)
        return self._start("allgather", outputs, outputs, inputs, opts or c10d.AllgatherOptions())

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        if self.use is Use.LOCAL:
            for output in outputs:
                for one, tensor in zip(output, inputs, strict=True):
                    one.copy_(tensor)
        opts = opts or c10d.AllgatherOptions()
        return self._start("allgather_coalesced", outputs, outputs, inputs, opts)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        if self.use is Use.LOCAL:
            rows = tensor.reshape(1, -1).expand(self._world, -1)
            output.copy_(rows.reshape(output.shape))
        opts = opts or c10d.AllgatherOptions()
        return self._start("all_gather_single", [output], output, tensor, opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return _joined([self.all_gather_single(one, part, opts) for one, part in pairs], outputs)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Any:
        self._reduces()
        if self.use is Use.LOCAL:
            for output, parts in zip(outputs, inputs, strict=True):
                output.copy_(parts[self._rank])
        opts = opts or c10d.ReduceScatterOptions()
        return self._start("reduce_scatter", outputs, outputs, inputs, opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        self._reduces()
        if self.use is Use.LOCAL:
            output.copy_(tensor.reshape(self._world, -1)[self._rank].reshape(output.shape))
        opts = opts or c10d.ReduceScatterOptions()
        return self._start("reduce_scatter_single", [output], output, tensor, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        works = [self.reduce_scatter_single(one, whole, opts) for one, whole in pairs]
        return _joined(works, outputs)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: list[int], input_sizes: list[int],
        opts: Any = None,
    ) -> Any:  # fmt: skip
        if self.use is Use.LOCAL:
            output.zero_()
            mine = output.split(output_sizes or len(output) // self._world)[self._rank]
            mine.copy_(tensor.split(input_sizes or len(tensor) // self._world)[self._rank])
        opts = opts or c10d.AllToAllOptions()
        return self._start(
            "all_to_all_single", [output], output, tensor, output_sizes, input_sizes, opts
        )

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        if self.use is Use.LOCAL:
            for output in outputs:
                output.zero_()
            outputs[self._rank].copy_(inputs[self._rank])
        return self._start("alltoall", outputs, outputs, inputs, opts or c10d.AllToAllOptions())

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        self._reduces()
        return self._start("reduce", tensors, tensors, opts or c10d.ReduceOptions())

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        if self.use is Use.LOCAL:
            for output, tensor in zip(outputs, inputs, strict=False):
                for one in output:
                    one.copy_(tensor)
        return self._start("gather", outputs, outputs, inputs, opts or c10d.GatherOptions())

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        if self.use is Use.LOCAL:
            for output, tensors in zip(outputs, inputs, strict=False):
                output.copy_(tensors[self._rank])
        return self._start("scatter", outputs, outputs, inputs, opts or c10d.ScatterOptions())

    def barrier(self, opts: Any = None) -> Any:
        return self._start("barrier", [], opts or c10d.BarrierOptions())

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> Any:
        return self._start("send", tensors, tensors, destination, tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Any:
        self._receive_zeros(tensors)
        return self._start("recv", tensors, tensors, source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Any:
        self._receive_zeros(tensors)
        started: list[Any] = []

        def start(group: Any) -> Any:
            started.append(method(group, "recv_anysource")(tensors, tag))
            return started[0]

        return _Received(self._run(start, tensors), started)

    def _receive_zeros(self, tensors: Sequence[Tensor]) -> None:
        if self.use is Use.LOCAL:
            for tensor in tensors:
                tensor.zero_()

    # Callers of before torch 2.13.

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _caller() -> object:
    """The module that calls the method which asks; C++ in between does not count."""
    return sys._getframe(2).f_globals.get("__name__")  # noqa: SLF001


class _Received(dist.Work):
    """A receive from any rank, which says from which it came. A wrapped future does not."""

    def __init__(self, work: Any, started: Sequence[Any]) -> None:
        super().__init__()
        self._work = work
        self._started = started

    def wait(self, *_timeout: Any) -> bool:
        return bool(self._work.wait())

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def get_future(self) -> Any:
        return self._work.get_future()

    def _source_rank(self) -> int:
        """Of the sender; 0 where nothing was received."""
        try:
            return int(self._started[0]._source_rank()) if self._started else 0  # noqa: SLF001
        except RuntimeError:
            return 0


def _joined(works: Sequence[Any], result: list[Tensor]) -> Any:
    """One work for all of ``works``."""
    if len(works) == 1:
        return works[0]
    futures: list[Future[Any]] = [work.get_future() for work in works]
    every = collect_all(futures)
    return _create_work_from_future(every.then(lambda _every: result))
