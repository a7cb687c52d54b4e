"""What one rank keeps of another's shards: a base copy of each unit, and the gradients since.

Each unit has a base of its own step: a part of them is renewed with each step, so that no step
copies all, and no unit's gradients become many. Gradients are appended before the vote on their
step. So whatever step any rank has applied, its gradients are here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fabric_train.shards.entry import BadEntryError, Entry, size_of
from fabric_train.state.plain_values import carry
from fabric_train.state.replicated import TensorSpec


class KeptShards(Protocol):
    """What one rank keeps of another's shards."""

    def span(self) -> tuple[int, int] | None:
        """The first and the last step after which it can rebuild the shards; None: none."""

    @property
    def size(self) -> int:
        """Bytes that it uses, with those that wait for what arrives next."""

    def buffers(self, entry: Entry) -> list[Tensor]:
        """Memory for the tensors of ``entry``, to be filled and given to `add`.

        Raises ``BadEntryError`` for an entry that does not follow what is here.
        """

    def add(self, entry: Entry, tensors: Sequence[Tensor]) -> None:
        """All of ``entry`` is here, and whole. A step that was given before is replaced."""


@carry
@dataclass(frozen=True)
class Replay:
    """What a buddy sends: bases, by unit, then gradients, by step and unit, in this order.

    ``since``: by unit, the step of its base. ``fields``: of the optimizers' groups, by step.
    ``stepped``: how often each optimizer made a step, by step. ``until``: steps that the result
    contains.
    """

    until: int
    since: tuple[int, ...]
    bases: tuple[tuple[TensorSpec, ...], ...]
    gradients: dict[int, dict[int, TensorSpec]]
    fields: dict[int, dict[str, list[dict[str, Any]]]]
    stepped: dict[int, dict[str, int]]


@dataclass
class _Kept:
    step: int
    base: list[tuple[TensorSpec, Tensor]]
    gradients: dict[int, tuple[TensorSpec, Tensor]] = field(default_factory=dict)


class ShardLog:
    """Of one rank. Tensors are bytes in host memory."""

    def __init__(self) -> None:
        self._units: list[_Kept] = []
        self._fields: dict[int, dict[str, list[dict[str, Any]]]] = {}
        self._free: dict[int, list[Tensor]] = defaultdict(list)

    def span(self) -> tuple[int, int] | None:
        """The first and the last step after which it can rebuild the shards; None: none."""
        if not self._units:
            return None
        first = max(one.step for one in self._units)
        last = first
        while last in self._fields:
            last += 1
        return first, last

    @property
    def size(self) -> int:
        """Bytes that it uses, with those that wait for what arrives next."""
        kept = sum(
            data.numel() for one in self._units for _, data in (*one.base, *one.gradients.values())
        )
        return int(kept) + sum(size * len(free) for size, free in self._free.items())

    def buffers(self, entry: Entry) -> list[Tensor]:
        """Memory for the tensors of ``entry``, to be filled and given to `add`.

        Raises ``BadEntryError`` for an entry that does not follow what is here.
        """
        if not entry.seeds:
            if entry.units != len(self._units):
                raise BadEntryError(
                    f"rank {entry.rank} gives {entry.units} units, and {len(self._units)} are known"
                )
            span = self.span()
            if span is None or not span[0] <= entry.step <= span[1]:
                raise BadEntryError(
                    f"rank {entry.rank} gives step {entry.step}, and {span} is known"
                )
        return [self._take(size_of(spec)) for spec in entry.specs()]

    def add(self, entry: Entry, tensors: Sequence[Tensor]) -> None:
        """All of ``entry`` is here, and whole. A step that was given before is replaced."""
        if entry.seeds:
            self._units = [_Kept(entry.step, []) for _ in range(entry.units)]
            self._fields.clear()
            self._free.clear()
        filled = iter(tensors)
        gradients = {unit: (spec, next(filled)) for unit, spec in entry.gradients.items()}
        for unit, specs in entry.renewed.items():
            kept = self._units[unit]
            self._give_back(data for _, data in kept.base)
            kept.step, kept.base = entry.step, [(spec, next(filled)) for spec in specs]
        for place, kept in enumerate(self._units):
            past = [at for at in kept.gradients if at < kept.step or at >= entry.step]
            self._give_back(kept.gradients.pop(at)[1] for at in past)
            if place in gradients:
                kept.gradients[entry.step] = gradients[place]
        oldest = min((one.step for one in self._units), default=entry.step)
        self._fields = {at: one for at, one in self._fields.items() if oldest <= at < entry.step}
        self._fields[entry.step] = entry.fields
        likely = Counter(size_of(spec) for spec in entry.specs())  # in the next entry, too
        self._free = defaultdict(
            list, {size: free[: likely[size]] for size, free in self._free.items() if likely[size]}
        )

    def offer(
        self, until: int, stepped: Mapping[int, Mapping[str, int]]
    ) -> tuple[Replay, list[Tensor]]:
        """What rebuilds the shards after ``until`` steps, a step of `span`, and its tensors."""
        steps = range(min((one.step for one in self._units), default=until), until)
        gradients: dict[int, dict[int, TensorSpec]] = {}
        data = [mine for one in self._units for _, mine in one.base]
        for at in steps:
            gradients[at] = {}
            for place, one in enumerate(self._units):
                if at >= one.step and at in one.gradients:
                    gradients[at][place] = one.gradients[at][0]
                    data.append(one.gradients[at][1])
        replay = Replay(
            until,
            tuple(one.step for one in self._units),
            tuple(tuple(spec for spec, _ in one.base) for one in self._units),
            gradients,
            {at: self._fields[at] for at in steps},
            {at: dict(stepped.get(at, {})) for at in steps},
        )
        return replay, data

    def _take(self, size: int) -> Tensor:
        free = self._free.get(size)
        return free.pop() if free else torch.empty(size, dtype=torch.uint8)

    def _give_back(self, tensors: Any) -> None:  # noqa: ANN401
        for one in tensors:
            self._free[one.numel()].append(one)
