"""Finds state of this process that a replacement would not get.

All live modules, optimizers, schedulers, gradient scalers and iterators of data loaders are looked
at. What no protected part contains is named, with its class and the number of its elements. A part
with a method ``covers`` says of which of them it has the state.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fabric_train.rules.loop import RuleError
from fabric_train.rules.protection import statement
from fabric_train.state.containers import members
from fabric_train.state.flat_shards import is_made
from fabric_train.state.rank_local import LocalStates
from fabric_train.state.replicas import tensors_of
from fabric_train.state.replicated import ReplicatedState
from fabric_train.state.sharded import how_sharded

_SAID = 20  # at most so many
_FIRST_LOOK = 16  # step in which what was made in the loop is looked for


def state_of(
    state: ReplicatedState,
    local: LocalStates,
    found: Sequence[str],
    kept: str = "",
    classes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, str]:
    """The statement of this process, for the protection report; ``found`` is unprotected.

    ``kept``: how shards are kept that no other rank holds. ``classes``: who holds the same of a
    part, of those of which the script has said it.
    """
    here = local.describe()
    if buffers := len(state.buffers()):
        here["buffers"] = f"those of {buffers} that forward passes change, e.g. of batch norm"
    parts = state.describe()
    sharded = {name: parts.pop(name) for name in state.sharded_parts()}
    ranks = ", ".join(map(str, state.replicas or ()))
    how = kept or f"ranks {ranks} have the same shards"
    said = {name: f"{text}; {how}" for name, text in sharded.items()}
    for name, holders in (classes or {}).items():
        alike = ", ".join(map(str, holders))
        whole = parts.pop(name, sharded.get(name, ""))
        said[name] = f"{whole}; ranks {alike} have the same as this one"
    return statement(parts, here, found, said)


class Finds:
    """What is unprotected by now, and what comes up later, e.g. a module made in the loop."""

    def __init__(self, state: ReplicatedState, local: LocalStates) -> None:
        self._parts = {**state.parts, **local.parts}
        self._known: Counter[str] = Counter()  # two may have the same text

    def now(self) -> list[str]:
        """All that is unprotected. Raises as ``find_unprotected``."""
        found = _all_unprotected(self._parts)
        self._known = Counter(found)
        return _some(found)

    @staticmethod
    def is_due(step: int) -> bool:
        """Whether to look again at all live objects: at steps 16, 32, 64 and so on."""
        return step >= _FIRST_LOOK and step & (step - 1) == 0

    def new(self) -> list[str]:
        """What was not there before."""
        found = Counter(_all_unprotected(self._parts))
        new = found - self._known
        self._known |= found
        return _some(list(new.elements()))


def find_unprotected(parts: Mapping[str, object]) -> list[str]:
    """One text for each piece of state that ``parts`` do not cover, for people.

    Raises ``RuleError`` for a gradient scaler: without it, results would be wrong.
    """
    return _some(_all_unprotected(parts))


def _some(found: list[str]) -> list[str]:
    rest = len(found) - _SAID
    return found[:_SAID] + ([f"{rest} more"] if rest > 0 else [])


def _all_unprotected(parts: Mapping[str, object]) -> list[str]:
    protected = {id(one) for one in _inside(parts.values())}
    mine = {id(tensor) for part in parts.values() for tensor in _tensors_of(part)}
    covering = [one.covers for one in parts.values() if hasattr(one, "covers")]

    def covered(one: object) -> bool:
        return any(covers(one) for covers in covering)

    found = [*_of_parts(parts, mine, covered)]
    loose = [one for one in _alive() if id(one) not in protected and not covered(one)]
    inner = {
        id(child)
        for one in loose
        if isinstance(one, nn.Module)
        for child in one.modules()
        if child is not one
    }
    for one in loose:
        held = members(one)
        if id(one) in inner or (held and all(id(each) in protected for each in held)):
            continue
        name = type(one).__qualname__
        if isinstance(one, nn.Module):
            size = sum(each.numel() for each in _tensors_of(one) if id(each) not in mine)
            if size:
                how = " (sharded)" * bool(how_sharded(one))
                found.append(f"a {name}{how} of {size} elements that no protected part contains")
        elif isinstance(one, torch.optim.Optimizer):
            found.append(f"the state of a {name} (optimizer) that is not protected")
        elif isinstance(one, torch.amp.GradScaler) and one.is_enabled():
            raise RuleError(
                f"a {name} that is not protected: name it in protect(), for it would take the "
                "gradients of an attempt that is run again as unscaled already"
            )
        elif isinstance(one, _BaseDataLoaderIter):
            found.append("the position of an iterator over a DataLoader")
        elif not isinstance(one, torch.amp.GradScaler):
            found.append(f"a {name} that is not protected")
    return found


def _of_parts(
    parts: Mapping[str, object], mine: set[int], covered: Callable[[object], bool]
) -> Iterator[str]:
    modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    optimizers = {
        name: part for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)
    }
    trained = {id(one) for part in optimizers.values() for one in _tensors_of(part)}
    for name, module in modules.items():
        idle = [
            key
            for key, one in module.named_parameters()
            if one.requires_grad and id(one) not in trained and not (covered(one) or is_made(one))
        ]
        if idle:
            yield (
                f"the optimizer state of {len(idle)} parameters of module {name} that no "
                f"protected optimizer has ({idle[0]}{', …' * (len(idle) > 1)})"
            )
        for key, child in module.named_modules():
            for field, value in vars(child).items():
                if isinstance(value, Tensor) and id(value) not in mine and not covered(value):
                    yield f"{name}/{key}.{field}: a tensor that is neither parameter nor buffer"
            extra = type(child).get_extra_state
            if extra is not nn.Module.get_extra_state and child.get_extra_state() is not None:
                yield f"{name}/{key}: the extra state of a {type(child).__qualname__}"


def _inside(parts: Iterable[object]) -> Iterator[object]:
    for part in parts:
        yield from part.modules() if isinstance(part, nn.Module) else (part,)
        # Who can say its position in the data knows that of its iterator.
        fields = getattr(part, "__dict__", {}).values()
        yield from (one for one in fields if isinstance(one, _BaseDataLoaderIter))
        if isinstance(part, torch.optim.lr_scheduler.SequentialLR):
            yield from part._schedulers  # noqa: SLF001
        if isinstance(part, torch.optim.lr_scheduler.ChainedScheduler):
            yield from part._schedulers  # noqa: SLF001


def _alive() -> list[Any]:
    """All live objects that have state. By their class: a proxy may do anything when asked."""
    kinds = (
        nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler,
        torch.amp.GradScaler, _BaseDataLoaderIter,
    )  # fmt: skip
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]


def _tensors_of(part: object) -> list[Tensor]:
    if isinstance(part, nn.Module):
        return tensors_of(part)
    if isinstance(part, torch.optim.Optimizer):
        return [one for group in part.param_groups for one in group["params"]]
    return []
