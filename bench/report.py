"""Rows of a benchmark, printed as one table and written as JSON.

The JSON is ``{"meta": {…}, "rows": [{"name", "asked", "got", "unit", "peer", "ratio", "ok"}]}``;
``ok`` compares got with asked and nothing else, and is null for a row that asks nothing. A row that
is not met says in ``met_at`` at which revision it last was, so that what got worse is seen in the
table instead of by comparing two files. A benchmark of several parts, which can be run one at a
time, says in each row of which ``part`` it is; ``meta.parts`` tells when and from what each was
taken.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
_STAT = Path("/proc/stat")
Body = dict[str, Any]
_OPTIONAL = ("samples", "part", "met_at")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure.

    ``asked`` is the bound that ``got`` is held against in ``unit``, or None where nothing is asked;
    ``peer`` is what the thing compared with reached in the same run. ``samples``: what ``got`` was
    made from, by name.
    """

    name: str
    asked: float | None
    got: float
    unit: str
    better: Literal["lower", "higher", "equal"] = "lower"
    peer: float | None = None
    note: str = ""
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    part: str = ""
    met_at: str = ""
    """Of a row that is not met: the last revision that met it; empty where none is known."""

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
    """The commit; "-dirty" where the code is another. Results and documents are no code."""
    commit = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--", ":/", ":!/bench/results", ":!/docs", ":!/*.md")
    return (commit + ("-dirty" if changed else "")) or "unknown"


def _git(*argv: str) -> str:
    return subprocess.run(
        ["git", *argv], capture_output=True, text=True, check=False
    ).stdout.strip()


def stolen_s(stat: str) -> float:
    """Seconds of cores that the hypervisor gave to others so far; 0 on a machine of one's own.

    Args:
        stat: /proc/stat, whose first line has it eighth (proc(5)).
    """
    fields = stat.split("\n", 1)[0].split()[1:]
    return int(fields[7]) / os.sysconf("SC_CLK_TCK") if len(fields) > 7 else 0.0


class Lap:
    """How long something took, from when this is made, and what was stolen meanwhile."""

    def __init__(self) -> None:
        self._began, self._stolen = time.monotonic(), stolen_s(_STAT.read_text())

    def meta(self) -> dict[str, float]:
        """``seconds``, and ``stolen_percent`` of all cores."""
        seconds = time.monotonic() - self._began
        stolen = stolen_s(_STAT.read_text()) - self._stolen
        share = 100 * stolen / (seconds * (os.cpu_count() or 1)) if seconds else 0.0
        return {"seconds": round(seconds, 1), "stolen_percent": round(share, 1)}


def store(
    name: str,
    rows: list[Row],
    *,
    quick: bool,
    lap: Lap,
    part: str = "",
    order: Sequence[str] = (),
) -> list[Row]:
    """Write ``bench/results/NAME.json``; the rows, with where they were last met.

    ``part``: the one that ``rows`` are of; rows of other parts that the file has stay there, all in
    the ``order`` of parts.
    """
    target = RESULTS / f"{name}.json"
    old = json.loads(target.read_text()) if target.exists() else {"meta": {}, "rows": []}
    rows = remembered(old, rows, part, quick=quick)
    meta: dict[str, Any] = {
        "bench": name,
        "quick": quick,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": _revision(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        **lap.meta(),
    }
    body = {"meta": meta, "rows": [_plain(row) for row in rows]}
    if part:
        body = merged(old, body, part, order)
    RESULTS.mkdir(exist_ok=True)
    draft = target.with_suffix(".tmp")
    draft.write_text(json.dumps(body, indent=2) + "\n")
    draft.replace(target)
    return rows


def remembered(
    old: Mapping[str, Any], rows: list[Row], part: str = "", *, quick: bool = False
) -> list[Row]:
    """Rows of ``part`` that are not met, with the last revision of the old body that did. Pure.

    ``quick``: whether the rows are of a quick run; that says nothing of a full one, nor one of it.
    """
    meta = old["meta"].get("parts", {}).get(part, {}) if part else old["meta"]
    then = {row["name"]: row for row in old["rows"] if row.get("part", "") == part}
    told = []
    for row in rows:
        before = then.get(row.name, {})
        if bool(meta.get("quick")) != quick:
            before = {"met_at": before.get("met_at", "")}
        at = meta.get("revision", "") if before.get("ok") else before.get("met_at", "")
        told.append(replace(row, met_at=at) if row.ok is False else row)
    return told


def merged(old: Mapping[str, Any], new: Mapping[str, Any], part: str, order: Sequence[str]) -> Body:
    """The old body with the rows of one part replaced by the new one's. Pure.

    Rows of parts that are not in ``order`` (there are none of that name any more) go.
    """
    told = dict(new["meta"])
    name = told.pop("bench")
    taken = dict(old["meta"].get("parts", {})) | {part: told}
    kept = [row for row in old["rows"] if row.get("part") != part]
    rows = [row for one in order for row in (*kept, *new["rows"]) if row.get("part") == one]
    parts = {one: taken[one] for one in order if one in taken}
    return {"meta": {"bench": name, "parts": parts}, "rows": rows}


def markdown(body: Body) -> str:
    """The rows of a results file as a table for documentation. Pure."""
    sign = {"lower": "≤", "higher": "≥", "equal": "="}
    lines = ["| what | asked | measured | met | from |", "|---|---|---|---|---|"]
    for row in body["rows"]:
        unit = f" {row['unit']}" if row["unit"] else ""
        asked = "" if row["asked"] is None else f"{sign[row['better']]} {row['asked']:g}{unit}"
        got = f"{row['got']:.3g}{unit}"
        met = _verdict(row["ok"], row.get("met_at", ""), yes="yes", no="**no**")
        lines.append(f"| {row['name']} | {asked} | {got} | {met} | {row['note']} |")
    taken = body["meta"].get("parts", {"all": body["meta"]})
    for name, part in taken.items():
        quick = ", quick" if part["quick"] else ""
        share = part.get("stolen_percent")
        stolen = f", {share:g} % of them stolen by the hypervisor" if share else ""
        lines.append(
            f"{name}: {part['date'][:10]}, revision {part['revision']}, Linux {part['kernel']}, "
            f"{part['cores']} cores{stolen}{quick}."
        )
    at = len(lines) - len(taken)
    return "\n".join([*lines[:at], "", *lines[at:]]) + "\n"


def _verdict(ok: bool | None, met_at: str, *, yes: str, no: str) -> str:
    if ok is None:
        return ""
    return yes if ok else no + (f", was at {met_at}" if met_at else "")


def _plain(row: Row) -> Body:
    plain: Body = asdict(row) | {"ratio": row.ratio, "ok": row.ok}
    plain["samples"] = {
        name: [float(f"{value:.4g}") for value in values] for name, values in row.samples.items()
    }
    return {key: value for key, value in plain.items() if key not in _OPTIONAL or value}


def show(name: str, rows: list[Row], *, quick: bool) -> bool:
    """Print the table; whether every row is ok."""
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
            _verdict(row.ok, row.met_at, yes="[green]yes", no="[bold red]NO"),
            row.note,
        )
    Console(width=None if os.isatty(1) else 150).print(table)
    return all(row.ok is not False for row in rows)
