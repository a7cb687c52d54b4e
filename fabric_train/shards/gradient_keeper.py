"""Shards that are kept as base copies and gradients: the replacement makes the steps since."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fabric_train.shards.entry import Entry
from fabric_train.shards.keeper import GradientLog, ShardKeeper
from fabric_train.shards.log import Replay, ShardLog
from fabric_train.shards.proof import Proof
from fabric_train.shards.units import ShardUnits
from fabric_train.state.replicated import ReplicatedState, spec_of


class GradientKeeper(ShardKeeper[ShardLog]):
    """A `ShardKeeper` whose optimizers work on each element by itself."""

    def __init__(self, units: ShardUnits, options: GradientLog) -> None:
        super().__init__(units, options)
        self._turns = _turns(units, options.renew_steps)
        self._proof = Proof(units)
        self._stepped: dict[int, dict[str, int]] = {}

    def _new_log(self) -> ShardLog:
        return ShardLog()

    def need(self) -> tuple[int, int]:
        """As of `ShardKeeper`."""
        sizes, renew = self.units.sizes(), self.options.renew_steps
        turns = [
            [one for one, turn in zip(sizes, self._turns, strict=True) if turn == now]
            for now in range(renew)
        ]
        ages = [
            sum(one * ((now - turn) % renew + 1) for turn in range(renew) for _, one in turns[turn])
            for now in range(renew)
        ]
        base, gradients = sum(one for one, _ in sizes), sum(one for _, one in sizes)
        each_step = gradients + max(sum(one for one, _ in turn) for turn in turns)
        return base + max(ages) + each_step, each_step

    def describe(self, state: ReplicatedState) -> str:  # noqa: ARG002
        """As of `ShardKeeper`."""
        needs, each_step = self.need()
        count = self.options.buddies
        return (
            f"{count} budd{'ies keep' if count > 1 else 'y keeps'} a copy and the gradients since: "
            f"{count * needs} bytes of host memory for each rank, {count * each_step} a step"
        )

    def exchange(self, group: Any, rank: int, step: int, scalars: bytes = b"") -> None:  # noqa: ANN401
        """As of `ShardKeeper`."""
        super().exchange(group, rank, step, scalars)
        oldest = step - 2 * self.options.renew_steps - 2  # no base is older
        self._stepped = {at: one for at, one in self._stepped.items() if oldest < at < step}
        self._stepped[step] = {}
        self._proof.begin(step)

    def _entry(
        self, rank: int, step: int, _scalars: bytes, *, seeds: bool
    ) -> tuple[Entry, list[Tensor]]:
        units = self.units
        gradients = {
            place: gradient
            for place, unit in enumerate(units.units)
            if (gradient := units.gradient(unit)) is not None
        }
        due = range(len(units.units)) if seeds else self._due(step)
        renewed = {place: units.tensors(units.units[place]) for place in due}
        entry = Entry(
            rank, step, seeds, len(units.units),
            {place: spec_of("", one) for place, one in gradients.items()},
            {place: tuple(spec_of(*one) for one in each) for place, each in renewed.items()},
            units.fields(),
        )  # fmt: skip
        tensors = [*gradients.values(), *(one for each in renewed.values() for _, one in each)]
        return entry, tensors

    def _due(self, step: int) -> list[int]:
        """Units whose base is renewed with this step."""
        turn = step % self.options.renew_steps
        in_turn = (place for place, one in enumerate(self._turns) if one == turn)
        return sorted({*in_turn, *self.units.changed()})

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer`` has made its step behind the gate."""
        if self._step is None:
            return
        self.units.mark(optimizer)
        made = self._stepped[self._step]
        for name, one in self.units.optimizers.items():
            if one is optimizer:
                made[name] = made.get(name, 0) + 1

    def settle(self, step: int) -> None:
        """All of the step before ``step`` is done. Raises ``NotRepeatedError``."""
        self._proof.compare(step - 1, self._stepped.get(step - 1, {}))

    def _offer(self, ward: int, step: int) -> tuple[Replay, list[Tensor], bytes]:
        replay, data = self._logs[ward].offer(step, self._stepped)
        return replay, data, b""


def _turns(units: ShardUnits, turns: int) -> list[int]:
    """Of each unit, with which of ``turns`` it is renewed, so that each has as many bytes."""
    sizes = [unit.parameter.numel() for unit in units.units]
    total = max(1, sum(sizes))
    before = [sum(sizes[:place]) for place in range(len(sizes))]
    return [
        turns * (start + size // 2) // total % turns
        for start, size in zip(before, sizes, strict=True)
    ]
