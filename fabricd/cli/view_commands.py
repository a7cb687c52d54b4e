"""``fabricctl status``, ``links`` and ``version``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fabricd import __version__
from fabricd.cli import show
from fabricd.cli.base import DEFAULT_SOCKET, Json, Socket, ask, out, put_json


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
) -> None:
    """State, weight, flaps, penalty and probes of each link."""
    data = ask(socket, {"op": "links"})
    if as_json:
        put_json(data)
    else:
        show.links(out, data, paths=paths)


def version(as_json: Json = False) -> None:
    """The version of this program."""
    if as_json:
        put_json({"version": __version__})
    else:
        out.print(f"fabricctl {__version__}")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog="Example: fabricctl status --json | jq .mode")(status)
    app.command(epilog="Example: fabricctl links --paths")(links)
    app.command(epilog="Example: fabricctl version --json")(version)
