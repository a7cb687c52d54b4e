"""Rows of a benchmark, printed as one table and written as JSON.

The JSON is ``{"meta": {…}, "rows": [{"name", "asked", "got", "unit", "peer", "ratio", "ok"}]}``;
``ok`` compares got with asked and nothing else, and is null for a row that asks nothing.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure.

    ``asked`` is the bound that ``got`` is held against in ``unit``, or None where nothing is asked;
    ``peer`` is what the thing compared with reached in the same run.
    """

    name: str
    asked: float | None
    got: float
    unit: str
    better: Literal["lower", "higher", "equal"] = "lower"
    peer: float | None = None
    note: str = ""

    @property
    def ok(self) -> bool | None:
        """Whether ``got`` meets ``asked``; None when nothing is asked."""
        if self.asked is None:
            return None
        if self.better == "lower":
            return self.got <= self.asked
        if self.better == "higher":
            return self.got >= self.asked
        return self.got == self.asked

    @property
    def ratio(self) -> float | None:
        """``got / peer``, or None without a peer."""
        return self.got / self.peer if self.peer else None


def percentile(values: list[float], q: float) -> float:
    """The q-quantile (0..1) of ``values`` by the nearest-rank rule; no interpolation.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values to take a quantile of")
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * q // 1))
    return ordered[min(int(rank), len(ordered)) - 1]


def _revision() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def publish(name: str, rows: list[Row], *, quick: bool, seconds: float) -> bool:
    """Print the table, write ``bench/results/NAME.json``; return whether every row is ok."""
    table = Table(title=f"bench {name}" + (" (quick)" if quick else ""))
    for column in ("what", "asked", "got", "unit", "peer", "ratio", "ok", "note"):
        table.add_column(column, overflow="fold")
    sign = {"lower": "≤", "higher": "≥", "equal": "="}
    for row in rows:
        table.add_row(
            row.name,
            "" if row.asked is None else f"{sign[row.better]} {row.asked:g}",
            f"{row.got:.4g}",
            row.unit,
            "" if row.peer is None else f"{row.peer:.4g}",
            "" if row.ratio is None else f"{row.ratio:.3f}",
            {True: "[green]yes", False: "[bold red]NO", None: ""}[row.ok],
            row.note,
        )
    Console(width=None if os.isatty(1) else 150).print(table)
    RESULTS.mkdir(exist_ok=True)
    meta = {
        "bench": name,
        "quick": quick,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": _revision(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "seconds": round(seconds, 1),
    }
    body = {
        "meta": meta,
        "rows": [asdict(row) | {"ratio": row.ratio, "ok": row.ok} for row in rows],
    }
    target = RESULTS / f"{name}.json"
    draft = target.with_suffix(".tmp")
    draft.write_text(json.dumps(body, indent=2) + "\n")
    draft.replace(target)
    return all(row.ok is not False for row in rows)
