"""A replacement runs its own optimizer over the gradients that a buddy has kept.

The same steps on the same kind of device give the same bits: an optimizer of `units.REPLAYED` makes
of each element what it makes of it in any other company.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fabric_train.shards.log import Replay
from fabric_train.shards.units import ShardUnits, step_alone
from fabric_train.state.plain_values import dtype_of
from fabric_train.state.replicas import like
from fabric_train.state.replicated import LayoutError


def gradient_buffers(replay: Replay) -> list[Tensor]:
    """Memory for the gradients of ``replay``, in order."""
    return [
        torch.empty(spec.shape, dtype=dtype_of(spec.dtype))
        for specs in replay.gradients.values()
        for spec in specs.values()
    ]


def check(replay: Replay, units: ShardUnits) -> None:
    """Raises ``LayoutError`` where it is not of such shards as are here."""
    if len(replay.bases) != len(units.units) or len(replay.since) != len(units.units):
        raise LayoutError(
            f"{len(replay.bases)} units of shards arrive, {len(units.units)} are here"
        )
    for unit, specs in zip(units.units, replay.bases, strict=True):
        if not specs or specs[0].name != unit.name:
            raise LayoutError(f"{unit.name} is {specs[0].name if specs else 'absent'} there")


def run(replay: Replay, units: ShardUnits, gradients: Sequence[Tensor]) -> None:
    """The bases are in place: make the steps since. Gradients are gone afterwards.

    Raises ``LayoutError``.
    """
    for optimizer in units.optimizers.values():  # what is no shard is not replayed
        optimizer.zero_grad(set_to_none=True)
    rest = iter(gradients)
    for step, specs in replay.gradients.items():
        mine = {place: next(rest) for place in specs}
        for place, unit in enumerate(units.units):
            unit.parameter.grad = _gradient(unit.parameter, mine.get(place))
        for name, optimizer in units.optimizers.items():
            fields = replay.fields[step].get(name, [])
            if len(fields) != len(optimizer.param_groups):
                raise LayoutError(f"{name} has {len(optimizer.param_groups)} groups here")
            for group, known in zip(optimizer.param_groups, fields, strict=True):
                group.update(known)
            for _ in range(replay.stepped[step].get(name, 0)):
                step_alone(optimizer)
    for unit in units.units:
        unit.parameter.grad = None


def _gradient(parameter: Tensor, value: Tensor | None) -> Tensor | None:
    return None if value is None else like(parameter, value.to(parameter.device))
