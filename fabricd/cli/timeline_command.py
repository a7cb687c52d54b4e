"""``fabricctl timeline`` and ``events``."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from fabricd.cli import client, show
from fabricd.cli.base import (
    DEFAULT_SOCKET,
    Json,
    Socket,
    ask,
    err,
    fail,
    out,
    parse_since,
    put_json,
)


def timeline(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    since: Annotated[str, typer.Option(help="90s, 15m, 2h, 7d ago, or epoch seconds.")] = "1d",
    link: Annotated[str | None, typer.Option(help="Only this interface.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind, e.g. flap.")] = None,
    limit: Annotated[int, typer.Option(min=0, max=100_000, help="The newest that many.")] = 200,
) -> None:
    """What happened: flaps, states, steering, modes."""
    document: dict[str, Any] = {
        "op": "timeline", "since_ns": parse_since(since, time.time_ns()), "limit": limit
    }  # fmt: skip
    document |= {k: v for k, v in (("link", link), ("kind", kind)) if v is not None}
    data = ask(socket, document)
    if as_json:
        put_json(data)
        return
    for event in data:
        out.print(show.event_line(event), soft_wrap=True)
    if not data:
        err.print("no such rows; --since, --link, --kind: fabricctl timeline --help")


def events(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on for ever.")] = False,
    count: Annotated[int, typer.Option(min=0, help="The newest that many first.")] = 10,
) -> None:
    """The newest events, and with --follow each new one as it happens."""
    recent: list[dict[str, Any]] = []
    if count:
        recent = ask(socket, {"op": "timeline", "limit": count})
    _print_events(recent, as_json=as_json)
    if not follow:
        return
    try:
        for event in client.stream(socket, {"op": "events"}):
            _print_events([event], as_json=as_json)
    except (client.DaemonError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _print_events(found: list[dict[str, Any]], *, as_json: bool) -> None:
    for event in found:
        if as_json:
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()
        else:
            out.print(show.event_line(event), soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog="Example: fabricctl timeline --since 2h --link rail0 --kind flap")(timeline)
    app.command(epilog="Example: fabricctl events --follow --json")(events)
