"""Replicated state: models, optimizers and whatever has a ``state_dict``, as one flat list.

The order is canonical, so two processes that built the same model list the same tensors. Nothing
here runs a collective.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fabric_train.rules.loop import RuleError
from fabric_train.state.behind_gate import BehindGate
from fabric_train.state.flat_shards import FlatShards, is_made
from fabric_train.state.module_settings import ModuleSettings, Settings, UnknownSettingError
from fabric_train.state.optimizer_groups import (
    Membership,
    OptimizerGroups,
    SavedGroups,
    UnknownParameterError,
    parameters_of,
)
from fabric_train.state.plain_values import ForeignValueError, carry, dtype_of, pack, unpack
from fabric_train.state.replicas import like, plain, tensors_of
from fabric_train.state.scalars import apply_scalars, scalars_of
from fabric_train.state.sharded import how_sharded
from fabric_train.state.structure import ChangedError, Structure
from fabric_train.state.tensor_bytes import flat, memory


@carry
@dataclass(frozen=True)
class TensorSpec:
    """Name, shape, element type and kind of device of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str


@carry
@dataclass(frozen=True)
class Manifest:
    """What a source is about to send: tensors in order, and all that is no tensor, packed.

    The last ``later`` of the tensors follow while the next step is computed. ``groups``: the
    parameters of each optimizer. ``settings``: plain attributes. ``behind``: what changed behind
    the last gate.
    """

    tensors: tuple[TensorSpec, ...]
    scalars: bytes
    later: int = 0
    groups: dict[str, Membership] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    behind: BehindGate = field(default_factory=BehindGate)


@dataclass(frozen=True)
class Begun:
    """What an attempt may change before its gate, as it was when the attempt began."""

    buffers: Mapping[str, Tensor]
    scalars: bytes
    groups: SavedGroups
    settings: Settings


class LayoutError(Exception):
    """The state of the source does not fit that of the receiver. The text names the first part."""


