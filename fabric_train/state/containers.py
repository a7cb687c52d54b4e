"""Parts that are several: lists, and objects that hold optimizers or schedules and step them all.

TorchTitan's ``OptimizersContainer`` is an optimizer itself, with the parameters of those inside and
no state of its own: what a replacement needs is inside. So each of those inside is a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

_HELD = (torch.optim.Optimizer, LRScheduler)


def members(part: object) -> list[Any] | None:
    """What ``part`` holds, in its order; None: it is one part itself."""
    if isinstance(part, (list, tuple)):
        return list(part)
    if isinstance(part, nn.Module) or not isinstance(part, Iterable):
        return None
    if not isinstance(part, torch.optim.Optimizer) and not hasattr(part, "state_dict"):
        return None
    if hasattr(part, "__next__"):
        return None  # what it gives would be gone
    held = list(part)
    return held if held and all(isinstance(one, _HELD) for one in held) else None


def expanded(parts: Mapping[str, object]) -> dict[str, object]:
    """Each member of a part that is several as a part of its own: ``name[0]``, ``name[1]``.

    Raises ``TypeError`` for a list without members.
    """
    found: dict[str, object] = {}
    for name, part in parts.items():
        held = members(part)
        if held is None:
            found[name] = part
        elif not held:
            raise TypeError(f"{name}: an empty {type(part).__name__} has no state")
        else:
            found |= expanded({f"{name}[{place}]": one for place, one in enumerate(held)})
    return found
