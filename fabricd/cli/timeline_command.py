"""``fabricctl timeline`` and ``events``: what happened, also where no daemon answers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fabricd.cli import client, show_timeline
from fabricd.cli.base import (
    DEFAULT_CONFIG,
    DEFAULT_SOCKET,
    RUNBOOK,
    Json,
    Socket,
    ask,
    err,
    fail,
    out,
    parse_since,
    put_json,
)
from fabricd.cli.tables import Form, Output, as_text, put_table
from fabricd.views import moments
from telemetry.events import EventKind

Row = dict[str, Any]

ROWS, JOB_ROWS = 20_000, 5_000
"""The most that are read: of hosts and links, and of what jobs' pages say."""
SILENCE_S = 2.0
"""A daemon that says nothing for so long is not waited for: the store has the same rows."""
FOLLOW_GAP_S = 0.5
"""With --follow a moment is over after so long without a row that belongs to it."""
DEFAULT_STATE = Path("/var/lib/fabricd")
OF_JOBS = EventKind.PLUGIN.value
KINDS = [kind.value for kind in EventKind]

Link = Annotated[str | None, typer.Option("--link", help="Only this interface.")]
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", help="Only this kind, e.g. flap; repeatable.")
]
Detail = Annotated[
    bool, typer.Option("--detail", help="Each row by itself, those of jobs' plugins too.")
]
StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", help="Read the store in this directory, and ask no daemon."),
]
ConfigFile = Annotated[
    Path, typer.Option("--config", help="Names the store, where no daemon answers.")
]


class History(NamedTuple):
    """Rows of a timeline.

    Attributes:
        rows: oldest first.
        note: where they are from, if not from the daemon.
        cut_ns: CLOCK_REALTIME before which not all were read; 0: all were.
    """

    rows: list[Row]
    note: str = ""
    cut_ns: int = 0


def timeline(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    since: Annotated[str, typer.Option(help="90s, 15m, 2h, 7d ago, or epoch seconds.")] = "1d",
    until: Annotated[str | None, typer.Option(help="As --since; default: now.")] = None,
    link: Link = None,
    kind: Kinds = None,
    limit: Annotated[int, typer.Option(min=0, max=100_000, help="The newest that many.")] = 200,
    detail: Detail = False,
    state_dir: StateDir = None,
    config: ConfigFile = DEFAULT_CONFIG,
    form: Output = None,
) -> None:
    """What happened: flaps, states, steering, jobs; a sentence for each moment."""
    now = time.time_ns()
    query: Row = {"since_ns": parse_since(since, now)}
    if until is not None:
        query["until_ns"] = parse_since(until, now)
    if link is not None:
        query["link"] = link
    for one in kind or ():
        if one not in KINDS:
            raise typer.BadParameter(f'"{one}"; allowed: {", ".join(KINDS)}', param_hint="--kind")
    text = as_text(form, as_json=as_json)
    most = ROWS if text else limit
    found = _history(socket, query, kind, most, state_dir, config, jobs_apart=text and not detail)
    if link is not None and not found.rows:
        _check_link(socket, link, offline=bool(found.note or state_dir))
    if not text:
        put_json(found.rows)
        if found.cut_ns:
            err.print(f"(the newest {limit} rows; there are earlier ones: --limit)", soft_wrap=True)
        return
    if found.note:
        err.print(found.note, soft_wrap=True)
    _show(found, limit, detail=detail, wide=form is Form.WIDE)


def _show(found: History, limit: int, *, detail: bool, wide: bool) -> None:
    """All moments, and how to see those that are not shown."""
    if not found.rows:
        err.print("no such rows; --since, --until, --link, --kind: fabricctl timeline --help")
        return
    whole = [moments.single(row) for row in found.rows] if detail else moments.moments(found.rows)
    shown = whole[len(whole) - limit :] if limit < len(whole) else whole
    notes = []
    if earlier := len(whole) - len(shown):
        more = f"--limit {len(whole)}"
        notes.append(f"{earlier} earlier moments are not shown: {more}, or a later --since")
    if found.cut_ns:
        first = show_timeline.local(found.cut_ns)
        notes.append(
            f"not all rows before {first:%Y-%m-%d %H:%M:%S} were read: "
            f"--until {found.cut_ns // 10**9}"
        )
    for note in notes:
        out.print(f"({note})", soft_wrap=True)
    links = show_timeline.width_of_links(shown)
    if wide:
        put_table(show_timeline.table(shown, wide=True, links=links), wide=True)
    else:
        for day, of_day in show_timeline.by_day(shown):
            out.print(day)
            put_table(show_timeline.table(of_day, links=links))
    for note in notes:
        err.print(f"({note})", soft_wrap=True)


