"""The shards of a process, in units: a parameter, and what the optimizer keeps for it.

An optimizer that works on each element by itself makes the same of a unit wherever it runs, and
with whichever other units. So units are copied, and replayed, each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fabric_train.state.optimizer_groups import parameters_of
from fabric_train.state.replicas import is_shard, local_part, plain

REPLAYED = frozenset({
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
})  # fmt: skip
"""Optimizers of ``torch.optim`` whose step works on each element by itself."""


class NotRepeatableError(TypeError):
    """The step of an optimizer with shards cannot be run a second time at all."""


@dataclass(frozen=True)
class Unit:
    """``parameter`` number ``place`` of the optimizer ``optimizer``; "": it is trained by none."""

    name: str
    parameter: Tensor
    optimizer: str = ""
    place: int = -1


class ShardUnits:
    """Units of the protected ``parts`` of which no other rank has the same."""

    def __init__(self, parts: Mapping[str, object], *, all_parameters: bool = False) -> None:
        """``all_parameters``: also those that do not say themselves that they are shards.

        Raises ``NotRepeatableError``.
        """
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            name: part
            for name, part in sorted(parts.items())
            if isinstance(part, torch.optim.Optimizer)
        }
        trained = {
            id(one): (name, place)
            for name, optimizer in self.optimizers.items()
            for place, one in enumerate(parameters_of(optimizer))
        }
        self.units: list[Unit] = []
        seen: set[int] = set()
        for name, part in sorted(parts.items()):
            if not isinstance(part, nn.Module):
                continue
            for key, one in [*part.named_parameters(), *part.named_buffers()]:
                if id(one) in seen or not (is_shard(one) or all_parameters):
                    continue
                seen.add(id(one))
                self.units.append(Unit(f"{name}/{key}", one, *trained.get(id(one), ())))
        self.unreplayed = [
            f"{name} ({type(self.optimizers[name]).__qualname__})"
            for name in sorted({unit.optimizer for unit in self.units if unit.optimizer})
            if not _is_replayed(name, self.optimizers[name])
        ]
        """Optimizers whose step cannot be repeated on a shard alone, with their classes."""
        self._versions: dict[int, list[tuple[int, int]]] = {}

    def tensors(self, unit: Unit) -> list[tuple[str, Tensor]]:
        """All tensors of ``unit`` with their names in the protected state, the parameter first."""
        found = [(unit.name, plain(unit.parameter.data))]
        if unit.optimizer:
            state = self.optimizers[unit.optimizer].state.get(unit.parameter, {})
            found += [
                (f"{unit.optimizer}/{unit.place}/{key}", plain(value))
                for key, value in state.items()
                if isinstance(value, Tensor)
            ]
        return found

    def names(self) -> frozenset[str]:
        """Of all their tensors, as there are now."""
        return frozenset(name for unit in self.units for name, _ in self.tensors(unit))

    def gradient(self, unit: Unit) -> Tensor | None:
        """What the optimizer's step will use, if it changes this unit."""
        if not unit.optimizer or unit.parameter.grad is None:
            return None
        return plain(unit.parameter.grad.detach())

    def fields(self) -> dict[str, list[dict[str, Any]]]:
        """Learning rates and the like of each optimizer's groups."""
        return {
            name: [
                {key: value for key, value in group.items() if key != "params"}
                for group in optimizer.param_groups
            ]
            for name, optimizer in self.optimizers.items()
        }

    def mark(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """``optimizer`` has made its step: what changes of its units from now on is `changed`.

        None: any optimizer; this process has got its state from another one.
        """
        for place, unit in enumerate(self.units):
            if optimizer is None or self.optimizers.get(unit.optimizer) is optimizer:
                self._versions[place] = self._version(unit)

    def changed(self) -> list[int]:
        """Places of units that something else than an optimizer's step has written.

        What is written through ``Tensor.data`` is not seen here: `proof` finds it.
        """
        return [
            place for place, known in self._versions.items()
            if self._version(self.units[place]) != known
        ]  # fmt: skip

    def _version(self, unit: Unit) -> list[tuple[int, int]]:
        tensors = [unit.parameter]
        if unit.optimizer:
            state = self.optimizers[unit.optimizer].state.get(unit.parameter, {})
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return [(one.data_ptr(), one._version) for one in map(local_part, tensors)]  # noqa: SLF001

    def sizes(self) -> list[tuple[int, int]]:
        """Of each unit, bytes of a base copy and of a gradient.

        An optimizer that has made no step yet is asked what it keeps for one parameter.
        """
        kept: dict[Any, tuple[int, int]] = {}
        found = []
        for unit in self.units:
            tensors = [one for _, one in self.tensors(unit)]
            base, size = sum(map(_bytes, tensors)), _bytes(tensors[0])
            trained = bool(unit.optimizer) and unit.parameter.requires_grad
            if trained and len(tensors) == 1:
                base += self._kept(unit, tensors[0], kept)
            found.append((base, size if trained else 0))
        return found

    def _kept(self, unit: Unit, tensor: Tensor, kept: dict[Any, tuple[int, int]]) -> int:
        """Bytes that the optimizer of ``unit`` will keep for ``tensor``; ``kept``: known ones."""
        optimizer, replayed = self.optimizers[unit.optimizer], not self.unreplayed
        key = unit.optimizer, replayed or (tensor.shape, tensor.dtype)
        if key not in kept:
            kept[key] = _kept(optimizer) if replayed else (0, _kept_for(optimizer, tensor))
        as_large, beside = kept[key]
        return _bytes(tensor) * as_large + beside


def step_alone(optimizer: torch.optim.Optimizer) -> None:
    """A step that is none of the loop's: no hook hears of it."""
    step: Any = type(optimizer).step
    (step.__wrapped__ if getattr(step, "hooked", False) else step)(optimizer)


def _is_replayed(name: str, optimizer: torch.optim.Optimizer) -> bool:
    """Raises ``NotRepeatableError``."""
    kind = type(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise NotRepeatableError(
            f"{name}: the step of {kind.__module__}.{kind.__qualname__} runs forward and backward "
            "passes itself (a closure), so there is no gate before what it changes: train with an "
            "optimizer that takes the gradients of one backward pass"
        )
    return kind.__name__ in REPLAYED and getattr(torch.optim, kind.__name__, None) is kind


def _kept_for(optimizer: torch.optim.Optimizer, parameter: Tensor) -> int:
    """Bytes that an optimizer keeps for ``parameter`` whose step looks at more than one element.

    One that cannot step alone, on the CPU, for one parameter counts as one with two moments.
    """
    probe = nn.Parameter(torch.zeros_like(parameter, device="cpu"))
    probe.grad = torch.ones_like(probe)
    try:
        kind: Any = type(optimizer)
        twin: torch.optim.Optimizer = kind([{**optimizer.param_groups[0], "params": [probe]}])
        step_alone(twin)
    except Exception:  # an own class may do anything
        return 2 * _bytes(probe)
    return sum(_bytes(one) for one in twin.state[probe].values() if isinstance(one, Tensor))


def _kept(optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Tensors as large as a parameter that it keeps for one, and bytes beside them."""
    probe = nn.Parameter(torch.zeros(2))
    probe.grad = torch.ones(2)
    options = dict(optimizer.param_groups[0], params=[probe])
    kind: Any = type(optimizer)
    twin: torch.optim.Optimizer = kind([options])
    step_alone(twin)
    tensors = [one for one in twin.state[probe].values() if isinstance(one, Tensor)]
    beside = [one for one in tensors if one.shape != probe.shape]
    return len(tensors) - len(beside), sum(map(_bytes, beside))


def _bytes(tensor: Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())
