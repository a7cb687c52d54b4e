"""The connections of one generation over an NCCL network plugin, in host memory.

``libfabric-collectives.so`` moves the data on a thread of its own; a second thread here completes
the futures. So a collective goes on while the training thread holds the GIL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from fabric_train.groups.generation_group import GenerationGroup, generation_store
from fabric_train.groups.plugin_library import (
    ElementType,
    Kind,
    NativeGroup,
    Reduction,
    Task,
    find_collectives,
    find_plugin,
)
from fabric_train.messages.process import Assignment

_ADDRESS = "plugin/{}"
_OPS = dist.ReduceOp.RedOpType
_REDUCTIONS = {
    _OPS.SUM: Reduction.SUM,
    _OPS.AVG: Reduction.AVERAGE,
    _OPS.MIN: Reduction.MINIMUM,
    _OPS.MAX: Reduction.MAXIMUM,
    _OPS.PRODUCT: Reduction.PRODUCT,
}
_ELEMENTS = {
    torch.uint8: ElementType.U8,
    torch.int8: ElementType.I8,
    torch.int32: ElementType.I32,
    torch.int64: ElementType.I64,
    torch.float16: ElementType.F16,
    torch.bfloat16: ElementType.BF16,
    torch.float32: ElementType.F32,
    torch.float64: ElementType.F64,
}


class PluginGeneration(GenerationGroup):
    """One generation over the plugin that ``NCCL_NET_PLUGIN`` names."""

    def __init__(self, assignment: Assignment, timeout_s: float) -> None:
        """Connect to all ranks; blocks until all are here.

        Raises ``RuntimeError``; ``LibraryMissingError`` where a library is not there.
        """
        super().__init__(assignment)
        rank, world = self.rank, self.world
        plugin = find_plugin(os.environ)
        native = NativeGroup(plugin, find_collectives(os.environ, plugin), rank, world)
        try:
            meeting = generation_store(assignment, timeout_s)
            meeting.set(_ADDRESS.format(rank), native.address())
            addresses = [meeting.get(_ADDRESS.format(other)) for other in range(world)]
            native.connect(addresses, timeout_s)
        except BaseException:
            native.close()
            raise
        self._group = PluginGroup(native, rank, world)

    @property
    def group(self) -> PluginGroup:
        """The collectives."""
        return self._group

    def abort(self) -> None:
        """End every collective with an error, and refuse others."""
        self._group.abort(f"generation {self.generation} has ended")

    def discard(self) -> None:
        """Drop a group that nobody used."""
        self.abort()


class _Work(dist.Work):
    """One call of ``PluginGroup``: done when all its operations are, failed when one of them is.

    A future that torch wraps in a ``Work`` would not raise in ``wait``.
    """

    def __init__(self, result: list[Any], memory: list[Tensor], after: Callable[[], None]) -> None:
        super().__init__()
        self._base: Future[list[Any]] = Future()
        self._result = result
        self._after = after
        self.memory = memory  # what its operations use
        self.left = 0  # operations
        self.error = ""
        self._future = self._base.then(self._end)

    def _end(self, _base: Future[list[Any]]) -> list[Any]:
        if self.error:
            raise RuntimeError(self.error)
        self._after()
        return self._result

    def complete(self) -> None:
        """All operations have ended."""
        self._base.set_result([])

    # What torch calls.

    def wait(self, _timeout: Any = None) -> bool:
        """Raise ``RuntimeError`` when it failed. Collectives have no time limit: see ``abort``."""
        try:
            self._future.wait()
        except RuntimeError:
            if self.error:
                raise RuntimeError(self.error) from None
            raise
        return True

    def get_future(self) -> Future[list[Any]]:
        """Has the result, or the error."""
        return self._future

    def is_completed(self) -> bool:
        """It has ended, in whichever way."""
        return bool(self._future.done())


class PluginGroup:
    """Collectives of one rank. Names and arguments are those of ``ProcessGroup``.

    A collective raises ``TypeError`` or ``ValueError`` for what it cannot do, and ``RuntimeError``
    once the group has ended. A sum is formed in an order that depends on ranks alone.
    """

    def __init__(self, native: NativeGroup, rank: int, world: int) -> None:
        self._native = native
        self._rank = rank
        self._world = world
        self._lock = threading.Lock()
        self._works: dict[int, _Work] = {}
        name = "fabric-collectives"
        threading.Thread(target=self._complete, name=name, daemon=True).start()

    def abort(self, reason: str) -> None:
        """End every collective with an error, and refuse others; from any thread."""
        self._native.abort(reason)

    def _complete(self) -> None:
        while (ended := self._native.next()) is not None:
            number, error = ended
            with self._lock:
                work = self._works.pop(number)
                work.left -= 1
                work.error = work.error or error
                whole = work.left == 0
            if whole:
                work.complete()
        self._native.close()

    def _start(
        self,
        tasks: Sequence[Task],
        result: list[Any],
        memory: list[Tensor],
        after: Callable[[], None] = lambda: None,
    ) -> _Work:
        work = _Work(result, memory, after)
        with self._lock:
            for task in tasks:
                self._works[self._native.start(task)] = work
                work.left += 1
        if not tasks:
            work.complete()
        return work

    # What torch calls.

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> _Work:
        """Reduce each tensor over all ranks, in place."""
        reduction = _reduction(opts)
        whole = [_dense(tensor) for tensor in tensors]
        tasks = [
            Task(Kind.ALL_REDUCE, _element(one), one.numel(), output=one.data_ptr(),
                 reduction=reduction)
            for one in whole
        ]  # fmt: skip
        return self._start(tasks, tensors, whole, lambda: _copy_back(whole, tensors))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> _Work:
        """As ``allreduce``."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> _Work:
        """Each tensor becomes that of rank ``opts.rootRank``."""
        root = opts.rootRank if opts is not None else 0
        whole = [_dense(tensor) for tensor in tensors]
        tasks = [
            Task(Kind.BROADCAST, ElementType.U8, one.nbytes, output=one.data_ptr(), peer=root)
            for one in whole
        ]
        return self._start(tasks, tensors, whole, lambda: _copy_back(whole, tensors))

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], _opts: Any = None
    ) -> _Work:
        """Every rank gets the tensors of all ranks: ``[tensor][rank]``, all of one size."""
        tasks, memory, flats = [], [], []
        for output, tensor in zip(outputs, inputs, strict=True):
            if len(output) != self._world or any(one.nbytes != tensor.nbytes for one in output):
                raise ValueError("allgather: one output of the input's size for each rank")
            part = _dense(tensor)
            flat = torch.empty(self._world * part.nbytes, dtype=torch.uint8)
            memory += [part, flat]
            flats.append(flat)
            tasks.append(_gather(part, flat))

        def scatter() -> None:
            for output, tensor, flat in zip(outputs, inputs, flats, strict=True):
                rows = flat.view(self._world, -1)
                for one, row in zip(output, rows, strict=True):
                    one.copy_(row.view(tensor.dtype).view(one.shape))

        return self._start(tasks, outputs, memory, scatter)

    def _allgather_base(self, output: Tensor, tensor: Tensor, _opts: Any = None) -> _Work:
        if output.nbytes != self._world * tensor.nbytes:
            raise ValueError("allgather: the output has the size of all inputs together")
        part, whole = _dense(tensor), _dense(output)
        return self._start(
            [_gather(part, whole)], [output], [part, whole], lambda: _copy_back([whole], [output])
        )

    def _reduce_scatter_base(self, output: Tensor, tensor: Tensor, opts: Any = None) -> _Work:
        if tensor.numel() != self._world * output.numel() or tensor.dtype != output.dtype:
            raise ValueError("reduce_scatter: the input has the size of all outputs together")
        whole, part = _dense(tensor), _dense(output)
        task = Task(
            Kind.REDUCE_SCATTER, _element(part), part.numel(), input=whole.data_ptr(),
            output=part.data_ptr(), reduction=_reduction(opts),
        )  # fmt: skip
        return self._start([task], [output], [whole, part], lambda: _copy_back([part], [output]))

    def reduce(self, tensors: list[Tensor], opts: Any) -> _Work:
        """As ``allreduce``, with the result at rank ``opts.rootRank`` alone."""
        copies = [tensor.detach().clone(memory_format=torch.contiguous_format)
                  for tensor in tensors]  # fmt: skip
        tasks = [
            Task(Kind.ALL_REDUCE, _element(one), one.numel(), output=one.data_ptr(),
                 reduction=_reduction(opts))
            for one in copies
        ]  # fmt: skip
        is_root = self._rank == opts.rootRank
        after = (lambda: _copy_back(copies, tensors)) if is_root else (lambda: None)
        return self._start(tasks, tensors, copies, after)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> _Work:
        """Rank ``opts.rootRank`` gets the tensors of all ranks: ``[tensor][rank]``."""
        root = opts.rootRank
        if self._rank != root:
            return self.send(inputs, root, 0)
        found = [one for output in outputs for one in output]
        for output, tensor in zip(outputs, inputs, strict=True):
            output[root].copy_(tensor)
        return self._receive(
            [(output[r], r) for output in outputs for r in range(self._world) if r != root],
            0, outputs, found,
        )  # fmt: skip

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> _Work:
        """Every rank gets its part of ``inputs`` (``[tensor][rank]``) of rank ``opts.rootRank``."""
        root = opts.rootRank
        if self._rank != root:
            return self.recv(outputs, root, 0)
        parts = [(_dense(tensors[r]), r) for tensors in inputs for r in range(self._world)]
        for output, tensors in zip(outputs, inputs, strict=True):
            output.copy_(tensors[root])
        tasks = [_send(one, r, 0) for one, r in parts if r != root]
        return self._start(tasks, outputs, [one for one, _ in parts])

    def barrier(self, _opts: Any = None) -> _Work:
        """Done when every rank has called it."""
        one = torch.zeros(1, dtype=torch.int32)
        task = Task(Kind.ALL_REDUCE, ElementType.I32, 1, output=one.data_ptr())
        return self._start([task], [], [one])

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> _Work:
        """Send to one rank. Messages between two ranks arrive in the order of their calls."""
        whole = [_dense(tensor) for tensor in tensors]
        return self._start([_send(one, destination, tag) for one in whole], tensors, whole)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> _Work:
        """Receive what ``source`` sends next; its size and its tag have to be those."""
        return self._receive([(tensor, source) for tensor in tensors], tag, tensors, tensors)

    def _receive(
        self, wanted: list[tuple[Tensor, int]], tag: int, result: list[Any], keep: list[Tensor]
    ) -> _Work:
        whole = [_dense(tensor) for tensor, _ in wanted]
        tasks = [
            Task(Kind.RECEIVE, ElementType.U8, one.nbytes, output=one.data_ptr(), peer=source,
                 tag=tag)
            for one, (_, source) in zip(whole, wanted, strict=True)
        ]  # fmt: skip
        targets = [tensor for tensor, _ in wanted]
        return self._start(tasks, result, [*whole, *keep], lambda: _copy_back(whole, targets))


