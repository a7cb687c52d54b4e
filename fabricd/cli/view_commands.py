"""``fabricctl status``, ``links`` and ``version``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fabricd.cli import show, show_links
from fabricd.cli.base import DEFAULT_SOCKET, Json, Socket, ask, out, put_json
from fabricd.cli.tables import Form, Output, as_text, put_table


def status(socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:
    """Mode, link states, prober, timeline."""
    data = ask(socket, {"op": "status"})
    if as_json:
        put_json(data)
    else:
        show.status(out, data)


def overview(socket: Path | None = None) -> None:
    """``fabricctl`` alone: the status, and where to read on."""
    status(socket or Path(os.environ.get("FABRIC_CTL_SOCKET", DEFAULT_SOCKET)))
    out.print("all commands: fabricctl --help")


def links(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    paths: Annotated[bool, typer.Option("--paths", help="Each link's paths too.")] = False,
    form: Output = None,
) -> None:
    """State, weight, flaps and reason of each link, the worst first."""
    data = ask(socket, {"op": "links"})
    if not as_text(form, as_json=as_json):
        put_json(data)
        return
    wide = form is Form.WIDE
    put_table(show_links.links(data, wide=wide), wide=wide)
    if paths:
        for line in show_links.plugged(data):
            out.print(line, soft_wrap=True)
        out.print("")
        if any(link["paths"] for link in data):
            put_table(show_links.paths(data), wide=wide)
        else:
            out.print("no path is probed: no link has an address and a peer on its rail")


def version(as_json: Json = False) -> None:
    """The version of this program."""
    from fabricd import __version__  # reads what is installed

    if as_json:
        put_json({"version": __version__})
    else:
        out.print(f"fabricctl {__version__}")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog="Example: fabricctl status --json | jq .mode")(status)
    app.command(epilog="Example: fabricctl links -o wide")(links)
    app.command(epilog="Example: fabricctl version --json")(version)
