"""Which parameters the groups of an optimizer have, by name.

A loop may add a group, e.g. for a part of the model that it unfreezes. A replacement's optimizer is
as the script makes it, so the groups come with the state; parameters are found by their names in
the protected modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fabric_train.state.replicas import local_part, tensors_of

Membership = list[list[str]]
"""Names of the parameters of each group."""
SavedGroups = list[list[tuple[dict[str, Any], list[Tensor]]]]
"""Of each optimizer its groups, with their parameters."""


class UnknownParameterError(Exception):
    """A group has a parameter that no protected module has. The text says whose."""


class OptimizerGroups:
    """The groups of the optimizers among ``parts``."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = parts
        self._first: dict[int, str] = {}  # parameters of no module, by their place at first
        named = self._names()
        for name, optimizer in self._optimizers().items():
            for place, one in enumerate(parameters_of(optimizer)):
                if id(one) not in named:
                    self._first.setdefault(id(one), f"{name}/#{place}")
        self._checked: list[list[int]] = []
        self._kept = [one for each in self._optimizers().values() for one in parameters_of(each)]

    def own_parameters(self, name: str) -> list[tuple[str, Tensor]]:
        """Those of optimizer ``name`` that are of no module, by name: copies of higher precision.

        None that lies within a tensor of a module: its bytes are that one's.
        """
        part = self._parts[name]
        assert isinstance(part, torch.optim.Optimizer)
        strange = [one for one in parameters_of(part) if id(one) in self._first]
        if not strange:
            return []
        modules = [part for part in self._parts.values() if isinstance(part, nn.Module)]
        whole = [_bytes_of(one) for module in modules for one in tensors_of(module)]
        return [
            (self._first[id(one)], one)
            for one in strange
            if not any(_within(_bytes_of(one), other) for other in whole)
        ]

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        parts = self._parts.items()
        return {name: part for name, part in parts if isinstance(part, torch.optim.Optimizer)}

    def _names(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for name, part in sorted(self._parts.items()):
            if isinstance(part, nn.Module):
                for key, one in part.named_parameters():
                    found.setdefault(id(one), f"{name}/{key}")
        return found

    def membership(self, saved: SavedGroups | None = None) -> dict[str, Membership]:
        """Of each optimizer, as it is or was ``saved``. Raises ``UnknownParameterError``."""
        names = {**self._first, **self._names()}
        found: dict[str, Membership] = {}
        for name, groups in zip(self._optimizers(), saved or self.now(), strict=True):
            found[name] = []
            for place, (_, parameters) in enumerate(groups):
                strange = [one for one in parameters if id(one) not in names]
                if strange:
                    raise UnknownParameterError(
                        f"{name}: group {place} has got {len(strange)} parameters that are of no "
                        "protected module: a replacement could not find them"
                    )
                found[name].append([names[id(one)] for one in parameters])
        return found

    def check(self) -> None:
        """Raises ``UnknownParameterError`` where ``membership`` would; quick while it is the same.

        The parameters of modules have to be the same, too.
        """
        now = [
            [id(one) for one in group["params"]]
            for optimizer in self._optimizers().values()
            for group in optimizer.param_groups
        ]
        if now != self._checked:
            self.membership()
            self._checked = now

    def take_over(self, membership: Mapping[str, Membership]) -> None:
        """Give each optimizer the groups of ``membership``; their other fields are set later.

        Raises ``UnknownParameterError``; nothing has changed then.
        """
        known = {name: one for one, name in {**self._first, **self._names()}.items()}
        by_id = {id(one): one for one in self._all_parameters()}
        optimizers = self._optimizers()
        wanted: dict[str, list[list[Tensor]]] = {}
        for name, groups in membership.items():
            for one in (one for group in groups for one in group):
                if one not in known:
                    raise UnknownParameterError(f"{name} of the source trains {one}, unknown here")
            wanted[name] = [[by_id[known[one]] for one in group] for group in groups]
        for name, tensors in wanted.items():
            _set_groups(optimizers[name], tensors)

    def _all_parameters(self) -> list[Tensor]:
        modules = [part for part in self._parts.values() if isinstance(part, nn.Module)]
        return [*self._kept, *(one for module in modules for one in module.parameters())]

    def now(self) -> SavedGroups:
        """The groups with their parameters, for ``restore``."""
        return [
            [(group, list(group["params"])) for group in optimizer.param_groups]
            for optimizer in self._optimizers().values()
        ]

    def restore(self, saved: Sequence[Sequence[tuple[dict[str, Any], list[Tensor]]]]) -> None:
        """Be as at the moment of ``now``."""
        for optimizer, groups in zip(self._optimizers().values(), saved, strict=True):
            optimizer.param_groups[:] = [group for group, _ in groups]
            for group, tensors in groups:
                group["params"][:] = tensors


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All that it trains, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _bytes_of(tensor: Tensor) -> tuple[int, int]:
    """Where its memory begins and ends; of a shard, that of this rank's part."""
    here = local_part(tensor)
    if not here.is_contiguous():
        return 0, 0
    return here.data_ptr(), here.data_ptr() + here.numel() * here.element_size()


def _within(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return other[0] <= one[0] < one[1] <= other[1]


def _set_groups(optimizer: torch.optim.Optimizer, groups: Sequence[Sequence[Tensor]]) -> None:
    mine = optimizer.param_groups
    del mine[len(groups) :]
    mine.extend({"params": []} for _ in range(len(groups) - len(mine)))
    for group, tensors in zip(mine, groups, strict=True):
        group["params"][:] = tensors
