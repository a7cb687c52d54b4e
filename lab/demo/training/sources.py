"""What fabric-compute and the ranks of the second act say, read while they write it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class LineFile:
    """Lines of JSON of a growing file; what is not whole yet is left for later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """Objects of the lines since the last call; other lines are skipped."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        rows = []
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
        return rows


@dataclass(frozen=True)
class Step:
    """One step that one rank has applied. ``t_ns``: CLOCK_MONOTONIC."""

    t_ns: int
    step: int
    loss: float
    rank: int
    generation: int
    host: str
    pid: int


@dataclass
class Progress:
    """All steps that the ranks have applied, by their own files in ``directory``."""

    directory: Path
    steps: list[Step] = field(default_factory=list)
    newest: dict[int, Step] = field(default_factory=dict)
    """By rank."""
    _files: dict[Path, LineFile] = field(default_factory=dict)

    def poll(self) -> list[Step]:
        """Read what is new, in the order of time."""
        for path in self.directory.glob("*.jsonl"):
            self._files.setdefault(path, LineFile(path))
        rows = [Step(**row) for file in self._files.values() for row in file.new()]
        rows.sort(key=lambda row: row.t_ns)
        self.steps += rows
        for row in rows:
            known = self.newest.get(row.rank)
            if known is None or row.step >= known.step:
                self.newest[row.rank] = row
        return rows

    def all_past(self, t_ns: int, generation: int, world: int) -> int | None:
        """When the last rank applied its first step of ``generation`` after ``t_ns``; or None."""
        first: dict[int, int] = {}
        for row in self.steps:
            if row.generation >= generation and row.t_ns > t_ns:
                first.setdefault(row.rank, row.t_ns)
        return max(first.values()) if len(first) == world else None

    def longest_gap_ms(self, start_ns: int, end_ns: int) -> float:
        """Longest time between two steps of rank 0 that overlaps the span."""
        times = [row.t_ns for row in self.steps if row.rank == 0]
        gaps = [b - a for a, b in itertools.pairwise(times) if b > start_ns and a < end_ns]
        return max(gaps, default=0) / 1e6

    def doubled_or_missing(self, world: int) -> int:
        """Steps that a rank applied twice or never, up to the newest of all ranks.

        A process that takes a rank over begins with the state after some step, which nobody of
        that rank may have applied: that one is neither.
        """
        wrong = 0
        for rank in range(world):
            mine = {row.step: row for row in self.steps if row.rank == rank}
            wrong += sum(row.rank == rank for row in self.steps) - len(mine)
            rows = [mine[step] for step in sorted(mine)]
            wrong += rows[0].step - 1 if rows else 0
            for a, b in itertools.pairwise(rows):
                copied = a.pid != b.pid
                wrong += max(0, b.step - a.step - 1 - copied)
        return wrong
