"""The live terminal view (rich). Draws a `Live`; knows nothing of the lab."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lab.demo.live import Live
from lab.demo.record import Rail
from telemetry.events import LinkState

HEAD = 5
SAMPLE_S = 0.1
WINDOW = 200
"""Samples of a rail that its sparkline shows: 20 s."""
BARS = " ▁▂▃▄▅▆▇█"
RECENT = 5
"""Samples of which the figure beside a sparkline is the mean: one alone is as long as a message."""
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
    "rate": "bold",
}


def sparkline(values: Iterable[float], top: float, width: int) -> str:
    """The last ``width`` values as block characters, ``top`` being full height."""
    last = list(values)[-width:]
    if top <= 0:
        return " " * width
    marks = (BARS[min(8, max(0, round(8 * value / top)))] for value in last)
    return "".join(marks).rjust(width)


STATE_WIDTH = 10


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
        left = max(0.0, chapter.at + chapter.seconds - live.now_s)
        number = live.chapters.index(chapter) + 1
        where = ", ".join(t.replace(":", " ") for t in chapter.targets)
        what = Text(
            f" FAULT {number}  {chapter.title} — {where}  ({left:.1f} s left) ", "bold white on red"
        )
    else:
        following = next((c for c in live.chapters if c.at > live.now_s), None)
        text = live.phase
        if live.start_ns and following is not None:
            number = live.chapters.index(following) + 1
            text = f"next: fault {number}, {following.title}, in {following.at - live.now_s:.0f} s"
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
    body.add_column(width=5, no_wrap=True)
    body.add_column(width=STATE_WIDTH, no_wrap=True)
    spark = max(8, width - STATE_WIDTH - 21)
    body.add_column(width=spark, no_wrap=True)
    body.add_column(width=9, justify="right", no_wrap=True)
    worst = "green"
    for rail in live.rails:
        key = (host, rail)
        state = live.states.get(key, LinkState.UNKNOWN)
        history = live.rates.get(key, ())
        recent = list(history)[-RECENT:]
        current = sum(recent) / len(recent) if recent else 0.0
        if state in (LinkState.DOWN, LinkState.HOLD) or live.faulty(key):
            worst = "red"
        body.add_row(
            Text(rail, "bold white on red" if live.faulty(key) else ""),
            link_state(live, key),
            history_line(live, key, spark, rate_bps, STATE_STYLE[state]),
            Text(f"{current * 8 / 1e6:.0f} Mb/s"),
        )
    return Panel(body, title=host, title_align="left", border_style=worst, padding=(0, 1))


def link_state(live: Live, key: Rail) -> Text:
    """The daemon's word on a link, and the peers that a sound link does not reach."""
    if not live.failover:
        return Text("no daemon", "bright_black")
    state = live.states.get(key, LinkState.UNKNOWN)
    text = Text(state.name.lower(), STATE_STYLE[state], no_wrap=True, overflow="ellipsis")
    peers = sorted(live.unreachable.get(key, ()))
    if peers and state in (LinkState.UP, LinkState.SUSPECT, LinkState.PROBATION):
        # Too many to name: no peer is reached, or nearly.
        named = ",".join(peers) if len(peers) < 3 else f"{len(peers)} peers"
        text = Text(f"up, no {named}", "yellow", no_wrap=True, overflow="ellipsis")
    return text


def history_line(live: Live, key: Rail, width: int, rate_bps: float, style: str) -> Text:
    """A rail's sparkline; red ground while a fault held the rail."""
    values = squeeze(live.rates.get(key, ()), WINDOW, width)
    text = Text(" " * (width - len(values)), no_wrap=True)
    span_s = -(-WINDOW // width) * SAMPLE_S
    for column, mark in enumerate(sparkline(values, rate_bps, len(values))):
        at_s = live.now_s - (len(values) - column - 0.5) * span_s
        text.append(mark, f"{style} on red" if live.faulty(key, at_s) else style)
    return text


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
