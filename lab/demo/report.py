"""The report: rows of text for the terminal, and one self-contained HTML file."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lab.demo import charts, verdict
from lab.demo.analysis import (
    BACK_LEVEL,
    DIP_LEVEL,
    HOLD_S,
    REJOIN_SHARE,
    SETTLE_S,
    Analysis,
    Crossing,
    FaultResult,
)
from lab.demo.live import describe, is_suspicion
from lab.demo.record import Rail, RankEnd, Recording
from lab.demo.speed import BIN_S
from telemetry.events import Event, EventKind

DEFINITIONS = (
    ("detected", "from injection to the first word of it: carrier loss or state DOWN on that host's"
     " timeline, or a plugin giving the path up; with two NICs the later one; at most"
     f" {verdict.DETECT_WITHIN_S:g} s, and the timeline says DOWN within"
     f" {verdict.TOLD_WITHIN_S:g} s"),
    ("steered", "from injection until every communicator that gave a path up carried payload on a"
     f" survivor; at most {verdict.STEER_WITHIN_S:g} s"),
    ("dip", f"time below {DIP_LEVEL:.0%} of what the surviving paths can carry, in bins of"
     f" {BIN_S * 1000:.0f} ms, until the job is back at full speed"),
    ("surviving paths", "a ring is as fast as its slowest host: (n − d) / n of full speed when the"
     " worst-hit host has lost d of its n rails"),
    ("carried", f"median throughput from {SETTLE_S:g} s after injection to the fault's end, as a"
     f" part of what the surviving paths can carry; at least {verdict.CARRIED_LEVEL:.0%}, less"
     f" {verdict.TAKEN_COSTS:g} points for each point of the CPU that other processes took then"),
    ("rail back", f"from the fault's end until each of its rails carries {REJOIN_SHARE:.0%} of its"
     " fair share of what its host sends and of what it receives; at most the hold-down, or the"
     " damping's suppress time, and 1 s"),
    ("full speed", "from the fault's end until the rails are back and throughput stays at"
     f" {BACK_LEVEL:.0%} of full speed for {HOLD_S:g} s; – where no half second before the next"
     " fault was that fast. It takes one slow half second to miss it, so 'after' decides"),
    ("after", "median throughput from the moment when the rails have to be back to the next fault,"
     f" as a part of full speed; at least {verdict.AFTER_LEVEL:.0%}, less as above"),
    ("(n%)", "not judged: other processes took so much of the CPU that nothing is left to demand;"
     " the exit status goes by the other figures, which no load excuses"),
    ("of full speed", "of the best undisturbed stretch of this run"),
    ("resent", "payload that the plugins sent again after a fence"),
    ("flaps", "carrier losses on the timeline, of those injected"),
    ("verdict", "every figure with a bound was measured and is within it; the exit status is that"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the fault table as text."""

    title: str
    where: str
    injected: str
    detected: str
    by: str
    steered: str
    dip: str
    carried: str
    rejoined: str
    back: str
    after: str
    resent: str
    flaps: str
    bad: frozenset[str]
    """Columns whose figure is not within its bound."""


def row(recording: Recording, result: FaultResult) -> Row:
    """The texts of one fault."""
    span = result.span
    seen = sum(result.flaps_seen.values())
    wrong = {
        "detected": verdict.late(result.detected_s, verdict.DETECT_WITHIN_S)
        or verdict.late(result.told_s, verdict.TOLD_WITHIN_S),
        "steered": verdict.late(result.steered_s, verdict.STEER_WITHIN_S),
        "carried": verdict.low(result.carried, _levels(result)[0]),
        "rejoined": verdict.late(result.rejoined_s, span.returns_within_s),
        "after": verdict.low(result.after, _levels(result)[1]),
        "flaps": None if result.flaps_exact else "",
    }
    return Row(
        title=span.title,
        where=", ".join(rail_name(rail) for rail in span.rails),
        injected=f"{(span.start_ns - recording.start_ns) / 1e9:.1f} s",
        detected=_ms(result.detected_s),
        by=result.detected_by,
        steered=_ms(result.steered_s),
        dip=f"{result.dip_s:.1f} s",
        carried=_part(result.carried, _levels(result)[0]),
        rejoined=_seconds(result.rejoined_s),
        back="–" if result.back_s is None else _seconds(result.back_s),
        after=_part(result.after, _levels(result)[1]),
        resent=_bytes(result.retransmitted_bytes),
        flaps=f"{seen} of {span.flaps * len(span.rails)}",
        bad=frozenset(name for name, text in wrong.items() if text is not None),
    )


def rail_name(rail: Rail) -> str:
    """``h1 rail2``."""
    return " ".join(rail)


