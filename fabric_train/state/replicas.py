"""Which ranks hold the same state as this one: as its shards say (HSDP), or as the job declares.

A DTensor says it itself: ranks that differ only along mesh dimensions on which it is replicated
hold the same part of it. Of a plain tensor an adapter may say it (``flat_shards``). Any other one
is a replica on all ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fabric_train.state.flat_shards import holders_of


@dataclass(frozen=True)
class Holders:
    """``ranks`` that hold the same as this one; None: all do, for nothing is sharded.

    ``declared``: the script says so; what they hold does not. ``classes``: of parts, by name, those
    that hold the same of each: all of ``ranks`` are among them, so a state comes from one of these.
    """

    ranks: tuple[int, ...] | None = None
    declared: bool = False
    classes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, parts: Mapping[str, object], replicas: object, rank: int, world: int, *, late: bool
    ) -> Holders:
        """Raises ``ValueError``. ``late``: ranks may hold different things."""
        if replicas is not None and not late:
            raise ValueError("replicas need join(late=True): a spare waits for its rank then")
        if isinstance(replicas, Mapping):
            classes = {name: declared(one, rank, world) for name, one in replicas.items()}
            return cls(innermost(classes, parts), declared=True, classes=classes)
        if replicas is not None:
            return cls(declared(replicas, rank, world), declared=True)
        return cls(replicas_of(parts, rank, world) if late else None)

    @property
    def alone(self) -> bool:
        """No other rank holds what this one does."""
        return self.ranks is not None and len(self.ranks) < 2


def plain(tensor: Tensor) -> Tensor:
    """What this rank has of ``tensor``: a shard's local part, or all of it."""
    return tensor.to_local() if isinstance(tensor, _kinds()) else tensor  # type: ignore[attr-defined]


def local_part(tensor: Tensor) -> Tensor:
    """The tensor that a shard lies in itself: its version counts what writes it."""
    return tensor._local_tensor if isinstance(tensor, _kinds()) else tensor  # type: ignore[attr-defined]  # noqa: SLF001


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """``value`` as this rank's part of a tensor that is sharded as ``parameter`` is."""
    sharded: Any = parameter
    if not isinstance(parameter, _kinds()) or value.shape != plain(sharded).shape:
        return value  # of the whole, e.g. a step counter
    made: Tensor = sys.modules["torch.distributed.tensor"].DTensor.from_local(
        value, sharded.device_mesh, sharded.placements, run_check=False,
        shape=sharded.shape, stride=sharded.stride(),
    )  # fmt: skip
    return made


def replicas_of(parts: Mapping[str, object], rank: int, world: int) -> tuple[int, ...] | None:
    """Ranks with the same shards as ``rank``, itself among them; None: nothing is sharded."""
    mine: set[int] | None = None
    for tensor in _tensors(parts):
        holders = holders_of(tensor)
        if holders is not None or isinstance(tensor, _kinds()):
            alike = set(_alike(tensor) if holders is None else holders)
            mine = alike if mine is None else mine & alike
    return None if mine is None else tuple(sorted(mine & set(range(world)) | {rank}))


def declared(replicas: object, rank: int, world: int) -> tuple[int, ...]:
    """The ranks that a script says hold the same as ``rank``: a mesh of them, or all groups.

    Raises ``ValueError``; the text says what is wrong with it.
    """
    mesh = getattr(replicas, "mesh", None)
    groups: Any = [mesh.flatten().tolist()] if isinstance(mesh, Tensor) else replicas
    try:
        known = [tuple(int(one) for one in group) for group in groups]
    except (TypeError, ValueError):
        raise ValueError(
            f"replicas={replicas!r:.100}: neither a mesh nor a list of lists of ranks"
        ) from None
    mine = [group for group in known if rank in group]
    if len(mine) != 1:
        raise ValueError(
            f"replicas: rank {rank} is in {len(mine)} of {len(known)} groups, not in 1"
        )
    if len(set(mine[0])) < len(mine[0]) or not set(mine[0]) <= set(range(world)):
        raise ValueError(f"replicas: {list(mine[0])} are not different ranks below {world}")
    return tuple(sorted(mine[0]))


def innermost(
    classes: Mapping[str, tuple[int, ...]], parts: Mapping[str, object]
) -> tuple[int, ...]:
    """The ranks that are in all ``classes``: the smallest of them, in which the others are whole.

    With parameters on each rank of a data parallel group, and shards of the optimizer on some of
    them, those that have the shard. Raises ``ValueError``.
    """
    tensors = {
        name for name, part in parts.items() if isinstance(part, (nn.Module, torch.optim.Optimizer))
    }
    if classes.keys() != tensors:
        raise ValueError(f"replicas of {sorted(classes)}, and tensors are in {sorted(tensors)}")
    least = min(classes.values(), key=len)
    for name, ranks in classes.items():
        if not set(least) <= set(ranks):
            raise ValueError(
                f"replicas: {name} is on ranks {list(ranks)}, and not on all of {list(least)}, "
                "which hold the least: no rank could give a replacement all of its state"
            )
    return least


def partition(groups: Sequence[Sequence[int] | None]) -> list[tuple[int, ...]] | None:
    """The groups of all ranks, as each says its own. None: all hold the same.

    Raises ``ValueError`` where they do not fit each other; the text says whose.
    """
    if all(one is None for one in groups):
        return None
    whole = range(len(groups))
    said = [tuple(whole) if one is None else tuple(one) for one in groups]
    for rank, mine in enumerate(said):
        for other in mine:
            if rank not in mine or other not in whole or said[other] != mine:
                theirs = said[other] if other in whole else "no rank"
                raise ValueError(
                    f"rank {rank} says that ranks {list(mine)} hold the same shards, and rank "
                    f"{other} says {theirs}"
                )
    return sorted(set(said))


def _alike(tensor: Any) -> list[int]:  # noqa: ANN401
    mesh = tensor.device_mesh
    place = mesh.get_coordinate()
    if place is None:
        return []
    index = tuple(
        slice(None) if placement.is_replicate() else place[dimension]
        for dimension, placement in enumerate(tensor.placements)
    )
    ranks: list[int] = mesh.mesh[index].flatten().tolist()
    return ranks


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Its parameters and buffers. Megatron's DDP has another ``buffers`` than modules have."""
    return [*module.parameters(), *(one for _, one in module.named_buffers())]


def _tensors(parts: Mapping[str, object]) -> Iterator[Tensor]:
    for part in parts.values():
        if isinstance(part, nn.Module):
            yield from tensors_of(part)
        elif isinstance(part, torch.optim.Optimizer):
            for group in part.param_groups:
                yield from group["params"]


def _kinds() -> tuple[type, ...]:
    """DTensor, where a script has loaded it."""
    module = sys.modules.get("torch.distributed.tensor")
    return (module.DTensor,) if module is not None else ()


def is_shard(tensor: Tensor) -> bool:
    """``tensor`` says that other ranks have other parts of it."""
    if not isinstance(tensor, _kinds()):
        return holders_of(tensor) is not None
    sharded: Any = tensor
    return any(
        not placement.is_replicate() and sharded.device_mesh.size(dimension) > 1
        for dimension, placement in enumerate(sharded.placements)
    )
