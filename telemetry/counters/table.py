"""A driver's own counter names mapped to canonical ones. Pure.

In a native name ``[i]`` stands for a number (a ring, priority or lane). Several native counters may
add up to one canonical counter, if all of them are 64 bits wide: a sum of counters that wrap or
saturate cannot be told from one that was reset.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from telemetry.counters.types import WIDE, CounterError, Shape
from telemetry.counters.vocabulary import COUNTERS

_NUMBER = re.escape("[i]")


@dataclass(frozen=True, slots=True)
class Row:
    """One native counter.

    Attributes:
        native: the driver's name; ``[i]`` is any number.
        canonical: a name of `COUNTERS`.
        shape: how the driver (or the device behind it) keeps it.
        scale: canonical units per native unit.
    """

    native: str
    canonical: str
    shape: Shape = WIDE
    scale: int = 1


@dataclass(frozen=True)
class Table:
    """The rows of one driver.

    Attributes:
        driver: as the kernel names it.
        source: where the names and widths come from.
    """

    driver: str
    source: str
    rows: tuple[Row, ...]
    _exact: dict[str, Row] = field(init=False, repr=False, compare=False)
    _patterns: tuple[tuple[re.Pattern[str], Row], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Raises ValueError for a table that could not be read exactly."""
        shapes: dict[str, list[Shape]] = {}
        for row in self.rows:
            if row.canonical not in COUNTERS:
                raise ValueError(f"{self.driver}: {row.canonical} is not in the vocabulary")
            several = [row.shape] * (2 if "[i]" in row.native else 1)
            shapes.setdefault(row.canonical, []).extend(several)
        for canonical, all_of in shapes.items():
            if len(all_of) > 1 and any(shape != WIDE for shape in all_of):
                raise ValueError(f"{self.driver}: {canonical} adds counters that are not 64 bits")
        exact = {row.native: row for row in self.rows if "[i]" not in row.native}
        patterns = tuple(
            (re.compile(re.escape(row.native).replace(_NUMBER, r"\d+")), row)
            for row in self.rows
            if "[i]" in row.native
        )
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_patterns", patterns)

    def row(self, native: str) -> Row | None:
        """The row for a native name; None: not mapped."""
        found = self._exact.get(native)
        if found is None:
            found = next((row for regex, row in self._patterns if regex.fullmatch(native)), None)
        return found

    def known(self, natives: Iterable[str]) -> int:
        """How many of these names the table maps."""
        return sum(self.row(name) is not None for name in natives)

    def canonical(self, natives: Mapping[str, int]) -> tuple[dict[str, int], dict[str, Shape]]:
        """Canonical values, and the shapes of those not 64 bits wide; unmapped names are left out.

        Raises:
            CounterError: a value is negative or does not fit into 64 bits.
        """
        values: dict[str, int] = {}
        shapes: dict[str, Shape] = {}
        for name, value in natives.items():
            row = self.row(name)
            if row is not None:
                if not 0 <= value <= WIDE.maximum:
                    raise CounterError(f"{name}: {value} is no 64-bit count")
                add(row, value, values, shapes)
        return values, shapes


def add(row: Row, value: int, values: dict[str, int], shapes: dict[str, Shape]) -> None:
    """Add one native value to the canonical ones.

    A value larger than its shape allows proves the shape wrong (a newer device keeps it wider): it
    is then taken as 64 bits wide.
    """
    values[row.canonical] = values.get(row.canonical, 0) + value * row.scale
    if row.shape != WIDE and value <= row.shape.maximum:
        shapes[row.canonical] = row.shape
