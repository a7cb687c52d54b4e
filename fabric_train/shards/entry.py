"""What a rank gives its buddies at the gate of a step, before its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fabric_train.state.plain_values import (
    MOST_BYTES,
    ForeignValueError,
    carry,
    dtype_of,
    pack,
    unpack,
)
from fabric_train.state.replicated import TensorSpec
from fabric_train.state.transfer import CorruptStateError

_MOST_DIMENSIONS = 64


class BadEntryError(CorruptStateError):
    """What a rank says it gives is no entry of its log. The text says why."""


@carry
@dataclass(frozen=True)
class Entry:
    """The shards of ``rank`` after ``step`` steps, as far as they are new, and the next gradients.

    ``seeds``: what was kept before is void, and all ``units`` are in ``renewed``. ``gradients``:
    by unit, of the step that is voted on now. ``renewed``: by unit, all its tensors as they are
    after ``step`` steps. ``fields``: of the optimizers' groups in the step that is voted on.
    ``scalars``: of a whole copy, all that is no tensor of an optimizer or a module, packed. The
    bytes of ``gradients``, then those of ``renewed``, follow in this order.
    """

    rank: int
    step: int
    seeds: bool
    units: int
    gradients: dict[int, TensorSpec]
    renewed: dict[int, tuple[TensorSpec, ...]]
    fields: dict[str, list[dict[str, Any]]]
    scalars: bytes = b""

    def specs(self) -> list[TensorSpec]:
        """Of all tensors that follow."""
        return [*self.gradients.values(), *(one for each in self.renewed.values() for one in each)]

    def encode(self) -> bytes:
        """For ``decode``. Raises ``NotPlainError``."""
        return pack(self)


def decode(data: bytes, rank: int) -> Entry:
    """The entry of ``rank``. Raises ``BadEntryError``."""
    try:
        entry = unpack(data)
    except ForeignValueError as error:
        raise BadEntryError(f"what rank {rank} gives of its shards: {error}") from None
    try:
        _check(entry, rank)
    except (AttributeError, TypeError, ValueError) as error:
        raise BadEntryError(f"what rank {rank} gives of its shards: {error}"[:300]) from None
    return entry  # type: ignore[no-any-return]


def size_of(spec: TensorSpec) -> int:
    """Its bytes."""
    count = 1
    for length in spec.shape:
        count *= length
    return count * int(dtype_of(spec.dtype).itemsize)


def _check(entry: Any, rank: int) -> None:  # noqa: ANN401
    if type(entry) is not Entry or type(entry.step) is not int or entry.step < 0:
        raise ValueError("no entry")
    if type(entry.seeds) is not bool or type(entry.units) is not int or entry.units < 0:
        raise ValueError("no entry")
    if entry.rank != rank:
        raise ValueError(f"it says it is of rank {str(entry.rank)[:20]}")
    for unit in (*entry.gradients, *entry.renewed):
        if type(unit) is not int or not 0 <= unit < entry.units:
            raise ValueError(f"there is no unit {str(unit)[:20]}")
    if not isinstance(entry.gradients, dict) or not isinstance(entry.renewed, dict):
        raise TypeError("no units")
    if entry.seeds and len(entry.renewed) != entry.units:
        raise ValueError("a first copy without all units")
    for spec in entry.specs():
        _check_spec(spec)
    if not isinstance(entry.scalars, bytes):
        raise TypeError("no scalars")
    for groups in entry.fields.values():
        if not isinstance(groups, list) or not all(isinstance(one, dict) for one in groups):
            raise TypeError("no groups")


def _check_spec(spec: Any) -> None:  # noqa: ANN401
    if type(spec) is not TensorSpec or not isinstance(spec.name, str):
        raise TypeError("no tensor")
    shape = spec.shape
    if not isinstance(shape, tuple) or len(shape) > _MOST_DIMENSIONS:
        raise TypeError(f"{spec.name[:80]} has no shape")
    if any(type(length) is not int or not 0 <= length < MOST_BYTES for length in shape):
        raise ValueError(f"{spec.name[:80]} has no size")
    try:
        size = size_of(spec)
    except ForeignValueError as error:
        raise ValueError(f"{spec.name[:80]}: {error}") from None
    if size >= 1 << 50:
        raise ValueError(f"{spec.name[:80]} has {size} bytes")
