"""What optimizers, schedulers and gradient scalers are beside their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fabric_train.state.optimizer_groups import parameters_of


def scalars_of(parts: Mapping[str, object]) -> dict[str, Any]:
    """Of each part, for ``apply_scalars``; None of a module."""
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            found[name] = None
        elif isinstance(part, torch.optim.Optimizer):
            found[name] = _of_optimizer(part)
        else:
            found[name] = part.state_dict()  # type: ignore[attr-defined]
    return found


def apply_scalars(parts: Mapping[str, object], scalars: Mapping[str, Any]) -> None:
    """Take over learning rates, step counters, schedulers."""
    for name, part in parts.items():
        if isinstance(part, torch.optim.Optimizer):
            _apply_to_optimizer(part, scalars[name])
        elif not isinstance(part, nn.Module):
            part.load_state_dict(scalars[name])  # type: ignore[attr-defined]
            if isinstance(part, torch.amp.GradScaler) and part.is_enabled():
                # Else gradients of an attempt that was taken back count as unscaled already.
                part._per_optimizer_states.clear()  # noqa: SLF001


def _of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    state = [
        {
            key: value
            for key, value in optimizer.state.get(parameter, {}).items()
            if not isinstance(value, Tensor)
        }
        for parameter in parameters_of(optimizer)
    ]
    # Some keep what is of no parameter beside that of parameters.
    shared = {key: one for key, one in optimizer.state.items() if not isinstance(key, Tensor)}
    return {"groups": groups, "state": state, "shared": shared, "defaults": optimizer.defaults}


def _apply_to_optimizer(optimizer: torch.optim.Optimizer, value: Mapping[str, Any]) -> None:
    for group, fields in zip(optimizer.param_groups, value["groups"], strict=True):
        for key in group.keys() - fields.keys() - {"params"}:
            del group[key]
        group.update(fields)
    for parameter, fields in zip(parameters_of(optimizer), value["state"], strict=True):
        known = optimizer.state.get(parameter, {})
        for key in [key for key in known if key not in fields]:
            if not isinstance(known[key], Tensor):
                del known[key]
        if fields:
            optimizer.state[parameter].update(fields)
    for key in [key for key in optimizer.state if not isinstance(key, Tensor)]:
        del optimizer.state[key]
    optimizer.state.update(value["shared"])
    optimizer.defaults = dict(value["defaults"])
