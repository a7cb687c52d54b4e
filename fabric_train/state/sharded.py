"""Finds state of which each rank holds its own part, so that no rank is a replica of another."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from fabric_train.state.flat_shards import holders_of, is_zeros

_KINDS = (
    "torch.distributed.fsdp", "torch.distributed.optim.zero_redundancy_optimizer",
    "deepspeed.runtime.zero.",
)  # fmt: skip


def how_sharded(part: object) -> str:
    """What of a module or an optimizer is sharded, for people; empty: nothing that torch knows."""
    inside = part.modules() if isinstance(part, nn.Module) else [part]
    for one in inside:
        for kind in type(one).__mro__:
            if kind.__module__.startswith(_KINDS):
                return f"a {type(one).__name__} is sharded ({kind.__name__})"
    tensor = sys.modules.get("torch.distributed.tensor")
    kinds = (tensor.DTensor,) if tensor is not None else ()
    for name, one in _tensors(part):
        if isinstance(one, kinds):
            return f"{name} is sharded ({type(one).__name__})"
        if holders_of(one) is not None:
            return f"{name} is a shard"
        if is_zeros(one):
            return (
                f"{name} is made of partitions by ZeRO of DeepSpeed: protect its engine by "
                "fabric_train.frameworks.deepspeed"
            )
    return ""


def _tensors(part: object) -> list[tuple[str, Any]]:
    if isinstance(part, nn.Module):
        return [*part.named_parameters(), *part.named_buffers()]
    if isinstance(part, torch.optim.Optimizer):
        return [("a parameter", one) for group in part.param_groups for one in group["params"]]
    return []
