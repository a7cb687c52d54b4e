"""What the clock service leaves beside its page for who looks at it. Without NumPy."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from clocksync.page.clock_page import ClockError, ClockReader, State
from clocksync.page.tai_page import TaiReader
from telemetry.snapshot import ClockSnapshot, PtpSnapshot, TaiSnapshot

NAME = "clock.json"
MOST_BYTES = 4 << 20
MOST = 1e300
FRESH_S = 5.0
"""It is written once a second."""
_NUMBERS = ("residual_ns", "slope", "neighbours", "lost", "joins")
_LATER = ("skew", "offset_ns", "root_delay_ns")
"""May be absent: a service of an older version does not say them."""
_PATH_NUMBERS = (
    "offset_ns", "slope", "half_rtt_ns", "spread_ns", "surplus_ns", "out_ns", "back_ns",
    "way_bound_ns", "at_ns", "way_skew_ns", "source_port", "moves",
)  # fmt: skip
GUILTY = ("named", "moved", "gave up")
"""Of `clocksync.mesh.ecmp_rerouter.PathState`, which takes what the daemon does without."""


def read(run_dir: Path) -> dict[str, Any]:
    """The document.

    Raises:
        OSError: there is none.
        ValueError: it is not one of a clock service.
    """
    path = run_dir / NAME
    with path.open("rb") as file:
        try:
            document = json.loads(file.read(MOST_BYTES))
        except RecursionError:
            raise ValueError(f"{path}: nested without end") from None
    if not isinstance(document, dict) or not isinstance(document.get("paths"), list):
        raise ValueError(f"{path}: not of a clock service")
    for row in document["paths"]:
        if not isinstance(row, dict):
            raise ValueError(f"{path}: a path that is none")
        if any(not _known(row.get(name)) for name in _PATH_NUMBERS):
            raise ValueError(f"{path}: a path's figure that is no number")
    for name in _NUMBERS:
        value = document.get(name)
        if value is None or not _known(value):
            raise ValueError(f"{path}: {name} is no number")
    for name in _LATER:
        if not _known(document.get(name)):
            raise ValueError(f"{path}: {name} is no number")
    if "refused_words" in document:  # the only name of it in a service of the release before
        document.setdefault("refused_messages", document["refused_words"])
    return document


def snapshot(run_dir: Path) -> ClockSnapshot:
    """For the metrics; of a service that does not run, or whose files make no sense: not up."""
    try:
        age = time.time() - (run_dir / NAME).stat().st_mtime
        document = read(run_dir)
    except (OSError, ValueError):
        return ClockSnapshot()
    state, bound_s = State.UNSYNCED, None
    try:
        with ClockReader(run_dir) as reader:
            now = reader.now()
        state, bound_s = now.state, now.bound_ns / 1e9
    except ClockError:
        pass
    return ClockSnapshot(
        up=age < FRESH_S, state=int(state), bound_s=bound_s,
        is_reference=bool(document.get("is_reference")),
        reference=f"{whose:08x}" if (whose := _count(document, "reference")) else "",
        residual_s=document["residual_ns"] / 1e9, frequency=float(document["slope"]),
        offset_s=_seconds(document.get("offset_ns")), skew=document.get("skew"),
        root_delay_s=_seconds(document.get("root_delay_ns")),
        paths=int(document["neighbours"]), references_lost=int(document["lost"]),
        joins=int(document["joins"]), takeovers=_count(document, "takeovers"),
        refused_messages=_count(document, "refused_messages"),
        tai=_tai(run_dir, document.get("tai")), ptp=_ptp(document.get("ptp")),
        moves=_count(document, "moves"), **_paths(document["paths"]),
    )  # fmt: skip


def _tai(run_dir: Path, said: object) -> TaiSnapshot:
    steps = _count(said, "steps")
    try:
        with TaiReader(run_dir) as reader:
            now = reader.now()
    except ClockError:
        return TaiSnapshot(state=int(State.UNSYNCED), steps=steps)
    source = now.source
    return TaiSnapshot(
        int(now.state), now.bound_ns / 1e9, source.utc_offset_s, source.traceable,
        source.steps_removed, source.clock_class, steps,
    )  # fmt: skip


def _ptp(said: object) -> PtpSnapshot | None:
    if not isinstance(said, dict):
        return None
    listed = said.get("masters")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    refused = said.get("refused")
    return PtpSnapshot(
        tracking=said.get("tracking") is True,
        masters=sum(row.get("alive") is True for row in rows),
        root_delay_s=_seconds(said.get("root_delay_ns")),
        root_dispersion_s=_seconds(said.get("root_dispersion_ns")),
        changes=_count(said, "changes"), lost=sum(_count(row, "lost") for row in rows),
        steps=sum(_count(row, "steps") for row in rows),
        denied=sum(_count(row, "denied") for row in rows),
        refused=sum(_count(refused, why) for why in refused) if isinstance(refused, dict) else 0,
    )  # fmt: skip


def _count(table: object, name: str) -> int:
    value = table.get(name) if isinstance(table, dict) else None
    return value if isinstance(value, int) and abs(value) < 2**63 else 0


def _seconds(ns: object) -> float | None:
    return ns / 1e9 if isinstance(ns, int | float) and _known(ns) else None


def _known(value: Any) -> bool:  # noqa: ANN401 - anything that JSON has
    """Whether it is a finite number, or left open."""
    if value is None:
        return True
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= MOST  # an integer of JSON may be more than a float can say


def _paths(rows: list[dict[str, Any]]) -> dict[str, Any]:
    surpluses = [abs(row["surplus_ns"]) for row in rows if row.get("surplus_ns") is not None]
    ways = {"tx": "out_ns", "rx": "back_ns"}
    delays = {
        way: [row[name] / 1e9 for row in rows if row.get(name) is not None]
        for way, name in ways.items()
    }
    return {
        "asymmetric": sum(row.get("judged") in GUILTY for row in rows),
        "surplus_s": max(surpluses) / 1e9 if surpluses else None,
        "way_min_s": {way: min(each) for way, each in delays.items() if each},
        "way_median_s": {way: median(each) for way, each in delays.items() if each},
    }
