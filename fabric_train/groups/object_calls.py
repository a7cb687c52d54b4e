"""What frameworks ask torch.distributed for, beside the group's own collectives.

Objects of a process that is alone, because it builds, rehearses, or finds its place: torch sends an
object as its size and its bytes, and an answer that leaves a tensor as it is has no size. And the
name of the backend: what they do on gloo is right for our groups.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def answer_objects_alone(is_alone: Callable[[], bool]) -> None:
    """While ``is_alone``, torch's collectives of objects give what this process has given."""
    answers: dict[str, Callable[..., None]] = {
        "broadcast_object_list": _broadcast,
        "all_gather_object": _all_gather,
        "gather_object": _gather,
    }
    for module in ("torch.distributed", "torch.distributed.distributed_c10d"):
        for name, alone in answers.items():
            owner = sys.modules[module]
            setattr(owner, name, _either(getattr(owner, name), alone, is_alone))


def say_gloo() -> None:
    """Let ``torch.distributed.get_backend`` give the name that frameworks know."""
    for module in ("torch.distributed", "torch.distributed.distributed_c10d"):
        owner = sys.modules[module]
        owner.get_backend = _renamed(owner.get_backend)  # type: ignore[attr-defined]


def _renamed(theirs: Callable[..., str]) -> Callable[..., str]:
    def call(*args: Any, **named: Any) -> str:
        found = theirs(*args, **named)
        return "gloo" if found == "fabric" else found

    return call


def _either(
    theirs: Callable[..., Any], alone: Callable[..., None], is_alone: Callable[[], bool]
) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        return (alone if is_alone() else theirs)(*args, **named)

    return call


def _broadcast(*_args: Any, **_named: Any) -> None:
    """The list stays as it is."""


def _all_gather(object_list: list[Any], obj: Any, *_args: Any, **_named: Any) -> None:
    object_list[:] = [obj] * len(object_list)


def _gather(
    obj: Any, object_gather_list: list[Any] | None = None, *_args: Any, **_named: Any
) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)