def _send(one: Tensor, destination: int, tag: int) -> Task:
    return Task(
        Kind.SEND, ElementType.U8, one.nbytes, input=one.data_ptr(), peer=destination, tag=tag
    )


def _gather(part: Tensor, whole: Tensor) -> Task:
    return Task(
        Kind.ALL_GATHER, ElementType.U8, part.nbytes, input=part.data_ptr(),
        output=whole.data_ptr(),
    )  # fmt: skip


def _dense(tensor: Tensor) -> Tensor:
    """The tensor, or a contiguous copy of it. Raises ``TypeError`` for one outside host memory."""
    if tensor.device.type != "cpu" or tensor.is_sparse:
        raise TypeError(f"the plugin backend moves dense tensors of cpu, not of {tensor.device}")
    return tensor.detach().contiguous()


def _copy_back(copies: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for copy, tensor in zip(copies, tensors, strict=True):
            if copy.data_ptr() != tensor.data_ptr():
                tensor.copy_(copy)


def _element(tensor: Tensor) -> ElementType:
    if tensor.dtype not in _ELEMENTS:
        raise TypeError(f"the plugin backend reduces no {tensor.dtype}")
    return _ELEMENTS[tensor.dtype]


def _reduction(opts: Any) -> Reduction:
    op = opts.reduceOp.op if opts is not None else _OPS.SUM
    if op not in _REDUCTIONS:
        raise TypeError(f"the plugin backend has no {op}")
    return _REDUCTIONS[op]
