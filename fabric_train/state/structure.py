"""What must not change once the loop runs, for a replacement would not have it.

A replacement runs the script from its beginning, and gets tensors and plain values from another
rank. It does not get what a step has built: other modules, parameters or buffers, another class, a
hook, a compiled or replaced ``forward``, a scheduler. Nor does it get a parameter that is changed
in place before the optimizer's step: an attempt that is run again would change it twice. All that
is refused in the healthy job, before the step in which it happens is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fabric_train.rules.loop import RuleError
from fabric_train.state.flat_shards import is_made

_HOOKS = {
    "_forward_pre_hooks": "forward pre-hooks",
    "_forward_hooks": "forward hooks",
    "_backward_pre_hooks": "backward pre-hooks",
    "_backward_hooks": "backward hooks",
}
_STEP_HOOKS = {
    "_optimizer_step_pre_hooks": "step pre-hooks",
    "_optimizer_step_post_hooks": "step post-hooks",
}
_SWITCHES: dict[str, Callable[[], object]] = {
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.backends.cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "torch.backends.cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
}
_ADVICE = "a replacement would not have it. Do it before protect()"


class ChangedError(RuleError):
    """The job changes what has to stay. The text names it, before and now."""


class Structure:
    """The modules and optimizers among ``parts``, as they have to stay from ``begin`` on."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = parts
        self._modules: dict[str, nn.Module] = {}
        self._begun: tuple[Any, ...] | None = None  # quick to compare
        self._details: dict[str, dict[str, Any]] = {}  # to say what differs
        self._parameters: dict[str, nn.Parameter] = {}
        self._versions: list[int] = []
        self._trained: list[bool] = []

    def begin(self) -> None:
        """What is there now has to stay."""
        known: set[int] = set()
        self._modules, self._parameters = {}, {}
        for owner, one in _owners_of(self._parts):
            if isinstance(one, nn.Module) and id(one) not in known:
                known.add(id(one))
                self._modules[owner] = one
                for key, parameter in one._parameters.items():  # noqa: SLF001
                    if parameter is not None and not is_made(parameter):
                        self._parameters[f"{owner}.{key}"] = parameter
        self._fields = [one.__dict__ for one in self._modules.values()]
        self._begun, self._details = self._now(), self._describe()

    def mark(self) -> None:
        """An attempt begins: no parameter changes before its gate."""
        self._versions = [one._version for one in self._parameters.values()]  # noqa: SLF001

    def check(self) -> None:
        """At the gate. Raises ``ChangedError``; does nothing before ``begin``."""
        if self._begun is None:
            return
        if self._now() != self._begun and (text := self._difference()):
            raise ChangedError(text)
        self._check_reduced()
        versions = [one._version for one in self._parameters.values()]  # noqa: SLF001
        if versions == self._versions:
            return
        for name, before, after in zip(self._parameters, self._versions, versions, strict=True):
            if before != after:
                raise ChangedError(
                    f"{name} was changed in place before optimizer.step(): an attempt that is run "
                    "again would change it twice. Do it after optimizer.step()"
                )

    def _check_reduced(self) -> None:
        trained = [one.requires_grad for one in self._parameters.values()]
        if trained == self._trained:
            return
        self._trained = trained
        for ddp in self._modules.values():
            if not isinstance(ddp, DistributedDataParallel):
                continue
            reduced = {id(one) for one in ddp._module_parameters}  # noqa: SLF001
            for name, one in ddp.module.named_parameters():
                known = id(one) in reduced or name in ddp.parameters_to_ignore
                if one.requires_grad and not known:
                    raise ChangedError(
                        f"{name} needs gradients, and DistributedDataParallel was built while it "
                        "needed none: its gradients would differ between ranks. Freeze it after "
                        "DDP is built, with find_unused_parameters=True"
                    )

    def hooks(self) -> dict[str, str]:
        """How many hooks each part has, for people; where it has some."""
        counts: dict[str, int] = {}
        for owner, one in _owners_of(self._parts):
            name = owner.partition("/")[0]
            count = sum(len(one.__dict__.get(key, ())) for key in (*_HOOKS, *_STEP_HOOKS))
            counts[name] = counts.get(name, 0) + count
        return {f"{name} hooks": str(count) for name, count in counts.items() if count}

    def _now(self) -> tuple[Any, ...]:
        fields = self._fields
        tensors = [*self._parameters.values()]
        for one in fields:
            tensors += [buffer for buffer in one["_buffers"].values() if buffer is not None]
        return (
            [one.__class__ for one in self._modules.values()],
            [id(child) for one in fields for child in one["_modules"].values()],
            [id(parameter) for one in fields for parameter in one["_parameters"].values()],
            [name for one in fields for name in one["_buffers"]],
            [one.dtype for one in tensors],
            [one.numel() for one in tensors],
            [len(one[key]) for key in _HOOKS for one in fields],
            [one.get("forward") for one in fields],
            [one.get("_compiled_call_impl") for one in fields],
            [_shape_of_optimizer(one) for one in self._optimizers().values()],
            [one() for one in _SWITCHES.values()],
        )

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        parts = self._parts.items()
        return {name: part for name, part in parts if isinstance(part, torch.optim.Optimizer)}

    def _describe(self) -> dict[str, dict[str, Any]]:
        return {
            **{owner: _shape_of_module(one) for owner, one in self._modules.items()},
            **{owner: _shape_of_optimizer(one) for owner, one in self._optimizers().items()},
            "torch": {name: one() for name, one in _SWITCHES.items()},
        }

    def _difference(self) -> str:
        now = self._describe()
        for owner, before in self._details.items():
            for what, old in before.items():
                if old != now[owner][what]:
                    return f"{owner}: {_in_words(what, old, now[owner][what])}: {_ADVICE}"
        return ""


