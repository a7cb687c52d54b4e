"""What an attempt may change before its gate, kept so that the attempt can be taken back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fabric_train.rules.loop import RuleError
from fabric_train.state import behind_gate
from fabric_train.state.module_settings import Settings
from fabric_train.state.plain_values import pack, unpack
from fabric_train.state.rank_local import LocalStates, RandomStates
from fabric_train.state.replicated import Begun, ReplicatedState

_PART = "local/"


class DrawnError(RuleError):
    """Random numbers were drawn where a replacement would not draw them."""


@dataclass(frozen=True)
class _Next:
    """Rank-local state at the start of the next step, as it was at some moment of an attempt."""

    generators: RandomStates
    parts: bytes
    buffers: dict[str, Tensor]
    settings: Settings


class StepStart:
    """The start of the present step, of one process, and that of the next one."""

    def __init__(self, state: ReplicatedState, local: LocalStates) -> None:
        self._state = state
        self._states = local
        self._generators: RandomStates | None = None
        self._parts = b""
        self._scalars = b""
        self._buffers: dict[str, Tensor] = {}
        self._settings: Settings | None = None
        self._groups: Any = None
        self._changing: set[str] = set()  # buffers and settings that attempts change
        self._next: _Next | None = None
        self._compared: frozenset[str] = frozenset()  # names that the next vote compares
        self._unkept: frozenset[str] = frozenset()
        self._kept: tuple[Any, ...] | None = None  # the start of the last step that was voted on
        self._digest: int | None = None  # of their values; None: this process has none to compare

    def capture(self) -> None:
        """Keep what is there now.

        Raises ``DrawnError`` where random numbers were drawn since the last attempt's gate.
        """
        at_gate, self._next = self._next, None
        if at_gate is None:
            self._generators = RandomStates.now()
        elif at_gate.generators.is_now():
            self._generators = at_gate.generators
        else:
            raise DrawnError(
                "random numbers were drawn between optimizer.step() and the next step: a "
                "replacement would not draw them. Draw them before optimizer.step()"
            )
        self._parts = self._states.parts_now()
        self._scalars = self._state.scalars()
        self._groups = self._state.groups.now()
        self._settings = self._state.settings.now()
        before = self._buffers
        buffers = self._state.buffers()
        if at_gate is not None:
            self._note_behind(at_gate, {**before, **at_gate.buffers}, buffers)
        self._buffers = {name: one.detach().clone() for name, one in buffers.items()}
        self._state.structure.mark()

    @property
    def scalars(self) -> bytes:
        """What the state was beside its tensors, as it was captured."""
        return self._scalars

    def keep(self) -> None:
        """The vote on the step that began here has succeeded: keep its start for `go_back`."""
        self._kept = (
            self._generators, self._parts, self._scalars, self._buffers, self._settings,
            self._groups,
        )  # fmt: skip

    def go_back(self) -> None:
        """Be at the start that was kept. Parameters and optimizers' tensors are there already."""
        assert self._kept is not None
        (
            self._generators, self._parts, self._scalars, self._buffers, self._settings,
            self._groups,
        ) = self._kept  # fmt: skip
        self._next = None
        self._compared, self._digest = frozenset(), None
        self.restore()

    def begun(self) -> Begun:
        """What was captured and is no rank's own, for a source in the middle of an attempt."""
        assert self._settings is not None
        return Begun(self._buffers, self._scalars, self._groups, self._settings)

    def _note_behind(
        self, at_gate: _Next, before: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> None:
        """Find what has changed since the gate, for the next vote and for a replacement."""
        assert self._settings is not None
        changed: dict[str, Any] = {
            name: one
            for name, one in buffers.items()
            if name not in before or not torch.equal(before[name], one)
        }
        changed |= self._state.settings.changes(at_gate.settings, self._settings)
        parts = _changed_parts(at_gate.parts, self._parts)
        behind = self._state.behind
        compared = changed.keys() - self._changing - behind.unequal
        self._compared = frozenset(compared)
        self._digest = behind_gate.digest({name: changed[name] for name in compared})
        self._state.behind = behind.having(frozenset(changed) | parts)

    @property
    def digest(self) -> int | None:
        """Of what has changed behind the last gate and may be alike on all ranks, for the vote."""
        return self._digest

    def voted(self, *, equal: bool) -> None:
        """All ranks have voted; ``equal``: with the same digest."""
        if self._compared:
            self._state.behind = self._state.behind.voted(self._compared, equal=equal)
        self._compared = frozenset()

    def late_state(self) -> bytes | None:
        """Rank-local state as it was captured, where the gate has not seen all of it.

        None: it has, as far as it may differ between ranks.
        """
        if not self._state.behind.rank_local:
            return None
        assert self._settings is not None
        assert self._generators is not None
        known, names = self._buffers, self._own_names()
        buffers = {name: one for name, one in known.items() if name in names}
        return self._states.encode(
            self._generators, self._parts, buffers, self._settings_of(names, self._settings),
            late=True,
        )  # fmt: skip

    def _own_names(self) -> set[str]:
        """Buffers and settings of which this rank has values of its own, as far as is known."""
        behind = self._state.behind
        only_behind = behind.unequal - self._changing
        self._unkept = frozenset()
        if _size(self._buffers, only_behind) > behind_gate.MOST:
            only_behind, self._unkept = frozenset(), only_behind
        new = behind.rank_local - behind.unequal - self._changing
        if _size(self._buffers, new) > behind_gate.UNCOMPARED:
            new = frozenset()  # the next vote tells whether it has to be sent
        return self._changing | only_behind | new

    @property
    def unkept(self) -> frozenset[str]:
        """What differs between ranks, changes behind the gate, and is too large to be sent."""
        return self._unkept

    def local(self) -> bytes:
        """Rank-local state as it was captured, without buffers: no attempt has changed them."""
        assert self._generators is not None
        return self._states.encode(self._generators, self._parts, {})

    def restore(self) -> None:
        """Take back what an attempt has changed, and drop its gradients."""
        assert self._settings is not None
        self._state.forget_attempt()
        buffers = self._state.buffers()
        for name, value in self._buffers.items():
            buffers[name].copy_(value)
        self._state.groups.restore(self._groups)
        self._state.settings.restore(self._settings)
        self._state.apply_scalars(self._scalars)
        self._states.restore(self.local(), buffers)
        for optimizer in self._state.optimizers():
            optimizer.zero_grad(set_to_none=True)

    def capture_next(self) -> bytes:
        """Rank-local state as it is now, before the gate: with all that attempts change."""
        assert self._settings is not None
        buffers = self._state.buffers()
        for name, value in self._buffers.items():
            if name not in self._changing and not torch.equal(value, buffers[name]):
                self._changing.add(name)
        settings = self._state.settings.now()
        self._changing |= self._state.settings.changes(self._settings, settings).keys()
        names = self._own_names()
        changed = {name: buffers[name].detach().clone() for name in sorted(names & buffers.keys())}
        parts = self._states.parts_now()
        self._next = _Next(RandomStates.now(), parts, changed, settings)
        return self._states.encode(
            self._next.generators, parts, changed, self._settings_of(names, settings)
        )

    def is_captured(self) -> bool:
        """What ``capture_next`` gave is rank-local state as it is now, too."""
        known = self._next
        if known is None or not known.generators.is_now():
            return False
        if known.parts != self._states.parts_now():
            return False
        if known.settings != self._state.settings.now():
            return False
        buffers = self._state.buffers()
        return all(
            torch.equal(known.buffers.get(name, before), buffers[name])
            for name, before in self._buffers.items()
        )

    def forget_next(self) -> None:
        """There was no gate: this attempt does not count."""
        self._next = None

    def take_over(self, body: bytes) -> frozenset[str]:
        """Take over the rank-local state of a lost process; the replicated state is here already.

        Returns the names of what the lost process had changed behind its gate and taken with it.
        """
        behind = self._state.behind
        content = self._states.decode(body)
        lost = frozenset() if content.late else behind.rank_local
        stale = frozenset() if content.late else behind.changed
        kept = content.without(stale)
        self._states.restore_content(kept, self._state.buffers())
        self._state.settings.apply(kept.settings)
        self._changing |= kept.buffers.keys() | kept.settings.keys()
        self._compared, self._digest = frozenset(), None
        return lost

    def _settings_of(self, names: set[str] | frozenset[str], settings: Settings) -> dict[str, Any]:
        if not names:
            return {}
        values = self._state.settings.values(settings)
        return {name: values[name] for name in names if name in values}


def _size(buffers: Mapping[str, Tensor], names: frozenset[str]) -> int:
    return sum(behind_gate.size_of(buffers[name]) for name in names if name in buffers)


def _changed_parts(before: bytes, after: bytes) -> frozenset[str]:
    """Names of the parts that two encoded states differ in."""
    if before == after:
        return frozenset()
    old, new = unpack(before), unpack(after)
    return frozenset(f"{_PART}{name}" for name in new if not _same(old[name], new[name]))


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401
    """Whether two states are alike. Two encodings may differ where the states do not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return pack(one) == pack(other)
