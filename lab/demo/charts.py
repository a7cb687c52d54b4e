"""The report's charts as SVG text: hand-made, so that the report needs no script and no network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

import numpy as np

from lab.demo.analysis import Analysis
from lab.demo.record import Floats, Ints, Rail, Recording
from telemetry.events import EventKind, LinkState

WIDTH = 1080
LEFT = 58
RIGHT = 14
STATE_CLASS = {
    LinkState.UNKNOWN: "s-unknown",
    LinkState.UP: "s-up",
    LinkState.SUSPECT: "s-suspect",
    LinkState.DOWN: "s-down",
    LinkState.HOLD: "s-hold",
    LinkState.PROBATION: "s-probation",
    LinkState.DEGRADED: "s-degraded",
    LinkState.ADMIN: "s-admin",
}


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps seconds since the start to x and a value to y."""

    seconds: float
    top: float
    height: float
    width: float = WIDTH
    left: float = LEFT
    right: float = RIGHT
    above: float = 22

    def x(self, at_s: float) -> float:
        """Pixel of a time."""
        inner = self.width - self.left - self.right
        return self.left + inner * min(1.0, max(0.0, at_s / self.seconds))

    def y(self, value: float) -> float:
        """Pixel of a value."""
        return self.above + self.height * (1 - min(1.0, max(0.0, value / self.top)))


def throughput_chart(recording: Recording, analysis: Analysis) -> str:
    """Throughput of the job with the faults as numbered bands and the survivors' capacity."""
    flow = analysis.throughput
    gbit = flow.total * 8 / 1e9
    full = analysis.speed.full * 8 / 1e9
    top = _nice(max(float(np.percentile(gbit, 99)) if len(gbit) else 1.0, full) * 1.12)
    seconds = _seconds(recording, flow.edges_ns)
    axis = Axis(seconds, top, 260)
    out = [_open(axis.above + axis.height + 34)]
    for number, result in enumerate(analysis.results, 1):
        span = result.span
        x0 = axis.x(_at(recording, span.start_ns))
        x1 = axis.x(_at(recording, span.end_ns))
        tip = f"{number}. {span.title}: {', '.join(f'{h} {r}' for h, r in span.rails)}"
        out.append(
            f'<g><title>{escape(tip)}</title><rect class="fault" x="{x0:.1f}" y="{axis.above}"'
            f' width="{max(1.5, x1 - x0):.1f}" height="{axis.height}"/>'
            f'<circle class="badge" cx="{(x0 + x1) / 2:.1f}" cy="11" r="9"/>'
            f'<text class="badge-text" x="{(x0 + x1) / 2:.1f}" y="15">{number}</text></g>'
        )
    out += _grid_y(axis, top, " Gbit/s")
    out += _grid_x(axis)
    points = _points(axis, recording, flow.edges_ns, gbit)
    base = axis.y(0)
    if points:
        area = f"M{points[0][0]:.1f},{base:.1f} " + _line(points) + f" L{points[-1][0]:.1f},{base}Z"
        out.append(f'<path class="area" d="{area}"/>')
        out.append(f'<path class="flow" d="M{_line(points)[1:]}"/>')
    out.append(f'<path class="capacity" d="{_capacity(recording, analysis, axis, full)}"/>')
    out.append("</svg>")
    return "".join(out)


def rail_charts(recording: Recording, analysis: Analysis, rail_bps: float) -> list[list[str]]:
    """One small chart per (host, rail), rows by host: where the traffic went."""
    flow = analysis.throughput
    seconds = _seconds(recording, flow.edges_ns)
    axis = Axis(seconds, rail_bps, 44, width=262, left=2, right=2, above=3)
    rows = []
    for host in recording.hosts:
        row = []
        for rail in recording.rails:
            key: Rail = (host, rail)
            out = [_open(50, 262)]
            for result in analysis.results:
                if key in result.span.rails:
                    x0 = axis.x(_at(recording, result.span.start_ns))
                    x1 = axis.x(_at(recording, result.span.end_ns))
                    out.append(
                        f'<rect class="fault" x="{x0:.1f}" y="{axis.above}"'
                        f' width="{max(1.5, x1 - x0):.1f}" height="{axis.height}"/>'
                    )
            values = flow.sent.get(key)
            if values is not None and len(values):
                points = _points(axis, recording, flow.edges_ns, values)
                base = axis.y(0)
                out.append(
                    f'<path class="area" d="M{points[0][0]:.1f},{base:.1f} {_line(points)}'
                    f' L{points[-1][0]:.1f},{base}Z"/>'
                )
                out.append(f'<path class="flow thin" d="M{_line(points)[1:]}"/>')
            out.append("</svg>")
            row.append("".join(out))
        rows.append(row)
    return rows


