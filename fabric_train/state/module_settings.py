"""What modules and optimizers are beside their tensors, as far as it is plain values.

Those are ``training`` of each module, ``requires_grad`` of each parameter, and every attribute that
is a number, a string, a truth value or None: the rate of a dropout, the momentum of a batch norm,
the counter of a module or an optimizer of one's own. A step may change them. So a replacement gets
them with the state, and an attempt that is taken back restores them.

An attribute of a module may differ between ranks from the beginning, e.g. the number of the rank.
Only what has changed since the beginning of the loop is copied from another rank.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from fabric_train.state.plain_values import carry

_PLAIN = frozenset({bool, int, float, complex, str, type(None)})
_WRAPPERS = "torch.nn.parallel."  # what they keep follows the process group, not the script
_HOOK_KIND = "_is_full_backward_hook"  # follows the hooks, which must not change
_OF_MODULES = frozenset(nn.Module().__dict__)
_LONG = 200  # characters of a list of names
_REPLICATED = ("training", "requires_grad")  # alike on all ranks that train the same


@carry
class Absent(enum.Enum):
    """The value of an attribute that an object does not have."""

    ABSENT = "absent"


@dataclass(frozen=True)
class Settings:
    """All values at one moment, to be compared and restored."""

    fields: tuple[tuple[tuple[str, ...], tuple[Any, ...]], ...]  # names and values of each owner
    trained: tuple[bool, ...]  # of each parameter


class UnknownSettingError(Exception):
    """The source has a setting whose owner does not exist here. The text names it."""


class ModuleSettings:
    """The settings of the modules and optimizers among ``parts``."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = parts
        self._fixed = False
        self._begun: Settings | None = None
        self._ever_changed: set[str] = set()
        self._list()

    def _list(self) -> None:
        self._owners: dict[str, Any] = {}
        self._parameters: dict[str, nn.Parameter] = {}
        known: set[int] = set()
        for name, part in sorted(self._parts.items()):
            if isinstance(part, torch.optim.Optimizer):
                self._owners[name] = part
            for path, one in _objects_of(part):
                if id(one) in known:
                    continue
                known.add(id(one))
                where = self._parameters if isinstance(one, nn.Parameter) else self._owners
                where[f"{name}/{path}" if path else name] = one
        self._fields = [_PlainFields(one) for one in self._owners.values()]

    def begin(self) -> None:
        """The loop begins: what modules there are does not change any more."""
        self._list()
        self._begun = self.now()
        self._fixed = True

    def now(self) -> Settings:
        """The present values."""
        if not self._fixed:
            self._list()
        fields = tuple([one.now() for one in self._fields])
        return Settings(fields, tuple([one.requires_grad for one in self._parameters.values()]))

    def values(self, settings: Settings) -> dict[str, Any]:
        """The values in ``settings`` by name, e.g. ``model/net.drop.p``."""
        found: dict[str, Any] = {}
        for owner, fields in zip(self._owners, settings.fields, strict=True):
            found |= {f"{owner}.{key}": value for key, value in zip(*fields, strict=True)}
        for owner, trained in zip(self._parameters, settings.trained, strict=True):
            found[f"{owner}.requires_grad"] = trained
        return found

    def changes(self, before: Settings, after: Settings) -> dict[str, Any]:
        """What differs between the two, with its value in ``after``."""
        if before == after:
            return {}
        old, new = self.values(before), self.values(after)
        changed = {
            name: new.get(name, Absent.ABSENT)
            for name in old.keys() | new.keys()
            if old.get(name, Absent.ABSENT) != new.get(name, Absent.ABSENT)
        }
        self._ever_changed |= changed.keys()
        return changed

    def carried(self, now: Settings | None = None) -> dict[str, Any]:
        """What a replacement has to take over, of the present or of ``now``."""
        now = now or self.now()
        values = self.values(now)
        if self._begun is not None:
            self.changes(self._begun, now)
        optimizers = {
            name for name, part in self._parts.items() if isinstance(part, torch.optim.Optimizer)
        }
        names = {
            name
            for name in values
            if _split(name)[1] in _REPLICATED or _split(name)[0] in optimizers
        }
        return {
            name: values.get(name, Absent.ABSENT) for name in sorted(names | self._ever_changed)
        }

    def apply(self, values: Mapping[str, Any]) -> None:
        """Set these. Raises ``UnknownSettingError``; nothing has changed then."""
        if not self._fixed:
            self._list()
        for name in values:
            owner, _ = _split(name)
            if owner not in self._parameters and owner not in self._owners:
                raise UnknownSettingError(f"{name} of the source does not exist here")
        for name, value in values.items():
            owner, key = _split(name)
            if owner in self._parameters:
                self._parameters[owner].requires_grad_(value)
            elif value is Absent.ABSENT:
                self._owners[owner].__dict__.pop(key, None)
            else:
                self._owners[owner].__dict__[key] = value
            if key not in _REPLICATED:
                self._ever_changed.add(name)

    def restore(self, settings: Settings) -> None:
        """Be as at the moment of ``settings``."""
        self.apply(self.changes(self.now(), settings))

    def describe(self) -> dict[str, str]:
        """What is frozen and what is in evaluation mode, of each module, for people."""
        found: dict[str, str] = {}
        for name, part in self._parts.items():
            if isinstance(part, nn.Module):
                frozen = [key for key, one in part.named_parameters() if not one.requires_grad]
                still = [key or "itself" for key, one in part.named_modules() if not one.training]
                found[f"{name} frozen"] = _in_short(frozen)
                found[f"{name} in evaluation mode"] = _in_short(still)
        return found


def _in_short(names: Sequence[str]) -> str:
    text = ", ".join(names) or "nothing"
    if len(text) <= _LONG:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[:_LONG]}… ({len(names)} names: {digest})"


def _split(name: str) -> tuple[str, str]:
    owner, _, key = name.rpartition(".")
    return owner, key


def _objects_of(part: object) -> Iterator[tuple[str, Any]]:
    if isinstance(part, nn.Module):
        yield from part.named_modules()
        yield from part.named_parameters()


class _PlainFields:
    """The plain attributes of one object. Reading them is quick while their types stay."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._is_wrapper = type(owner).__module__.startswith(_WRAPPERS)
        self._scan()

    def _scan(self) -> None:
        fields = self._owner.__dict__
        keys = [key for key, value in fields.items() if value.__class__ in _PLAIN]
        keys = ["training"] if self._is_wrapper else [key for key in keys if key != _HOOK_KIND]
        self._count = len(fields)
        self._keys = tuple(keys)
        # An itemgetter of fewer than two names gives no tuple.
        self._get = itemgetter(*keys) if len(keys) > 1 else lambda of: tuple(of[k] for k in keys)
        self._kinds = tuple(map(type, self._get(fields)))
        others = fields.keys() - self._keys - _OF_MODULES - {_HOOK_KIND}
        self._others = () if self._is_wrapper else tuple(others)  # may become plain

    def now(self) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        """Names and values."""
        fields = self._owner.__dict__
        try:
            values = self._get(fields)
            same = len(fields) == self._count and tuple(map(type, values)) == self._kinds
            if not same or any(fields[key].__class__ in _PLAIN for key in self._others):
                raise KeyError
        except KeyError:
            self._scan()
            values = self._get(fields)
        return self._keys, values