def _history(
    socket: Path,
    query: Row,
    kinds: Sequence[str] | None,
    limit: int,
    state_dir: Path | None,
    config: Path,
    *,
    jobs_apart: bool,
) -> History:
    """The newest rows, from the daemon; from its store, where it does not answer.

    Args:
        socket: of the daemon.
        query: of `Timeline.query`, but for kinds and limit.
        kinds: None: all.
        limit: the most rows.
        state_dir: where the store is; None: the daemon is asked first.
        config: names the store.
        jobs_apart: what jobs say is read apart, so that it takes no other row's place.
    """
    parts: list[tuple[Row, int]] = [(query | ({"kinds": list(kinds)} if kinds else {}), limit)]
    if jobs_apart and not kinds:
        others = [kind for kind in KINDS if kind != OF_JOBS]
        parts = [(query | {"kinds": others}, limit), (query | {"kinds": [OF_JOBS]}, JOB_ROWS)]
    rows: list[Row] = []
    cut_ns, why = 0, ""
    directory = state_dir
    for part, most in parts:
        found: list[Row] | None = None
        if state_dir is None and not why:
            try:
                found = client.request(
                    socket, {"op": "timeline", "limit": most} | part, silence_s=SILENCE_S
                )
            except (client.UnreachableError, OSError) as error:
                why = str(error)
            except client.DaemonError as error:
                fail(str(error))
        if found is None:
            directory = directory or _state_dir(config)
            found = _stored(directory, part, most, why)
        if found and len(found) == most:
            cut_ns = max(cut_ns, found[0]["wall_ns"])
        rows += found
    rows.sort(key=lambda row: (row["wall_ns"], row.get("seq", 0)))
    note = ""
    if why:
        note = f"{why}; read from {directory}; what to do: {RUNBOOK}"
    return History(rows, note, cut_ns)


def _stored(directory: Path, query: Row, limit: int, why: str) -> list[Row]:
    """Rows of the store; ends the program when it cannot be read."""
    from fabricd.support.state import read_as_owner  # imports SQLite

    chosen = {"kind" if key == "kinds" else key: value for key, value in query.items()}
    since = chosen.pop("since_ns")
    found = read_as_owner(directory, since, chosen | {"limit": limit})
    if problem := found.missing.get("timeline.jsonl"):
        also = f"{why}; and " if why else ""
        fail(f"{also}the store cannot be read: {problem} (--state-dir names another directory)")
    return found.rows


def _state_dir(config: Path) -> Path:
    """``[paths] state_dir``; the default where there is no configuration, or a wrong one."""
    if not config.exists():
        return DEFAULT_STATE
    from fabricd.config.loader import ConfigError, load  # heavy, and needed here alone

    try:
        return Path(load(config, shared_peers=False).paths.state_dir)
    except ConfigError:
        return DEFAULT_STATE


def _check_link(socket: Path, link: str, *, offline: bool) -> None:
    """End the program where there is no such link."""
    from fabricd.config.netdev_names import kernel_name

    if offline:
        return
    names = [one["netdev"] for one in ask(socket, {"op": "links"})]
    if kernel_name(link) not in names:
        fail(f'no link "{link}"; allowed: {", ".join(names) or "none: no link is configured"}')


def events(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on for ever.")] = False,
    count: Annotated[int, typer.Option(min=0, help="The newest that many first.")] = 10,
    detail: Detail = False,
) -> None:
    """The newest events, and with --follow each new one as it happens."""
    if as_json:
        for row in ask(socket, {"op": "timeline", "limit": count}) if count else ():
            _put_row(row)
    elif count:
        kinds = KINDS if detail else [kind for kind in KINDS if kind != OF_JOBS]
        recent = ask(socket, {"op": "timeline", "limit": 10 * count, "kinds": kinds})
        found = list(map(moments.single, recent)) if detail else moments.moments(recent)
        for moment in found[-count:]:
            _put_moment(moment)
    if not follow:
        return
    try:
        _follow(socket, as_json=as_json, detail=detail)
    except (client.DaemonError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _follow(socket: Path, *, as_json: bool, detail: bool) -> None:
    """Each event as it happens; a moment once no more rows of it come."""
    grouping = moments.Grouping()
    for row in client.stream(socket, {"op": "events"}, pause_s=FOLLOW_GAP_S):
        if row is not None:
            if as_json:
                _put_row(row)
            elif detail:
                _put_moment(moments.single(row))
            else:
                grouping.add(row)
        over = time.monotonic_ns() - round(FOLLOW_GAP_S * 1e9)
        for group in grouping.take(over):
            _put_moment(moments.moment(group))


def _put_row(row: Row) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def _put_moment(moment: moments.Moment) -> None:
    out.print(show_timeline.line(moment), soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog="Example: fabricctl timeline --since 2h --link rail0 --kind flap")(timeline)
    app.command(epilog="Example: fabricctl events --follow --json")(events)
