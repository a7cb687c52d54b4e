"""``fabricctl top``: what jobs do on each rail now."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from fabricd.cli import client, top
from fabricd.cli.base import DEFAULT_SOCKET, Json, Socket, fail, one_line, out
from fabricd.cli.tables import Form, Output, as_text, put_table


def watch(
    socket: Path, interval_s: float, *, groups: bool, job: str, once: bool
) -> Iterator[tuple[list[top.Row], top.Document]]:
    """Rows, and the answer that they are from, once per interval.

    Raises:
        client.DaemonError: the daemon cannot be reached, or says no.
    """
    before = client.request(socket, {"op": "jobs"})
    while True:
        time.sleep(interval_s)
        after = client.request(socket, {"op": "jobs"})
        yield top.rows(before, after, groups=groups, job=job), after
        if once:
            return
        before = after


def show(
    console: Console,
    looks: Iterator[tuple[list[top.Row], top.Document]],
    *,
    groups: bool,
    as_json: bool,
    wide: bool = False,
) -> None:
    """Print every look: JSON lines, a table that stays in place, or (no terminal) one after one."""
    if as_json:
        for rows, answer in looks:
            document = {"rows": [row.as_json() for row in rows], "left_out": answer["left_out"],
                        "partial": answer.get("scan", {}).get("partial", "")}  # fmt: skip
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
        return
    if wide or not console.is_terminal:
        for rows, answer in looks:
            table, lines = _view(rows, top.missing(answer), groups=groups, wide=wide)
            if table is not None:
                put_table(table, console, wide=wide)
            for line in lines:
                console.print(line, soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        for rows, answer in looks:
            table, lines = _view(rows, top.missing(answer), groups=groups, wide=False)
            parts = [table, *lines] if table is not None else lines
            live.update(Group(*map(one_line, parts)), refresh=True)


def _view(
    rows: list[top.Row], missing: str, *, groups: bool, wide: bool
) -> tuple[Table | None, list[str]]:
    """The table, and sentences below it."""
    if not rows:
        return None, [missing or "No job uses the plugin on this host."]
    lines = ([] if groups else top.sentences(rows)) + ([missing] if missing else [])
    return top.table(rows, groups=groups, wide=wide), lines


Interval = Annotated[
    float, typer.Option("--interval", "-i", min=0.1, max=3600, help="Seconds between two looks.")
]
Once = Annotated[bool, typer.Option("--once", help="One table, then end.")]
Groups = Annotated[
    bool, typer.Option("--groups", "-g", help="By peer and direction instead of by rail.")
]
JobPrefix = Annotated[str, typer.Option("--job", help="Only jobs whose name begins so.")]


def job_top(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    interval: Interval = 1.0,
    once: Once = False,
    groups: Groups = False,
    job: JobPrefix = "",
    form: Output = None,
) -> None:
    """What each job does on each rail now: rates, delivery latencies, paths."""
    try:
        looks = watch(socket, interval, groups=groups, job=job, once=once)
        in_json = not as_text(form, as_json=as_json)
        show(out, looks, groups=groups, as_json=in_json, wide=form is Form.WIDE)
    except (client.DaemonError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("top", epilog="Example: fabricctl top --groups --interval 2")(job_top)