def state_chart(recording: Recording, analysis: Analysis) -> str:
    """A lane per link, coloured by the state that its daemon published."""
    seconds = _seconds(recording, analysis.throughput.edges_ns)
    lanes = [(host, rail) for host in recording.hosts for rail in recording.rails]
    lane = 15
    axis = Axis(seconds, 1.0, lane * len(lanes), left=86, above=4)
    out = [_open(axis.above + axis.height + 30)]
    for number, key in enumerate(lanes):
        y = axis.above + number * lane
        group = " first" if key[1] == recording.rails[0] else ""
        out.append(
            f'<text class="lane{group}" x="80" y="{y + 11}">'
            f"{escape(key[0])} {escape(key[1])}</text>"
        )
        for start_s, end_s, state, reason in link_spans(recording, key, seconds):
            x0, x1 = axis.x(start_s), axis.x(end_s)
            tip = f"{key[0]} {key[1]}: {state.name.lower()} {start_s:.2f}–{end_s:.2f} s {reason}"
            out.append(
                f'<rect class="{STATE_CLASS[state]}" x="{x0:.1f}" y="{y + 2}"'
                f' width="{max(1.0, x1 - x0):.1f}" height="{lane - 4}">'
                f"<title>{escape(tip)}</title></rect>"
            )
    out += _grid_x(axis)
    out.append("</svg>")
    return "".join(out)


def link_spans(
    recording: Recording, key: Rail, seconds: float
) -> list[tuple[float, float, LinkState, str]]:
    """(from, to, state, reason) of a link over the run, seconds since the start."""
    changes = [
        (_at(recording, event.mono_ns), event)
        for event in recording.events
        if event.kind is EventKind.LINK_STATE and (event.host, event.link) == key
    ]
    changes.sort(key=lambda change: change[0])
    state, reason, since = LinkState.UNKNOWN, "", 0.0
    spans = []
    for at_s, event in changes:
        if at_s > 0:
            if state is LinkState.UNKNOWN and event.from_state is not None:
                state = event.from_state
            if at_s > since:
                spans.append((since, min(at_s, seconds), state, reason))
            since = at_s
        state, reason = event.to_state or LinkState.UNKNOWN, event.reason
        if at_s >= seconds:
            return spans
    spans.append((since, seconds, state, reason))
    return spans


def _capacity(recording: Recording, analysis: Analysis, axis: Axis, full: float) -> str:
    """What the surviving rails can carry, as a step line."""
    steps = [(0.0, full)]
    for result in analysis.results:
        steps.append((_at(recording, result.span.start_ns), full * result.share))
        if result.back_s is not None:
            steps.append((_at(recording, result.span.end_ns) + result.back_s, full))
    path = [f"M{axis.x(0):.1f},{axis.y(full):.1f}"]
    for at_s, value in steps[1:]:
        path.append(f"H{axis.x(at_s):.1f}V{axis.y(value):.1f}")
    path.append(f"H{axis.x(axis.seconds):.1f}")
    return "".join(path)


def _points(
    axis: Axis, recording: Recording, edges_ns: Ints, values: Floats
) -> list[tuple[float, float]]:
    middles = (edges_ns[:-1] + edges_ns[1:]) / 2
    return [
        (axis.x((float(t) - recording.start_ns) / 1e9), axis.y(float(v)))
        for t, v in zip(middles, values, strict=True)
    ]


def _line(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"L{x:.1f},{y:.1f}" for x, y in points)


def _grid_y(axis: Axis, top: float, unit: str) -> list[str]:
    out = []
    for step in range(5):
        value = top * step / 4
        y = axis.y(value)
        out.append(
            f'<line class="grid" x1="{axis.left}" x2="{axis.width - axis.right}"'
            f' y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick y" x="{axis.left - 6}" y="{y + 4:.1f}">{value:g}</text>'
        )
    out.append(
        f'<text class="tick y" x="{axis.left - 6}" y="{axis.above - 8}">'
        f"{escape(unit.strip())}</text>"
    )
    return out


def _grid_x(axis: Axis) -> list[str]:
    out = []
    step = 5 if axis.seconds <= 90 else 30
    bottom = axis.above + axis.height
    for at_s in range(0, int(axis.seconds) + 1, step):
        x = axis.x(at_s)
        out.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{axis.above}" y2="{bottom}"/>'
            f'<text class="tick x" x="{x:.1f}" y="{bottom + 16}">{at_s} s</text>'
        )
    return out


def _open(height: float, width: float = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" xmlns="http://www.w3.org/2000/svg">'


def _at(recording: Recording, t_ns: int) -> float:
    return (t_ns - recording.start_ns) / 1e9


def _seconds(recording: Recording, edges_ns: Ints) -> float:
    return max(1.0, _at(recording, int(edges_ns[-1])))


def _nice(value: float) -> float:
    """The least of 1, 2, 4, 6, 8 × 10^k that is not below ``value``."""
    power = 10.0 ** np.floor(np.log10(max(value, 1e-9)))
    return float(next((m * power for m in (1, 2, 4, 6, 8) if m * power >= value), 10 * power))
