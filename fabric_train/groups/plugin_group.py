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

from fabric_train.groups.generation_group import GenerationGroup
from fabric_train.groups.plugin_library import (
    ElementType,
    Kind,
    NativeGroup,
    Task,
    find_collectives,
    find_plugin,
)
from fabric_train.groups.plugin_work import (
    PluginWork,
    copy_back,
    dense,
    element_of,
    gather_task,
    reduce_scatter_task,
    reduction_of,
    send_task,
)
from fabric_train.messages.process import Assignment

_ADDRESS = "plugin/{}"
_EXCHANGE = 0xA2A  # tag of what an all-to-all moves


class PluginGeneration(GenerationGroup):
    """One generation over the plugin that ``NCCL_NET_PLUGIN`` names."""

    def __init__(self, assignment: Assignment, store: dist.Store, timeout_s: float) -> None:
        """Connect to all ranks; blocks until all are here.

        Raises ``RuntimeError``; ``LibraryMissingError`` where a library is not there.
        """
        super().__init__(assignment, store, timeout_s)
        rank, world = self.rank, self.world
        plugin = find_plugin(os.environ)
        native = NativeGroup(plugin, find_collectives(os.environ, plugin), rank, world)
        try:
            store.set(_ADDRESS.format(rank), native.address())
            addresses = [store.get(_ADDRESS.format(other)) for other in range(world)]
            native.connect(addresses, timeout_s)
        except BaseException:
            native.close()
            raise
        self._group = PluginGroup(native, rank, world)

    @property
    def group(self) -> PluginGroup:
        """The collectives."""
        return self._group

    def end(self) -> None:
        """End every collective with an error, and refuse others."""
        self._group.abort(f"generation {self.generation} has ended")

    def discard(self) -> None:
        """Drop a group that nobody used."""
        self.end()


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
        self._works: dict[int, PluginWork] = {}
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
    ) -> PluginWork:
        work = PluginWork(result, memory, after)
        with self._lock:
            for task in tasks:
                self._works[self._native.start(task)] = work
                work.left += 1
        if not tasks:
            work.complete()
        return work

    # What torch calls.

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> PluginWork:
        """Reduce each tensor over all ranks, in place."""
        reduction = reduction_of(opts)
        whole = [dense(tensor) for tensor in tensors]
        tasks = [
            Task(Kind.ALL_REDUCE, element_of(one), one.numel(), output=one.data_ptr(),
                 reduction=reduction)
            for one in whole
        ]  # fmt: skip
        return self._start(tasks, tensors, whole, lambda: copy_back(whole, tensors))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> PluginWork:
        """As ``allreduce``."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> PluginWork:
        """Each tensor becomes that of rank ``opts.rootRank``."""
        root = opts.rootRank if opts is not None else 0
        whole = [dense(tensor) for tensor in tensors]
        tasks = [
            Task(Kind.BROADCAST, ElementType.U8, one.nbytes, output=one.data_ptr(), peer=root)
            for one in whole
        ]
        return self._start(tasks, tensors, whole, lambda: copy_back(whole, tensors))

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], _opts: Any = None
    ) -> PluginWork:
        """Every rank gets the tensors of all ranks: ``[tensor][rank]``, all of one size."""
        tasks, memory, flats = [], [], []
        for output, tensor in zip(outputs, inputs, strict=True):
            if len(output) != self._world or any(one.nbytes != tensor.nbytes for one in output):
                raise ValueError("allgather: one output of the input's size for each rank")
            part = dense(tensor)
            flat = torch.empty(self._world * part.nbytes, dtype=torch.uint8)
            memory += [part, flat]
            flats.append(flat)
            tasks.append(gather_task(part, flat))

        def scatter() -> None:
            for output, tensor, flat in zip(outputs, inputs, flats, strict=True):
                rows = flat.view(self._world, -1)
                for one, row in zip(output, rows, strict=True):
                    one.copy_(row.view(tensor.dtype).view(one.shape))

        return self._start(tasks, outputs, memory, scatter)

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> PluginWork:
        """As ``allgather``, with the outputs as ``[rank][tensor]``."""
        return self.allgather([list(one) for one in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: Tensor, tensor: Tensor, _opts: Any = None) -> PluginWork:
        """Every rank gets the tensors of all ranks, one after the other."""
        if output.nbytes != self._world * tensor.nbytes:
            raise ValueError("allgather: the output has the size of all inputs together")
        part, whole = dense(tensor), dense(output)
        return self._start(
            [gather_task(part, whole)],
            [output],
            [part, whole],
            lambda: copy_back([whole], [output]),
        )

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> PluginWork:
        """Each output becomes the sum of all ranks' ``inputs[…][rank]``, all of one size."""
        wholes, parts, tasks = [], [], []
        for output, tensors in zip(outputs, inputs, strict=True):
            if len(tensors) != self._world or any(
                (one.numel(), one.dtype) != (output.numel(), output.dtype) for one in tensors
            ):
                raise ValueError("reduce_scatter: one input of the output's size for each rank")
            wholes.append(torch.cat([dense(one).view(-1) for one in tensors]))
            parts.append(dense(output))
            tasks.append(reduce_scatter_task(wholes[-1], parts[-1], opts))
        return self._start(tasks, outputs, [*wholes, *parts], lambda: copy_back(parts, outputs))

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> PluginWork:
        """``output`` becomes this rank's part of the sum of all ranks' ``tensor``."""
        if tensor.numel() != self._world * output.numel() or tensor.dtype != output.dtype:
            raise ValueError("reduce_scatter: the input has the size of all outputs together")
        whole, part = dense(tensor), dense(output)
        task = reduce_scatter_task(whole, part, opts)
        return self._start([task], [output], [whole, part], lambda: copy_back([part], [output]))

    def reduce(self, tensors: list[Tensor], opts: Any) -> PluginWork:
        """As ``allreduce``, with the result at rank ``opts.rootRank`` alone."""
        copies = [tensor.detach().clone(memory_format=torch.contiguous_format)
                  for tensor in tensors]  # fmt: skip
        tasks = [
            Task(Kind.ALL_REDUCE, element_of(one), one.numel(), output=one.data_ptr(),
                 reduction=reduction_of(opts))
            for one in copies
        ]  # fmt: skip
        is_root = self._rank == opts.rootRank
        after = (lambda: copy_back(copies, tensors)) if is_root else (lambda: None)
        return self._start(tasks, tensors, copies, after)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> PluginWork:
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

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> PluginWork:
        """Every rank gets its part of ``inputs`` (``[tensor][rank]``) of rank ``opts.rootRank``."""
        root = opts.rootRank
        if self._rank != root:
            return self.recv(outputs, root, 0)
        parts = [(dense(tensors[r]), r) for tensors in inputs for r in range(self._world)]
        for output, tensors in zip(outputs, inputs, strict=True):
            output.copy_(tensors[root])
        tasks = [send_task(one, r, 0) for one, r in parts if r != root]
        return self._start(tasks, outputs, [one for one, _ in parts])

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: list[int], input_sizes: list[int],
        _opts: Any = None,
    ) -> PluginWork:  # fmt: skip
        """Rank r gets the r-th part of ``tensor``; parts of the first dimension, by their sizes."""
        whole = dense(output)
        parts = _parts(whole, output_sizes, self._world, "output")
        given = _parts(dense(tensor), input_sizes, self._world, "input")
        return self._exchange(parts, given, [output], lambda: copy_back([whole], [output]))

    def alltoall(
        self, outputs: list[Tensor], inputs: list[Tensor], _opts: Any = None
    ) -> PluginWork:
        """Rank r gets ``inputs[r]``."""
        if len(outputs) != self._world or len(inputs) != self._world:
            raise ValueError("all_to_all: one output and one input for each rank")
        whole = [dense(one) for one in outputs]
        given = [dense(one) for one in inputs]
        return self._exchange(whole, given, outputs, lambda: copy_back(whole, outputs))

    def _exchange(
        self, parts: Sequence[Tensor], given: Sequence[Tensor], result: list[Any],
        after: Callable[[], None],
    ) -> PluginWork:  # fmt: skip
        """Dense ``given[r]`` goes to rank r, and ``parts[r]`` comes from there."""
        if parts[self._rank].nbytes != given[self._rank].nbytes:
            raise ValueError("all_to_all: a rank gives itself what it gets from itself")
        kept = given[self._rank].clone()
        others = [r for r in range(self._world) if r != self._rank]
        tasks = [
            Task(Kind.RECEIVE, ElementType.U8, parts[r].nbytes, output=parts[r].data_ptr(), peer=r,
                 tag=_EXCHANGE)
            for r in others if parts[r].nbytes
        ]  # fmt: skip
        tasks += [send_task(given[r], r, _EXCHANGE) for r in others if given[r].nbytes]

        def finish() -> None:
            with torch.no_grad():
                parts[self._rank].view(-1).copy_(kept.view(-1))
            after()

        return self._start(tasks, result, [*parts, *given], finish)

    def recv_anysource(self, _tensors: list[Tensor], _tag: int) -> PluginWork:
        """Refused: a receive is posted to the connection of one rank."""
        raise TypeError("the plugin backend receives from a rank that is named")

    def barrier(self, _opts: Any = None) -> PluginWork:
        """Done when every rank has called it."""
        one = torch.zeros(1, dtype=torch.int32)
        task = Task(Kind.ALL_REDUCE, ElementType.I32, 1, output=one.data_ptr())
        return self._start([task], [], [one])

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> PluginWork:
        """Send to one rank. Messages between two ranks arrive in the order of their calls."""
        whole = [dense(tensor) for tensor in tensors]
        return self._start([send_task(one, destination, tag) for one in whole], tensors, whole)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> PluginWork:
        """Receive what ``source`` sends next; its size and its tag have to be those."""
        return self._receive([(tensor, source) for tensor in tensors], tag, tensors, tensors)

    def _receive(
        self, wanted: list[tuple[Tensor, int]], tag: int, result: list[Any], keep: list[Tensor]
    ) -> PluginWork:
        whole = [dense(tensor) for tensor, _ in wanted]
        tasks = [
            Task(Kind.RECEIVE, ElementType.U8, one.nbytes, output=one.data_ptr(), peer=source,
                 tag=tag)
            for one, (_, source) in zip(whole, wanted, strict=True)
        ]  # fmt: skip
        targets = [tensor for tensor, _ in wanted]
        return self._start(tasks, result, [*whole, *keep], lambda: copy_back(whole, targets))


def _parts(whole: Tensor, sizes: Sequence[int], world: int, what: str) -> list[Tensor]:
    """Dense ``whole`` in one part for each rank; without ``sizes`` in equal ones."""
    rows = len(whole) if whole.dim() else 0
    if not sizes and rows % world:
        raise ValueError(f"all_to_all_single: {what} of {rows} rows for {world} ranks")
    split = list(sizes) or [rows // world] * world
    if len(split) != world or sum(split) != rows:
        raise ValueError(f"all_to_all_single: {what} of {rows} rows, parts of {split}")
    return list(whole.split(split))