def notes(analysis: Analysis) -> list[str]:
    """Lines below the table: what a fault is there to show, and why a figure is not judged."""
    lines = []
    for number, result in enumerate(analysis.results, 1):
        if result.crossing is not None:
            lines.append(f"fault {number}: {_crossing(result.crossing)}")
        unjudged = [
            f"{name} (others took {taken:.0%} of the CPU)"
            for name, taken, level in zip(
                ("carried", "after"),
                (result.taken, result.taken_after),
                _levels(result),
                strict=True,
            )
            if not level
        ]
        if unjudged:
            lines.append(f"fault {number}: not judged, {', '.join(unjudged)}; all else is")
    return lines


def _crossing(found: Crossing) -> str:
    (host, sending), (neighbour, receiving) = found.source, found.target
    return (
        f"from {host} to {neighbour} {receiving} and {sending} have no path of their own left,"
        f" only {host} {sending} → spines → {neighbour} {receiving}; it carried"
        f" {_bytes(found.bytes)}, {found.part:.0%} of what {neighbour} received"
    )


def errors_line(analysis: Analysis) -> str:
    """``0 errors, 0 corrupt bytes``, as measured."""
    return f"{analysis.errors} errors, {analysis.corrupt_bytes} corrupt bytes"


MERGE_NS = 2 * 10**9
"""Carrier losses of a link no further apart than this are one line of the merged timeline."""


def merged(events: list[Event]) -> list[Event]:
    """The timeline as short as it can be without hiding a failure.

    Runs of FLAP rows of one link become one row with their sum; suspicions that came to nothing
    (they move no traffic), single paths and the prober's own rows are left out.
    """
    out: list[Event] = []
    open_runs: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], int] = {}
    for event in sorted(events, key=lambda event: event.mono_ns):
        if event.kind is EventKind.PROBER or event.peer or is_suspicion(event):
            continue
        key = (event.host, event.link)
        at = open_runs.get(key)
        if event.kind is EventKind.FLAP:
            if at is not None and event.mono_ns - last[key] <= MERGE_NS:
                out[at] = replace(out[at], count=out[at].count + event.count)
            else:
                open_runs[key] = len(out)
                out.append(event)
            last[key] = event.mono_ns
        else:
            out.append(event)
    return out


GOODPUT = 0.95
"""Of a shaped link: what Ethernet, IP and TCP headers leave for payload, about."""
CPU_BOUND = 0.8
TAKEN = 0.05


def machine(recording: Recording, analysis: Analysis, rail_bps: float) -> str:
    """How much of the links and of the CPU the job had: what the speeds are parts of.

    Args:
        recording: of the run.
        analysis: of that recording.
        rail_bps: what a rail can carry, byte/s.
    """
    speed = analysis.speed
    links = rail_bps * GOODPUT * len(recording.hosts) * len(recording.rails)
    part = speed.full / links if links else 0.0
    taken = float(speed.taken.mean()) if len(speed.taken) else 0.0
    text = (
        f"Full speed {speed.full * 8 / 1e9:.2f} Gbit/s, {part:.0%} of what the links can carry;"
        f" other processes took {taken:.0%} of the CPU"
    )
    if part < CPU_BOUND:
        text += ". The CPU is the limit, not the links: try a lower --rate"
    elif taken > TAKEN:
        text += ": dips and speeds are theirs, too"
    return text


def timeline(recording: Recording, events: list[Event] | None = None) -> list[dict[str, str]]:
    """Rows of the run that say something about a link, in order of time; default: all of them."""
    rows = []
    chosen = recording.events if events is None else events
    for event in sorted(chosen, key=lambda event: event.mono_ns):
        at_s = (event.mono_ns - recording.start_ns) / 1e9
        text = describe(event)
        if at_s < 0 or text is None or event.kind in (EventKind.DAEMON, EventKind.MODE):
            continue
        rows.append(
            {
                "at": f"{at_s:.3f} s",
                "host": event.host,
                "link": event.link,
                "kind": event.kind.value,
                "text": text[1].split("  ", 1)[-1],
            }
        )
    return rows


