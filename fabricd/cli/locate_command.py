"""``fabricctl observations`` and ``fabricctl locate``: where faults are, by what hosts see."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fabricd.cli.base import DEFAULT_SOCKET, Json, Socket, ask, fail, out, put_json

MOST_BYTES = 64 << 20

Sources = Annotated[
    list[Path] | None,
    typer.Argument(help="JSON of `observations --json`, control sockets, or - ; default: here."),
]


def observations(socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:
    """What this host and its neighbours see of the fabric now, for `locate`."""
    data = ask(socket, {"op": "observations"})
    if as_json:
        put_json(data)
        return
    bad = [flow for flow in data["flows"] if flow[4] > 0]
    out.print(f"{data['host']}: {len(data['flows'])} directions seen, {len(bad)} silent")
    out.print(f"neighbours heard: {', '.join(data['neighbours']) or 'none'}", soft_wrap=True)
    for source, rail, target, peer_rail, _ in bad:
        out.print(f"  silent: {source}/{rail} → {target}/{peer_rail}")
    for host, rail in data["dark"]:
        out.print(f"  no carrier: {host}/{rail}")


def locate(sources: Sources = None, socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:
    """Where faults are, by the observations of this host, or of several together."""
    # Imports the engine: other commands do not wait for it.
    from fabricd.detect.observations import ObservationError, answer, blame_document

    documents = [_read(source) for source in sources or [socket]]
    try:
        blames = answer(documents)
    except ObservationError as error:
        fail(str(error))
    if as_json:
        put_json([blame_document(blame) for blame in blames])
        return
    for blame in blames:
        out.print(str(blame))
    if not blames and not any(document["flows"] for document in documents):
        out.print("nothing is seen: no prober, or no path was ever heard (fabricctl status)")
    elif not blames:
        out.print("nothing is silent (places of mere losses: fabricctl timeline --kind located)")


def _read(source: Path) -> Any:  # noqa: ANN401 - a JSON value, checked by `answer`
    if str(source) == "-":
        text = sys.stdin.read(MOST_BYTES)
    else:
        try:
            if stat.S_ISSOCK(source.stat().st_mode):
                return ask(source, {"op": "observations"})
            with source.open(encoding="utf-8") as file:
                text = file.read(MOST_BYTES)
        except OSError as error:
            fail(f"{source}: {error.strerror}")
        except UnicodeDecodeError:
            fail(f"{source}: not a text")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        fail(f"{source}: not JSON: {error}")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog="Example: fabricctl observations --json > h0.json")(observations)
    app.command(epilog="Example: fabricctl locate h0.json h1.json h2.json")(locate)
