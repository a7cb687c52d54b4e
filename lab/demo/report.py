"""The report: rows of text for the terminal, and one self-contained HTML file."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lab.demo import charts
from lab.demo.analysis import (
    BACK_HOLD_S,
    BACK_LEVEL,
    BIN_S,
    DIP_LEVEL,
    MAX_NOISE,
    REJOIN_SHARE,
    SETTLE_S,
    Analysis,
    FaultResult,
)
from lab.demo.live import describe, is_suspicion
from lab.demo.record import RankEnd, Recording
from telemetry.events import Event, EventKind

DEFINITIONS = (
    ("detected", "from injection to the first word of it: carrier loss or state DOWN on that host's"
     " timeline, or a plugin giving the path up; with two NICs the later one"),
    ("steered", "from injection until every communicator that gave a path up carried payload on a"
     " survivor"),
    ("dip", f"time below {DIP_LEVEL:.0%} of what the surviving rails can carry, in bins of"
     f" {BIN_S * 1000:.0f} ms, until the job is back at full speed"),
    ("surviving rails", "a ring is as fast as its slowest host: (n − d) / n of full speed when the"
     " worst-hit host has lost d of its n rails"),
    ("carried", f"median throughput from {SETTLE_S:g} s after injection to the fault's end, as a"
     " part of what the surviving rails can carry"),
    ("back to full speed", f"from the fault's end to the first bin from which throughput stays at"
     f" {BACK_LEVEL:.0%} of full speed for {BACK_HOLD_S:g} s; hold-down or damping included"),
    ("rail back", f"from the fault's end until each of its rails carries {REJOIN_SHARE:.0%} of its"
     " fair share of what its host sends; where other load on the machine makes more than"
     f" {MAX_NOISE:.0%} of the bins outside faults low, this alone decides"),
    ("resent", "payload that the plugins sent again after a fence"),
    ("flaps", "carrier losses on the timeline, of those injected"),
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
    back: str
    rejoined: str
    resent: str
    flaps: str
    detected_ok: bool
    steered_ok: bool
    back_ok: bool
    rejoined_ok: bool
    flaps_ok: bool


def row(recording: Recording, result: FaultResult) -> Row:
    """The texts of one fault."""
    seen = sum(result.flaps_seen.values())
    injected = result.span.flaps * len(result.span.rails)
    return Row(
        title=result.span.title,
        where=", ".join(f"{host} {rail}" for host, rail in result.span.rails),
        injected=f"{(result.span.start_ns - recording.start_ns) / 1e9:.1f} s",
        detected=_ms(result.detected_s),
        by=result.detected_by,
        steered=_ms(result.steered_s),
        dip=f"{result.dip_s:.1f} s",
        carried="–" if result.carried is None else f"{result.carried:.0%}",
        back="never" if result.back_s is None else f"{result.back_s:.1f} s",
        rejoined="never" if result.rejoined_s is None else f"{result.rejoined_s:.1f} s",
        resent=_bytes(result.retransmitted_bytes),
        flaps=f"{seen} of {injected}",
        detected_ok=result.detected_s is not None,
        steered_ok=result.steered_s is not None,
        back_ok=result.back_s is not None,
        rejoined_ok=result.rejoined_s is not None,
        flaps_ok=result.flaps_exact,
    )


def errors_line(analysis: Analysis) -> str:
    """``0 errors, 0 corrupt bytes``, as measured."""
    return f"{analysis.errors} errors, {analysis.corrupt_bytes} corrupt bytes"


def verdict(analysis: Analysis) -> str:
    """One sentence, the first thing wrong if anything is."""
    if not analysis.clean:
        return "a rank did not end clean"
    for number, result in enumerate(analysis.results, 1):
        if result.detected_s is None:
            return f"fault {number} was not detected"
        if result.steered_s is None:
            return f"fault {number} was not steered"
        if not result.moved:
            return f"the survivors did not carry the job during fault {number}"
        if result.rejoined_s is None:
            return f"a rail of fault {number} carried nothing like its share again"
        if result.back_s is None and analysis.noise <= MAX_NOISE:
            return f"the job did not come back to full speed after fault {number}"
        if not result.flaps_exact:
            return f"the timeline miscounts the flaps of fault {number}"
    if not analysis.results:
        return "no fault was played"
    good = "every fault detected and steered, every flap counted,"
    if any(result.back_s is None for result in analysis.results):
        return f"{good} every rail back (this machine is too busy to judge the speed)"
    return f"{good} full speed again after each"


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


def caveat(recording: Recording, analysis: Analysis, rail_bps: float) -> str:
    """What to say when the links were not the limit; empty when they were.

    Args:
        recording: of the run.
        analysis: of that recording.
        rail_bps: what a rail can carry, byte/s.
    """
    links = rail_bps * GOODPUT * len(recording.hosts) * len(recording.rails)
    part = analysis.full_speed / links if links else 0.0
    if part >= CPU_BOUND and analysis.noise <= MAX_NOISE:
        return ""
    return (
        f"Read dips and shares with care: full speed was {part:.0%} of what the links can carry,"
        f" and {analysis.noise:.0%} of the time outside faults lies more than {1 - DIP_LEVEL:.0%}"
        " below it."
        " The CPU was busy with something else, or is too small for this rate (--rate)."
    )


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
        ok=analysis.ok,
        verdict=verdict(analysis),
        errors_line=errors_line(analysis),
        caveat=caveat(recording, analysis, rail_bps),
        facts=_facts(analysis),
        throughput=charts.throughput_chart(recording, analysis),
        states=charts.state_chart(recording, analysis),
        rail_charts=charts.rail_charts(recording, analysis, rail_bps),
        results=analysis.results,
        table=[row(recording, result) for result in analysis.results],
        events=timeline(recording),
        ranks=[_rank(end) for end in recording.ends],
        definitions=DEFINITIONS,
    )


def document(recording: Recording, analysis: Analysis) -> dict[str, Any]:
    """The results as JSON, beside the report."""
    return {
        "ok": analysis.ok,
        "verdict": verdict(analysis),
        "errors": analysis.errors,
        "corrupt_bytes": analysis.corrupt_bytes,
        "noise": analysis.noise,
        "full_speed_gbps": analysis.full_speed * 8 / 1e9,
        "faults": [
            {
                "title": r.span.title,
                "kind": r.span.kind,
                "rails": [f"{host}:{rail}" for host, rail in r.span.rails],
                "injected_s": (r.span.start_ns - recording.start_ns) / 1e9,
                "lasted_s": (r.span.end_ns - r.span.start_ns) / 1e9,
                "detected_s": r.detected_s,
                "detected_by": r.detected_by,
                "steered_s": r.steered_s,
                "dip_s": r.dip_s,
                "carried": r.carried,
                "back_s": r.back_s,
                "rejoined_s": r.rejoined_s,
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
    detected = [r.detected_s for r in analysis.results if r.detected_s is not None]
    steered = [r.steered_s for r in analysis.results if r.steered_s is not None]
    carried = [r.carried for r in analysis.results if r.carried is not None]
    lost = sum(r.dip_s for r in analysis.results)
    resent = sum(r.retransmitted_bytes for r in analysis.results)
    return [
        {
            "name": "full speed",
            "value": f"{analysis.full_speed * 8 / 1e9:.2f} Gbit/s",
            "note": "before the first fault",
        },
        {"name": "slowest detection", "value": _ms(max(detected, default=None)), "note": ""},
        {
            "name": "slowest steering",
            "value": _ms(max(steered, default=None)),
            "note": "until the last communicator moved",
        },
        {
            "name": "dips together",
            "value": f"{lost:.1f} s",
            "note": f"{analysis.noise:.0%} of the time outside faults is as low (noise)",
        },
        {
            "name": "carried at least",
            "value": f"{min(carried):.0%}" if carried else "–",
            "note": "of what survivors can",
        },
        {"name": "sent again", "value": _bytes(resent), "note": ""},
    ]


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


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