class ReplicatedState:
    """The protected parts of one process, by name."""

    def __init__(
        self,
        parts: Mapping[str, object],
        replicas: Sequence[int] | None = None,
        *,
        kept: bool = False,
    ) -> None:
        """``replicas``: ranks with the same shards as this one, or None, of what is sharded.

        ``kept``: other ranks keep what this one alone holds. Raises ``TypeError``.
        """
        self._parts = dict(parts)
        self.replicas = replicas
        self._sharded: list[str] = []
        for name, part in self._parts.items():
            if not isinstance(part, (nn.Module, torch.optim.Optimizer)) and not (
                hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
            ):
                raise TypeError(f"{name}: {type(part).__name__} has no state_dict")
            if (how := how_sharded(part)) and not kept and len(replicas or ()) < 2:
                raise TypeError(f"{name}: {how}: no rank is a replica of another one's part")
            if how:
                self._sharded.append(name)
        self.settings = ModuleSettings(self._parts)
        self.groups = OptimizerGroups(self._parts)
        self.structure = Structure(self._parts)
        self.behind = BehindGate()
        self.begun: Begun | None = None
        """What `offer` gives in place of the present, while an attempt is under way that is not
        taken back when a rank is lost."""

    def begin(self) -> None:
        """The loop begins: the modules are all there, and stay."""
        self.settings.begin()
        self.structure.begin()

    def check(self) -> None:
        """At the gate. Raises ``ChangedError`` where a replacement would not be alike."""
        for part in self.flat_shards():
            part.check()
        self.structure.check()
        try:
            self.groups.check()
        except UnknownParameterError as error:
            raise ChangedError(str(error)) from None

    @property
    def parts(self) -> dict[str, object]:
        """What is protected, by name."""
        return dict(self._parts)

    def sharded_parts(self) -> list[str]:
        """Names of the parts of which each rank has its own shards."""
        return list(self._sharded)

    def describe(self) -> dict[str, str]:
        """Class and size of each part, for people."""
        found: dict[str, str] = {}
        for name, part in self._parts.items():
            found[name] = type(part).__qualname__
            if isinstance(part, nn.Module):
                tensors = tensors_of(part)
                size = sum(one.numel() * one.element_size() for one in tensors)
                found[name] += f" of {len(tensors)} tensors, {size} bytes"
            elif isinstance(part, torch.optim.Optimizer):
                found[name] += f", state of {len(parameters_of(part))} parameters"
        return found

    def flat_shards(self) -> list[FlatShards]:
        """Those among the parts."""
        return [part for part in self._parts.values() if isinstance(part, FlatShards)]

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those among the parts."""
        return [part for part in self._parts.values() if isinstance(part, torch.optim.Optimizer)]

    def check_covers(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises ``RuleError`` where ``optimizer`` changes what no protected optimizer does.

        One that shares all parameters with those wraps them.
        """
        known = {id(one) for mine in self.optimizers() for one in parameters_of(mine)}
        if not known.issuperset(map(id, parameters_of(optimizer))):
            raise RuleError(
                f"the step of a {type(optimizer).__qualname__} that is not protected: name it in "
                "protect(), for a replacement would not have its state"
            )

    def buffers(self) -> dict[str, Tensor]:
        """Buffers of the modules by name: a forward pass may change them, on each rank its own."""
        return {
            f"{name}/{key}": buffer
            for name, part in sorted(self._parts.items())
            if isinstance(part, nn.Module)
            for key, buffer in part.named_buffers()
        }

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Every tensor that there is now, with its name; an optimizer's exist after a step."""
        found: list[tuple[str, Tensor]] = []
        for name, part in sorted(self._parts.items()):
            if isinstance(part, nn.Module):
                found += [
                    (f"{name}/{key}", plain(one.data))
                    for key, one in part.named_parameters()
                    if not is_made(one)
                ]
                found += [(f"{name}/{key}", plain(one)) for key, one in part.named_buffers()]
            elif isinstance(part, torch.optim.Optimizer):
                own = self.groups.own_parameters(name)
                found += [(key, plain(one.data)) for key, one in own]
                for place, parameter in enumerate(parameters_of(part)):
                    for key, value in part.state.get(parameter, {}).items():
                        if isinstance(value, Tensor):
                            found.append((f"{name}/{place}/{key}", plain(value)))
        return found

    def offer(self, *, split: bool = False) -> tuple[Manifest, list[Tensor], list[Tensor]]:
        """The manifest of what is there now, the tensors to send first, and those for later.

        For later, if ``split``: what nothing but an optimizer's step reads or changes.
        """
        first: list[tuple[str, Tensor]] = []
        later: list[tuple[str, Tensor]] = []
        begun = self.begun
        for name, now in self.tensors():
            tensor = begun.buffers.get(name, now) if begun else now
            part = self._parts[name.partition("/")[0]]
            (later if split and _only_for_steps(part, name, tensor) else first).append(
                (name, tensor)
            )
        specs = tuple(spec_of(name, tensor) for name, tensor in first + later)
        manifest = Manifest(
            specs, begun.scalars if begun else self.scalars(), len(later),
            self.groups.membership(begun.groups if begun else None),
            self.settings.carried(begun.settings if begun else None), self.behind,
        )  # fmt: skip
        return manifest, [one for _, one in first], [one for _, one in later]

    def layout(self) -> dict[str, str]:
        """Of each part: its class, and names, shapes and types of a model or sizes of groups."""
        found: dict[str, str] = {}
        for name, part in self._parts.items():
            text = type(part).__qualname__
            if isinstance(part, nn.Module):
                named = [*part.named_parameters(), *part.named_buffers()]
                specs = "".join(repr(spec_of(key, tensor)) for key, tensor in named)
                digest = hashlib.sha256(specs.encode()).hexdigest()[:16]
                text += f" of {len(named)} tensors (names, shapes and types: {digest})"
            elif isinstance(part, torch.optim.Optimizer):
                text += f" of groups of {[len(group['params']) for group in part.param_groups]}"
            found[name] = text
        return found | self.structure.hooks()

    def facts(self) -> dict[str, str]:
        """Learning rates and the like, scales, and what is frozen: alike on all ranks."""
        scales = {
            f"{name} {key}": repr(value)
            for name, part in self._parts.items()
            if isinstance(part, torch.amp.GradScaler)
            for key, value in part.state_dict().items()
        }
        return scales | self.settings.describe() | {
            f"{name} group {place} {key}": repr(value)
            for name, part in self._parts.items()
            if isinstance(part, torch.optim.Optimizer)
            for place, group in enumerate(part.param_groups)
            for key, value in group.items()
            if isinstance(value, (bool, int, float, str, tuple, type(None)))
        }  # fmt: skip

    def forget_attempt(self) -> None:
        """An attempt has ended anywhere. Who keeps how far it was has a method for that.

        FSDP2: `reset_iter_state`. Others: `forget_attempt`.
        """
        for part in self._parts.values():
            for name in ("reset_iter_state", "forget_attempt"):
                if (reset := getattr(part, name, None)) is not None:
                    reset()

    def digest(self, without: Container[str] = (), part: str = "") -> str:
        """SHA-256 of all tensors: alike on ranks that are replicas of each other.

        ``part``: of that one alone.
        """
        found = hashlib.sha256()
        for name, tensor in self.tensors():
            if name in without or (part and name.partition("/")[0] != part):
                continue
            found.update(name.encode())
            data = flat(tensor)
            found.update(memory(data))
        return found.hexdigest()

    def make_optimizer_state(self) -> None:
        """Let each optimizer make what it keeps for its parameters, of any value.

        For a process without state, which will get all values from a replica.
        """
        for optimizer in self.optimizers():
            with contextlib.suppress(Exception):  # it is made with the copy, then
                optimizer.step()

    def accept(self, manifest: Manifest) -> list[Tensor]:
        """The tensors to receive into, in the order of ``manifest``; makes those of optimizers.

        State of an optimizer that the source does not have is dropped. Raises ``LayoutError``;
        this process must not go on then.
        """
        try:
            self.groups.take_over(manifest.groups)
        except UnknownParameterError as error:
            raise LayoutError(str(error)) from None
        self._drop_state({spec.name for spec in manifest.tensors})
        here = dict(self.tensors())
        for spec in manifest.tensors:
            if spec.name not in here:
                here[spec.name] = self._make(spec)
            mine = spec_of(spec.name, here[spec.name])
            if mine != spec:
                raise LayoutError(f"{spec.name} is {mine} here and {spec} at the source")
        extra = here.keys() - {spec.name for spec in manifest.tensors}
        if extra:
            raise LayoutError(f"the source has no {min(extra)}")
        return [here[spec.name] for spec in manifest.tensors]

    def scalars(self) -> bytes:
        """All that is no tensor of a module or an optimizer, for ``apply_scalars``."""
        return pack(scalars_of(self._parts))

    def take_over(self, manifest: Manifest) -> None:
        """Take over all that is no tensor, when the tensors are here. Raises ``LayoutError``."""
        self.apply_scalars(manifest.scalars)
        try:
            self.settings.apply(manifest.settings)
        except UnknownSettingError as error:
            raise LayoutError(str(error)) from None
        self.behind = manifest.behind

    def apply_scalars(self, data: bytes) -> None:
        """Take over learning rates, step counters, schedulers."""
        scalars: dict[str, Any] = unpack(data)
        if scalars.keys() != self._parts.keys():
            raise LayoutError(f"the source protects {sorted(scalars)}, not {sorted(self._parts)}")
        apply_scalars(self._parts, scalars)

    def _drop_state(self, known: Container[str]) -> None:
        """Drop what optimizers hold besides ``known``: their steps begin where the source's do."""
        for name, part in self._parts.items():
            if not isinstance(part, torch.optim.Optimizer):
                continue
            for place, parameter in enumerate(parameters_of(part)):
                fields = part.state.get(parameter, {})
                for key in [key for key in fields if f"{name}/{place}/{key}" not in known]:
                    if isinstance(fields[key], Tensor):
                        del fields[key]

    def _make(self, spec: TensorSpec) -> Tensor:
        name, _, rest = spec.name.partition("/")
        part = self._parts.get(name)
        place, _, key = rest.partition("/")
        if not isinstance(part, torch.optim.Optimizer) or not place.isdigit():
            raise LayoutError(f"{spec.name} of the source does not exist here")
        parameters = parameters_of(part)
        if int(place) >= len(parameters):
            raise LayoutError(f"{spec.name}: the optimizer has {len(parameters)} parameters here")
        parameter = parameters[int(place)]
        device = parameter.device if parameter.device.type == spec.device else spec.device
        try:
            dtype = dtype_of(spec.dtype)
        except ForeignValueError as error:
            raise LayoutError(f"{spec.name}: {error}") from None
        value = torch.empty(spec.shape, dtype=dtype, device=device)
        part.state[parameter][key] = like(parameter, value)
        return value


def _only_for_steps(part: object, name: str, tensor: Tensor) -> bool:
    """Nothing but the step of ``part`` reads or changes ``tensor``, as far as torch goes.

    Other optimizers may keep anything in their state, e.g. weights that they exchange. Parameters
    that an optimizer alone has (``#``) may be what others are made of.
    """
    ours = type(part).__module__.startswith("torch.optim.") and "/#" not in name
    return isinstance(part, torch.optim.Optimizer) and ours and tensor.device.type == "cpu"


def spec_of(name: str, tensor: Tensor) -> TensorSpec:
    """That of ``tensor``, under ``name``."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(name, tuple(tensor.shape), dtype, tensor.device.type)
