"""Part *simulator*: 500 seeded stories of 2,048 links, on the daemon's own detectors."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence

import numpy as np

from bench.detect import fleet
from bench.detect.scenario import Kind
from bench.detect.score import Result, judge
from bench.report import Row

SEEDS = 500
FIRST = 1_000_050
"""Of the seeds that are reported. Those below 100,000 are for trying things out."""


def play(first: int, count: int) -> list[Result]:
    """Results of so many seeds, in order; all cores."""
    fleet.paths(0)  # computed once, before the processes part
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        return pool.map(judge, range(first, first + count), chunksize=4)


def simulator(*, quick: bool) -> list[Row]:
    """The table."""
    results = play(FIRST, 60 if quick else SEEDS)
    print(table(results), file=sys.stderr)
    return rows(results)


def rows(results: Sequence[Result]) -> list[Row]:
    """What is asked, and what explains it."""
    right, wrong = sum(r.right for r in results), sum(len(r.wrong) for r in results)
    found, missed = sum(r.found for r in results), sum(len(r.missed) for r in results)
    mesh = [r.mesh for r in results if r.mesh]
    local = [verdict for r in results for verdict in r.local]
    count = f"{len(results)} scenarios"
    out = [
        Row("precision", 99, _share(right, right + wrong), "%", "higher",
            note=f"{count}; {right} right and {wrong} wrong verdicts on links and paths"),
        Row("recall", 99, _share(found, found + missed), "%", "higher",
            note=f"{found} found, {missed} missed"),
        Row("localization, several hosts together", 97, _share(mesh.count("right"), len(mesh)),
            "%", "higher", note=f"{_told(mesh)}; as a collector sees it, not a host alone"),
        Row("localization, one host alone", None, _share(local.count("right"), len(local)),
            "%", "higher", note=_told(local)),
        Row("false link verdicts without a link fault", None, _false(results), "per 1,000 link-h",
            note=f"{_calm_hours(results):.0f} link-hours of busy and dead hosts, congestion"),
        Row("published transitions of a host's links", 3, max(r.published for r in results), "",
            note="the most in one scenario (up to 75 s)"),
    ]  # fmt: skip
    for name, low, high, asked in (("0.1-0.3 %", 1e-3, 3e-3, 30), ("0.3-1 %", 3e-3, 1e-2, None),
                                   ("1-20 %", 1e-2, 1.0, 3)):  # fmt: skip
        of = [r for r in results if r.kind is Kind.GRAY and low <= r.loss < high]
        took = [t for r in of for t in r.latency]
        if took:
            out.append(_latency(f"gray loss {name}: found after", took, asked, len(of)))
    for kind in (Kind.DARK_NIC, Kind.CUT):
        took = [t for r in results if r.kind is kind for t in r.latency]
        if took:
            out.append(_latency(f"{kind}: found after", took, None, len(took)))
    return out


def _latency(name: str, took: Sequence[float], asked: float | None, count: int) -> Row:
    p50, p95 = np.percentile(took, [50, 95])
    note = f"the latest of {count}; median {p50:.3g} s, p95 {p95:.3g} s"
    return Row(name, asked, round(max(took), 3), "s", note=note)


def _share(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 100.0


def _told(verdicts: Sequence[str]) -> str:
    counts = {word: verdicts.count(word) for word in ("right", "unknown", "wrong")}
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _calm(results: Iterable[Result]) -> list[Result]:
    about = (Kind.QUIET, Kind.STALLS, Kind.HOST, Kind.RESTART, Kind.CONGESTION, Kind.REORDER)
    return [r for r in results if r.kind in about]


def _calm_hours(results: Iterable[Result]) -> float:
    return sum(r.link_seconds for r in _calm(results)) / 3600


def _false(results: Sequence[Result]) -> float:
    wrong = sum(" link " in text for r in _calm(results) for text in r.wrong)
    return 1000 * wrong / max(1e-9, _calm_hours(results))


def table(results: Sequence[Result]) -> str:
    """By kind, as Markdown, and every error in words."""
    lines = [
        "| kind | n | verdicts right | wrong | found | missed | p50 s | p95 s | placed (one host) "
        "| placed (together) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in Kind:
        of = [r for r in results if r.kind is kind]
        took = [t for r in of for t in r.latency]
        p50, p95 = np.percentile(took, [50, 95]) if took else (np.nan, np.nan)
        local = [v for r in of for v in r.local]
        mesh = [r.mesh for r in of if r.mesh]
        lines.append(
            f"| {kind} | {len(of)} | {sum(r.right for r in of)} | {sum(len(r.wrong) for r in of)} "
            f"| {sum(r.found for r in of)} | {sum(len(r.missed) for r in of)} "
            f"| {p50:.3g} | {p95:.3g} | {_told(local) if local else ''} "
            f"| {_told(mesh) if mesh else ''} |".replace("nan", "")
        )
    errors = [text for r in results for text in (*r.wrong, *r.missed, *r.said)]
    return "\n".join([*lines, "", *errors])
