"""Whole copies with each step, where an optimizer's step cannot be repeated on a shard alone.

A buddy gets all of its ward's units when a step begins, and each rank keeps a copy of itself. Who
is lost behind the step is put back before it, and so are all others (``step_rule.plan_return``):
the step is run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fabric_train.shards.entry import BadEntryError, Entry, size_of
from fabric_train.shards.keeper import GradientLog, ShardKeeper
from fabric_train.shards.log import Replay
from fabric_train.shards.own_copy import OwnCopy
from fabric_train.shards.units import ShardUnits
from fabric_train.state.replicated import ReplicatedState, TensorSpec, spec_of


@dataclass(frozen=True)
class _Copy:
    units: tuple[tuple[TensorSpec, ...], ...]
    tensors: list[Tensor]
    scalars: bytes


class CopyLog:
    """What one rank keeps of another's shards: a copy, and the next one until all have theirs.

    Tensors are bytes in host memory.
    """

    def __init__(self) -> None:
        self._copies: dict[int, _Copy] = {}
        self._free: dict[int, list[Tensor]] = defaultdict(list)

    def span(self) -> tuple[int, int] | None:
        """The first and the last step after which it can rebuild the shards; None: none."""
        return (min(self._copies), max(self._copies)) if self._copies else None

    @property
    def size(self) -> int:
        """Bytes that it uses, with those that wait for what arrives next."""
        kept = sum(one.numel() for copy in self._copies.values() for one in copy.tensors)
        return int(kept) + sum(size * len(free) for size, free in self._free.items())

    def buffers(self, entry: Entry) -> list[Tensor]:
        """Memory for the tensors of ``entry``, to be filled and given to `add`.

        Raises ``BadEntryError`` for an entry that does not follow what is here.
        """
        span = self.span()
        if len(entry.renewed) != entry.units or entry.gradients:
            raise BadEntryError(f"rank {entry.rank} gives no whole copy of its shards")
        if not entry.seeds and (span is None or not span[1] <= entry.step <= span[1] + 1):
            raise BadEntryError(f"rank {entry.rank} gives step {entry.step}, and {span} is known")
        sizes = map(size_of, entry.specs())
        return [
            self._free[size].pop() if self._free[size] else torch.empty(size, dtype=torch.uint8)
            for size in sizes
        ]

    def add(self, entry: Entry, tensors: Sequence[Tensor]) -> None:
        """All of ``entry`` is here, and whole. A copy of the same step is replaced."""
        for step in [*self._copies] if entry.seeds else [entry.step]:
            self._forget(step)
        units = tuple(entry.renewed[place] for place in range(entry.units))
        self._copies[entry.step] = _Copy(units, list(tensors), entry.scalars)

    def voted(self, step: int) -> None:
        """All ranks' copies of ``step`` are there: older ones are not needed any more."""
        for one in [one for one in self._copies if one < step]:
            self._forget(one)

    def go_on(self, step: int) -> None:
        """All ranks go on after ``step`` steps: what was copied after that is void."""
        for one in [one for one in self._copies if one > step]:
            self._forget(one)

    def offer(self, until: int) -> tuple[Replay, list[Tensor], bytes]:
        """What rebuilds the shards after ``until`` steps: nothing is replayed. And scalars."""
        copy = self._copies[until]
        replay = Replay(until, (until,) * len(copy.units), copy.units, {}, {}, {})
        return replay, copy.tensors, copy.scalars

    def _forget(self, step: int) -> None:
        copy = self._copies.pop(step, None)
        for one in copy.tensors if copy is not None else ():
            self._free[one.numel()].append(one)


class CopyKeeper(ShardKeeper[CopyLog]):
    """A `ShardKeeper` whose buddies get whole copies."""

    def __init__(self, units: ShardUnits, options: GradientLog) -> None:
        super().__init__(units, options)
        self.own = OwnCopy()

    def _new_log(self) -> CopyLog:
        return CopyLog()

    def need(self) -> tuple[int, int]:
        """As of `ShardKeeper`: a copy is beside the next one until all ranks have voted."""
        base = sum(one for one, _ in self.units.sizes())
        return 2 * base, base

    def own_need(self, state: ReplicatedState) -> int:
        """As of `ShardKeeper`."""
        names = self.units.names()
        rest = (one for name, one in state.tensors() if name not in names)
        return self.need()[1] + sum(int(one.numel() * one.element_size()) for one in rest)

    def describe(self, state: ReplicatedState) -> str:
        """As of `ShardKeeper`."""
        needs, each_step = self.need()
        count = self.options.buddies
        return (
            f"{count} budd{'ies get' if count > 1 else 'y gets'} a whole copy with each step, for "
            f"the step of {' and '.join(self.units.unreplayed)} cannot be repeated on a shard "
            f"alone: {count * needs} bytes of host memory for each rank and "
            f"{self.own_need(state)} for its own copy, {count * each_step} a step; at most one "
            "step is run again"
        )

    def meet(
        self,
        rank: int,
        hosts: Sequence[str],
        step: int,
        keeps: Sequence[Mapping[int, tuple[int, int]]],
    ) -> None:
        """As of `ShardKeeper`."""
        super().meet(rank, hosts, step, keeps)
        for log in self._logs.values():
            log.go_on(step)

    def voted(self, state: ReplicatedState) -> None:
        """As of `ShardKeeper`."""
        super().voted(state)
        for log in self._logs.values():
            log.voted(self._step or 0)

    def _entry(
        self, rank: int, step: int, scalars: bytes, *, seeds: bool
    ) -> tuple[Entry, list[Tensor]]:
        units = self.units
        renewed = {place: units.tensors(one) for place, one in enumerate(units.units)}
        entry = Entry(
            rank, step, seeds, len(units.units), {},
            {place: tuple(spec_of(*one) for one in each) for place, each in renewed.items()},
            {}, scalars,
        )  # fmt: skip
        return entry, [one for each in renewed.values() for _, one in each]

    def _offer(self, ward: int, step: int) -> tuple[Replay, list[Tensor], bytes]:
        return self._logs[ward].offer(step)
