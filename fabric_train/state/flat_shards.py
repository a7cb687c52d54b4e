"""Shards that are plain tensors: they do not say so themselves, so a framework's adapter does.

ZeRO of DeepSpeed keeps what a rank trains in flat partitions, and makes the parameters of the model
of the partitions of all ranks. So those parameters are no state of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

_HOLDERS = "fabric_holders"
_MADE = "fabric_made"
ZERO = ("_hp_mapping", "ds_tensor")
"""What DeepSpeed adds to a parameter that it makes of partitions: of stages 1 and 2, of stage 3."""


class FlatShards(nn.Module):
    """``shards`` of this rank by name, of which ``ranks`` hold the same; ``made`` of those of all.

    An adapter says by its methods what it takes to train with them.
    """

    def __init__(
        self, shards: Mapping[str, Tensor], ranks: Sequence[int], made: Sequence[Tensor]
    ) -> None:
        super().__init__()
        for name, tensor in shards.items():
            setattr(tensor, _HOLDERS, tuple(ranks))
            tensor._is_param = True  # noqa: SLF001  a Parameter, for torch
            self.register_parameter(name, tensor)
        for tensor in made:
            setattr(tensor, _MADE, True)

    def check(self) -> None:
        """At the gate. Raises ``ChangedError`` where a replacement would not be alike."""
        raise NotImplementedError

    def forget_attempt(self) -> None:
        """An attempt has ended anywhere: be as between two steps."""
        raise NotImplementedError

    def make_whole(self, group: Any, rank: int) -> None:  # noqa: ANN401
        """All ranks have their shards: make what is made of them.

        ``group`` has the collectives of a ``ProcessGroup`` of all ranks. Raises ``RuntimeError``.
        """
        raise NotImplementedError


def holders_of(tensor: Tensor) -> tuple[int, ...] | None:
    """Ranks that hold the same as this one, of a tensor of ``FlatShards``; None: it is none."""
    found: tuple[int, ...] | None = getattr(tensor, _HOLDERS, None)
    return found


def is_made(tensor: Tensor) -> bool:
    """``tensor`` is made of shards, and no state of its own."""
    return bool(getattr(tensor, _MADE, False))


def is_zeros(tensor: Tensor) -> bool:
    """DeepSpeed makes ``tensor`` of partitions, and no adapter has said which those are."""
    return not is_made(tensor) and any(hasattr(tensor, one) for one in ZERO)
