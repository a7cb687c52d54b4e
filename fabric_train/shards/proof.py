"""A rank repeats its own steps, one unit at a time, and compares: is a replay exact?

An optimizer that uses more than the gradient, or a loop that changes a parameter past it, would
make a replacement that differs without an error. With each step another unit is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fabric_train.rules.loop import RuleError
from fabric_train.shards.units import ShardUnits, Unit, step_alone

MOST_BYTES = 64 << 20
"""Of a unit that is compared, and of what its optimizer keeps for it."""


class NotRepeatedError(RuleError):
    """A step cannot be repeated from what is kept of it. The text names the parameter."""


@dataclass(frozen=True)
class _Before:
    step: int
    place: int
    unit: Unit
    tensors: dict[str, Tensor]
    gradient: Tensor | None
    fields: dict[str, Any]


class Proof:
    """Of one rank."""

    def __init__(self, units: ShardUnits) -> None:
        self._units = units
        self._before: _Before | None = None
        self._next = 0

    def begin(self, step: int) -> None:
        """The gate of ``step``: keep a unit as it is before its optimizer's step."""
        self._before = None
        for _ in self._units.units:
            place = self._next % len(self._units.units)
            self._next += 1
            unit = self._units.units[place]
            tensors = self._units.tensors(unit)
            size = sum(one.numel() * one.element_size() for _, one in tensors)
            if unit.optimizer and tensors[0][1].numel() > 0 and size <= MOST_BYTES:
                self._before = self._keep(step, place, unit)
                return

    def _keep(self, step: int, place: int, unit: Unit) -> _Before:
        optimizer = self._units.optimizers[unit.optimizer]
        group = next(
            one for one in optimizer.param_groups
            if any(mine is unit.parameter for mine in one["params"])
        )  # fmt: skip
        gradient = self._units.gradient(unit)
        return _Before(
            step, place, unit,
            {name: one.detach().clone() for name, one in self._units.tensors(unit)},
            None if gradient is None else gradient.clone(),
            {key: value for key, value in group.items() if key != "params"},
        )  # fmt: skip

    def compare(self, step: int, stepped: Mapping[str, int]) -> None:
        """The optimizers have made their steps, of ``step``: is it the same as ``begin`` leads to?

        Raises ``NotRepeatedError``.
        """
        before, self._before = self._before, None
        if before is None or before.step != step or before.place in self._units.changed():
            return
        unit = before.unit
        parameter, *rest = before.tensors.values()
        box = nn.Parameter(parameter)
        kind: Any = type(self._units.optimizers[unit.optimizer])
        twin: torch.optim.Optimizer = kind([{**before.fields, "params": [box]}])
        keys = [name.rpartition("/")[2] for name in before.tensors][1:]
        if rest:
            twin.state[box].update(zip(keys, rest, strict=True))
        box.grad = before.gradient
        for _ in range(stepped.get(unit.optimizer, 0)):
            step_alone(twin)
        for name, now in self._units.tensors(unit):
            key = name.rpartition("/")[2]
            mine = box.data if name == unit.name else twin.state[box].get(key)
            if mine is None or not torch.equal(mine, now):
                raise NotRepeatedError(
                    f"step {step} of {unit.optimizer}, repeated from its gradient, gives another "
                    f"{name} than the loop: something else changes it, or the step uses more than "
                    "the gradient. Shards without replicas cannot be protected so"
                )
