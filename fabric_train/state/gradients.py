"""Finds a loop that adds up gradients over several attempts.

A gradient that is left from the attempt before is part of the sum in a healthy run, and missing
after an attempt that is run again or taken over. One parameter of each optimizer is looked at, the
smallest one that had a gradient: a loop leaves those of all parameters or of none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from fabric_train.state.optimizer_groups import parameters_of
from fabric_train.state.structure import ChangedError


class LeftGradients:
    """Looks at the gradients of ``optimizers`` when a backward pass reaches them."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._watched: dict[int, Tensor] = {}
        self._unchecked: set[int] = set()

    def mark(self) -> None:
        """An attempt begins. The first backward pass in it may raise ``ChangedError``."""
        for place, optimizer in enumerate(self._optimizers):
            known = self._watched.get(place)
            if known is None or not known.requires_grad:
                self._watch(place, optimizer)
        self._unchecked = set(self._watched)

    def _watch(self, place: int, optimizer: torch.optim.Optimizer) -> None:
        # No backward pass adds to what is no leaf: a view of a parameter, as Megatron trains them.
        holding = [
            one
            for one in parameters_of(optimizer)
            if one.requires_grad and one.is_leaf and one.grad is not None
        ]
        if holding:
            self._watched[place] = smallest = min(holding, key=Tensor.numel)
            smallest.register_hook(functools.partial(self._check, place))

    def _check(self, place: int, _gradient: Tensor) -> None:
        if place not in self._unchecked:
            return
        self._unchecked.discard(place)
        left = self._watched[place].grad
        if left is not None and bool(left.any()):
            raise ChangedError(
                "a backward pass adds to gradients of the attempt before: they would be missing "
                "after a takeover. Call optimizer.zero_grad() before it. Add up gradients inside "
                "of one attempt"
            )
