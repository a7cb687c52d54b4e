"""The live terminal view (rich). Draws a `Live`; knows nothing of the lab."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lab.demo.live import Live
from telemetry.events import LinkState

HEAD = 5
SAMPLE_S = 0.1
WINDOW = 200
"""Samples of a rail that its sparkline shows: 20 s."""
BARS = " ▁▂▃▄▅▆▇█"
STATE_STYLE = {
    LinkState.UP: "green",
    LinkState.SUSPECT: "yellow",
    LinkState.DOWN: "bold red",
    LinkState.HOLD: "dark_orange",
    LinkState.PROBATION: "cyan",
    LinkState.DEGRADED: "yellow",
    LinkState.ADMIN: "bright_black",
    LinkState.UNKNOWN: "bright_black",
}
LOG_STYLE = {
    "fault": "bold white on red",
    "over": "bold black on green",
    "down": "red",
    "up": "green",
    "flap": "magenta",
    "steer": "cyan",
    "plugin": "blue",
    "info": "bright_black",
}


def sparkline(values: Iterable[float], top: float, width: int) -> str:
    """The last ``width`` values as block characters, ``top`` being full height."""
    last = list(values)[-width:]
    if top <= 0:
        return " " * width
    marks = (BARS[min(8, max(0, round(8 * value / top)))] for value in last)
    return "".join(marks).rjust(width)


def squeeze(values: Iterable[float], samples: int, width: int) -> list[float]:
    """The last ``samples`` values as the means of at most ``width`` spans of equal length."""
    last = list(values)[-samples:]
    span = max(1, -(-samples // width))
    # Spans are counted from the newest, so that a mark moves one column at a time.
    ends = range(len(last), 0, -span)
    return [sum(part) / len(part) for end in ends if (part := last[max(0, end - span) : end])][::-1]


def rate(value: float) -> str:
    """Byte/s as Mbit/s or Gbit/s."""
    bits = value * 8
    return f"{bits / 1e9:.2f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.0f} Mbit/s"


def draw(live: Live, width: int, height: int, rate_bps: float) -> RenderableType:
    """The whole screen for a terminal of that size.

    Args:
        live: what to show.
        width: of the terminal, columns.
        height: rows.
        rate_bps: what a rail can carry, byte/s; full height of its sparkline.
    """
    wide = width >= 200
    per_row = len(live.hosts) if wide else 2
    rows = -(-len(live.hosts) // per_row)
    panel_width = width // per_row
    hosts = [_host(live, host, panel_width, rate_bps) for host in live.hosts]
    grid = Table.grid(expand=True)
    for _ in range(per_row):
        grid.add_column(ratio=1)
    for at in range(0, len(hosts), per_row):
        grid.add_row(*hosts[at : at + per_row])
    layout = Layout()
    hosts_height = rows * (len(live.rails) + 2)
    layout.split_column(
        Layout(_head(live, width, rate_bps), size=HEAD, name="head"),
        Layout(grid, size=hosts_height, name="hosts"),
        Layout(_log(live, max(1, height - HEAD - hosts_height - 2)), name="log"),
    )
    return layout


def _head(live: Live, width: int, rate_bps: float) -> RenderableType:
    now = Table.grid(expand=True)
    now.add_column(ratio=1)
    now.add_column(justify="right")
    chapter = live.current()
    if chapter is not None:
        left = chapter.at + chapter.seconds - live.now_s
        where = ", ".join(t.replace(":", " ") for t in chapter.targets)
        what = Text(f" FAULT  {chapter.title} — {where}  ({left:.0f} s left) ", "bold white on red")
    else:
        following = next((c for c in live.chapters if c.at > live.now_s), None)
        text = live.phase
        if live.start_ns and following is not None:
            text = f"next: {following.title} in {following.at - live.now_s:.0f} s"
        what = Text(text, "bright_black")
    current = live.total[-1] if live.total else 0.0
    figures = f"{rate(current)}   {live.retransmitted / 1e6:.1f} MB resent"
    what.no_wrap, what.overflow = True, "ellipsis"
    now.add_row(what, Text(f"{max(0.0, live.now_s):.1f} / {live.seconds:g} s", "bold"))
    top = rate_bps * len(live.hosts) * len(live.rails)
    flow = Text(_whole_run(live, top, width - 4), "green", no_wrap=True)
    title = "fabricd demo" if live.failover else "fabricd demo — failover OFF"
    errors = f"[bold red]{live.errors} errors[/]" if live.errors else "[green]0 errors[/]"
    return Panel(
        Group(now, flow, _progress(live, width - 4)),
        title=f"[bold]{title}[/] · {len(live.hosts)} hosts × {len(live.rails)} rails · ring"
        f" all-reduce · {live.running} ranks · {errors}",
        subtitle=f"[bold]{figures}[/]",
        subtitle_align="right",
        border_style="red" if chapter else "blue",
        padding=(0, 1),
    )


def _whole_run(live: Live, top: float, width: int) -> str:
    """Throughput since the start, a column per span of time, above the progress line."""
    per_column = live.seconds / width / SAMPLE_S
    line = ""
    for column in range(width):
        span = live.total[int(column * per_column) : max(1, int((column + 1) * per_column))]
        line += sparkline([sum(span) / len(span)], top, 1) if span else " "
    return line


def _progress(live: Live, width: int) -> Text:
    """How far the run is, each fault numbered where it lies in time."""
    text = Text(no_wrap=True)
    marks: dict[int, tuple[str, str]] = {}
    for number, chapter in enumerate(live.chapters, 1):
        first = int(width * chapter.at / live.seconds)
        last = int(width * (chapter.at + chapter.seconds) / live.seconds)
        for at in range(first, max(first + 1, min(last, width))):
            marks[at] = ("━", "red")
        marks[first] = (str(number), "bold red")
    done = int(width * min(1.0, max(0.0, live.now_s / live.seconds)))
    for at in range(width):
        mark, style = marks.get(at, ("━", "blue" if at < done else "bright_black"))
        text.append(
            mark if at < done or at in marks else "─", style if at < done else f"dim {style}"
        )
    return text


def _host(live: Live, host: str, width: int, rate_bps: float) -> RenderableType:
    body = Table.grid(padding=(0, 1))
    body.add_column(width=6, no_wrap=True)
    body.add_column(width=9, no_wrap=True)
    spark = max(8, width - 32)
    body.add_column(width=spark, no_wrap=True)
    body.add_column(width=10, justify="right", no_wrap=True)
    worst = "green"
    for rail in live.rails:
        key = (host, rail)
        state = live.states.get(key, LinkState.UNKNOWN)
        history = live.rates.get(key)
        current = history[-1] if history else 0.0
        style = STATE_STYLE[state]
        if state in (LinkState.DOWN, LinkState.HOLD) or live.faulty(key):
            worst = "red"
        name = Text(rail, "bold white on red" if live.faulty(key) else "")
        shown = state.name.lower() if live.failover else "–"
        body.add_row(
            name,
            Text(shown, style),
            Text(sparkline(squeeze(history or (), WINDOW, spark), rate_bps, spark), style),
            Text(f"{current * 8 / 1e6:.0f} Mbit/s"),
        )
    return Panel(body, title=host, title_align="left", border_style=worst, padding=(0, 1))


def _log(live: Live, lines: int) -> RenderableType:
    text = Text(no_wrap=True, overflow="ellipsis")
    for line in list(live.log)[-lines:]:
        text.append(f"{line.at_s:6.2f} s  ", "bright_black")
        text.append(line.text, LOG_STYLE.get(line.style, ""))
        text.append("\n")
    return Panel(
        text,
        title="what the daemons and the plugins say",
        title_align="left",
        border_style="bright_black",
        padding=(0, 1),
    )
