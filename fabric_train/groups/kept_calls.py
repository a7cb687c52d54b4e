"""The collectives of an attempt, kept until its gate: they can be repeated without the loop.

The loop of a framework cannot run an attempt again. It need not: what a rank gives to a collective
is kept, so that the rank can give it once more, to a replacement that runs the attempt anew. Sums
are the same then, bit by bit, for the ranks and their order are. A collective that fails because a
rank was lost does not end: who waits for it waits until it was repeated, and gets the result then.
What has ended before is repeated for the replacement alone; its result is dropped.

The training thread (or one of autograd's) calls ``run``; ``replay`` runs on the thread that
recovers; collectives end on threads of the backend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future

from fabric_train.groups.torch_calls import Call
from fabric_train.rules.loop import RuleError

_WITH_OUTPUT = frozenset({
    "all_gather_single", "all_to_all_single", "allgather", "allgather_coalesced", "alltoall",
    "gather", "reduce_scatter", "reduce_scatter_single", "scatter",
})  # fmt: skip
"""Collectives that write to their first argument and read the second. Others do both to one."""


class Group(Protocol):
    """What of a ``FabricGroup`` is needed here."""

    @property
    def broken(self) -> bool:
        """Its generation has ended."""

    def raise_mistake(self) -> None:
        """Raise ``RuleError`` for a collective that was started and cannot be done."""

    def begin(
        self,
        start: Callable[[Any], Any],
        result: list[Any],
        finish: Callable[[bool], None],
        *,
        joint: bool,
    ) -> bool:
        """Start a collective."""


class KeptCalls:
    """Those of one attempt, of all groups of a job, in the order in which they were called."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._calls: list[_Kept] = []
        self._live = False  # what is called is started at once

    def open(self) -> None:
        """An attempt begins."""
        with self._changed:
            self._calls, self._live = [], True

    def close(self) -> None:
        """The attempt counts: nothing of it is repeated any more."""
        with self._changed:
            self._calls, self._live = [], False

    def suspend(self) -> None:
        """Start nothing before ``replay``: another generation is made."""
        with self._changed:
            self._live = False

    def run(
        self, group: Group, start: Callable[[Any], Any], result: list[Any], *, joint: bool
    ) -> Any:  # noqa: ANN401
        """Keep a call, and start it, now or with the next generation. Returns its ``Work``."""
        if not isinstance(start, Call):
            raise RuleError(
                "a receive from any rank cannot be repeated after a loss: name its source"
            )
        group.raise_mistake()
        with self._changed:
            kept = _Kept(group, start, result, joint)
            self._calls.append(kept)
            if self._live and not group.broken:
                try:
                    self._start(kept, start, result)
                except RuleError:
                    self._calls.remove(kept)
                    raise
        return _create_work_from_future(kept.future)

    def replay(self) -> None:
        """Repeat all, over the present generation; what is called from now on follows at once."""
        with self._changed:
            for kept in self._calls:
                if kept.group.broken:
                    return
                again, result = kept.again()
                self._start(kept, again, result)
            self._live = True

    def wait_ended(self) -> None:
        """Wait until all have ended well, or the generation has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    all(one.ended for one in self._calls)
                    or any(one.group.broken for one in self._calls)
                )
            )

    def wake(self) -> None:
        """The generation may have ended."""
        with self._changed:
            self._changed.notify_all()

    def _start(self, kept: _Kept, call: Call, result: list[Any]) -> None:
        def finish(well: bool) -> None:
            with self._changed:
                first = well and not kept.ended
                if first:
                    kept.take(result)
                self._changed.notify_all()
            if first:
                kept.future.set_result(kept.result)

        kept.group.begin(call, result, finish, joint=kept.joint)


class _Kept:
    """One call, with what this rank gives to it."""

    def __init__(self, group: Group, call: Call, result: list[Any], joint: bool) -> None:
        self.group = group
        self.result = result
        self.joint = joint
        self.future = future_of(result)
        self.ended = False  # and its result is where it belongs
        self._call = call
        self._given = 1 if call.name in _WITH_OUTPUT else 0
        self._input = _mapped(call.arguments[self._given : self._given + 1], Tensor.clone)

    def again(self) -> tuple[Call, list[Any]]:
        """The same call with tensors of its own, and where its result will be."""
        arguments = list(self._call.arguments)
        arguments[self._given : self._given + 1] = _mapped(self._input, Tensor.clone)
        if self._given:
            arguments[0] = _mapped(arguments[0], _empty_like)
        outputs = arguments[0] if self.result else []
        result = outputs if isinstance(outputs, list) else [outputs]
        return Call(self._call.name, tuple(arguments)), result

    def take(self, result: list[Any]) -> None:
        """``result`` is that of this call."""
        self.ended = True
        if result is self.result:
            return
        for mine, its in zip(tensors_in(self.result), tensors_in(result), strict=True):
            mine.data.copy_(its)


def _empty_like(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:  # noqa: ANN401
    """``value`` with each tensor in it changed; lists and tuples become lists."""
    if isinstance(value, Tensor):
        return change(value.detach())
    if isinstance(value, (list, tuple)):
        return [_mapped(one, change) for one in value]
    return value


def tensors_in(result: Sequence[Any]) -> Iterator[Tensor]:
    """All tensors in lists of lists."""
    for one in result:
        if isinstance(one, Tensor):
            yield one
        else:
            yield from tensors_in(one)


def future_of(result: Sequence[Any]) -> Future[Any]:
    """One for a collective that writes to ``result``."""
    devices = {one.device for one in tensors_in(result) if one.device.type == "cuda"}
    return Future(devices=list(devices))
