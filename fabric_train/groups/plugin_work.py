"""One call of the plugin backend, and how its tensors become operations of the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from fabric_train.groups.plugin_library import ElementType, Kind, Reduction, Task

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


class PluginWork(dist.Work):
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


def send_task(one: Tensor, destination: int, tag: int) -> Task:
    """Send dense ``one``."""
    return Task(
        Kind.SEND, ElementType.U8, one.nbytes, input=one.data_ptr(), peer=destination, tag=tag
    )


def gather_task(part: Tensor, whole: Tensor) -> Task:
    """Gather dense ``part`` of each rank into dense ``whole``."""
    return Task(
        Kind.ALL_GATHER, ElementType.U8, part.nbytes, input=part.data_ptr(),
        output=whole.data_ptr(),
    )  # fmt: skip


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a contiguous copy of it. Raises ``TypeError`` for one outside host memory."""
    if tensor.device.type != "cpu" or tensor.is_sparse:
        raise TypeError(f"the plugin backend moves dense tensors of cpu, not of {tensor.device}")
    return tensor.detach().contiguous()


def copy_back(copies: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Write the results back where a tensor was not dense."""
    with torch.no_grad():
        for copy, tensor in zip(copies, tensors, strict=True):
            if copy.data_ptr() != tensor.data_ptr():
                tensor.copy_(copy)


def element_of(tensor: Tensor) -> ElementType:
    """The type of an element that is reduced. Raises ``TypeError``."""
    if tensor.dtype not in _ELEMENTS:
        raise TypeError(f"the plugin backend reduces no {tensor.dtype}")
    return _ELEMENTS[tensor.dtype]


def reduction_of(opts: Any) -> Reduction:
    """The reduction of a call. Raises ``TypeError``."""
    op = opts.reduceOp.op if opts is not None else _OPS.SUM
    if op not in _REDUCTIONS:
        raise TypeError(f"the plugin backend has no {op}")
    return _REDUCTIONS[op]


def reduce_scatter_task(whole: Tensor, part: Tensor, opts: Any) -> Task:
    """Reduce dense ``whole``, of which this rank gets dense ``part``."""
    return Task(
        Kind.REDUCE_SCATTER, element_of(part), part.numel(), input=whole.data_ptr(),
        output=part.data_ptr(), reduction=reduction_of(opts),
    )  # fmt: skip