def html(recording: Recording, analysis: Analysis, *, rail_bps: float, version: str) -> str:
    """The whole report.

    Args:
        recording: of the run.
        analysis: of that recording.
        rail_bps: what a rail can carry, byte/s.
        version: of fabricd.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    flow = analysis.throughput
    seconds = max(0.0, (int(flow.edges_ns[-1]) - recording.start_ns) / 1e9)
    return environment.get_template("report.html.j2").render(
        hosts=recording.hosts,
        rails=recording.rails,
        rate=f"{rail_bps * 8 / 1e6:.0f} Mbit/s",
        seconds=seconds,
        when=datetime.fromtimestamp(recording.start_wall_ns / 1e9, UTC).strftime(
            "%Y-%m-%d %H:%M:%S UTC"
        ),
        version=version,
        ok=verdict.ok(analysis),
        verdict=verdict.sentence(analysis),
        errors_line=errors_line(analysis),
        machine=machine(recording, analysis, rail_bps),
        notes=notes(analysis),
        facts=_facts(analysis),
        throughput=charts.throughput_chart(recording, analysis),
        states=charts.state_chart(recording, analysis),
        rail_charts=charts.rail_charts(recording, analysis, rail_bps),
        results=analysis.results,
        table=[row(recording, result) for result in analysis.results],
        short=timeline(recording, merged(recording.events)),
        events=timeline(recording),
        ranks=[_rank(end) for end in recording.ends],
        definitions=DEFINITIONS,
    )


def document(recording: Recording, analysis: Analysis) -> dict[str, Any]:
    """The results as JSON, beside the report."""
    return {
        "ok": verdict.ok(analysis),
        "verdict": verdict.sentence(analysis),
        "errors": analysis.errors,
        "corrupt_bytes": analysis.corrupt_bytes,
        "full_speed_gbps": analysis.speed.full * 8 / 1e9,
        "faults": [
            {
                "title": r.span.title,
                "kind": r.span.kind,
                "rails": [f"{host}:{rail}" for host, rail in r.span.rails],
                "injected_s": (r.span.start_ns - recording.start_ns) / 1e9,
                "lasted_s": (r.span.end_ns - r.span.start_ns) / 1e9,
                "detected_s": r.detected_s,
                "detected_by": r.detected_by,
                "told_s": r.told_s,
                "steered_s": r.steered_s,
                "dip_s": r.dip_s,
                "carried": r.carried,
                "rejoined_s": r.rejoined_s,
                "back_s": r.back_s,
                "after": r.after,
                "cpu_taken": r.taken,
                "cpu_taken_after": r.taken_after,
                "crossing": None
                if r.crossing is None
                else {
                    "source": ":".join(r.crossing.source),
                    "target": ":".join(r.crossing.target),
                    "bytes": r.crossing.bytes,
                    "part": r.crossing.part,
                },
                "retransmitted_bytes": r.retransmitted_bytes,
                "flaps_injected": r.span.flaps * len(r.span.rails),
                "flaps_seen": sum(r.flaps_seen.values()),
            }
            for r in analysis.results
        ],
    }


def write(
    directory: Path, recording: Recording, analysis: Analysis, *, rail_bps: float, version: str
) -> Path:
    """Write ``report.html`` and ``result.json``; the path of the report."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document(recording, analysis), indent=1, ensure_ascii=False)
    (directory / "result.json").write_text(text + "\n")
    path = directory / "report.html"
    path.write_text(html(recording, analysis, rail_bps=rail_bps, version=version))
    return path


def _facts(analysis: Analysis) -> list[dict[str, str]]:
    results = analysis.results
    detected = [r.detected_s for r in results if r.detected_s is not None]
    steered = [r.steered_s for r in results if r.steered_s is not None]
    carried = [r.carried for r in results if r.carried is not None]
    after = [r.after for r in results if r.after is not None]
    resent = sum(r.retransmitted_bytes for r in results)
    return [
        {
            "name": "full speed",
            "value": f"{analysis.speed.full * 8 / 1e9:.2f} Gbit/s",
            "note": "best undisturbed stretch",
        },
        {
            "name": "slowest detection",
            "value": _ms(max(detected, default=None)),
            "note": "first word of the fault",
        },
        {
            "name": "slowest steering",
            "value": _ms(max(steered, default=None)),
            "note": "until the last communicator moved",
        },
        {
            "name": "carried at least",
            "value": _part(min(carried, default=None)),
            "note": "of what the survivors can",
        },
        {
            "name": "afterwards at least",
            "value": _part(min(after, default=None)),
            "note": "of full speed",
        },
        {"name": "sent again", "value": _bytes(resent), "note": "by all ranks together"},
    ]


def how_it_ended(end: RankEnd) -> str:
    """Of a rank that did not end clean."""
    if end.status is None:
        how = "did not end"
    elif end.status < 0:
        how = f"ended by signal {-end.status}"
    else:
        how = f"exit status {end.status}"
    if end.error is not None:
        return f"{how}: {end.error.get('text') or end.error.get('code')}"
    if end.end is not None:
        return (
            f"{how}, {end.end.get('errors')} errors, {end.end.get('corrupt_bytes')} corrupt bytes"
        )
    return f"{how}, without a word"


def _rank(end: RankEnd) -> dict[str, str]:
    got = end.end or {}
    return {
        "host": end.host,
        "status": str(end.status),
        "iterations": str(got.get("iterations", "–")),
        "payload": _bytes(int(got["bytes"])) if "bytes" in got else "–",
        "busbw": f"{got['busbw_gbps']:.2f} Gbit/s" if "busbw_gbps" in got else "–",
        "errors": str(got.get("errors", "–")),
        "corrupt": str(got.get("corrupt_bytes", "–")),
    }


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"


def _levels(result: FaultResult) -> tuple[float, float]:
    """What is demanded of ``carried`` and of ``after``."""
    return (
        verdict.demanded(verdict.CARRIED_LEVEL, result.taken),
        verdict.demanded(verdict.AFTER_LEVEL, result.taken_after),
    )


def _part(part: float | None, level: float = 1.0) -> str:
    """In parentheses: not judged."""
    if part is None:
        return "–"
    return f"{part:.0%}" if level else f"({part:.0%})"


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