def _owners_of(parts: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    for name, part in sorted(parts.items()):
        if isinstance(part, nn.Module):
            for path, one in part.named_modules():
                yield f"{name}/{path}" if path else name, one
        elif isinstance(part, torch.optim.Optimizer):
            yield name, part


def _shape_of_optimizer(owner: torch.optim.Optimizer) -> dict[str, Any]:
    fields = owner.__dict__
    shape = {name: len(fields[key]) for key, name in _STEP_HOOKS.items()}
    return {**shape, "step": fields.get("step")}  # a scheduler wraps it


def _shape_of_module(owner: nn.Module) -> dict[str, Any]:
    fields = owner.__dict__
    return {
        "class": owner.__class__,
        "modules": [(key, id(one)) for key, one in fields["_modules"].items()],
        "parameters": [_tensor(key, one, id(one)) for key, one in fields["_parameters"].items()],
        "buffers": [_tensor(key, one) for key, one in fields["_buffers"].items()],
        **{name: len(fields[key]) for key, name in _HOOKS.items()},
        "forward": (fields.get("forward"), fields.get("_compiled_call_impl")),
    }


def _tensor(key: str, one: torch.Tensor | None, identity: int = 0) -> tuple[Any, ...]:
    if one is None or is_made(one):
        return (key, identity)
    return (key, identity, one.dtype, one.shape)


def _in_words(what: str, old: Any, new: Any) -> str:  # noqa: ANN401
    if what in ("modules", "parameters", "buffers"):
        return f"{what} were added, removed or replaced in the loop{_first_difference(old, new)}"
    if what == "step":
        return "its step was wrapped in the loop, e.g. by a scheduler that is made there"
    if what == "class":
        return f"it was a {old.__qualname__} when the loop began and is a {new.__qualname__}"
    if what == "forward":
        return "its forward was replaced or compiled in the loop"
    return (
        f"{old} {what} when the loop began, {new} now"
        if what.endswith("hooks")
        else (f"{what} was {old} when the loop began and is {new}")
    )


def _first_difference(old: Sequence[Any], new: Sequence[Any]) -> str:
    for one in (*new, *old):
        if (one in new) != (one in old):
            return f" ({one[0]})"
    return ""
