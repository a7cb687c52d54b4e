"""``fabricctl support-bundle``."""

from __future__ import annotations

import socket as sockets
import time
from pathlib import Path
from typing import Annotated

import typer

from fabricd.cli.base import (
    DEFAULT_CONFIG,
    DEFAULT_SOCKET,
    Json,
    Socket,
    fail,
    out,
    parse_since,
    put_json,
)


def support_bundle(
    socket: Socket = DEFAULT_SOCKET,
    config: Annotated[Path, typer.Option("--config", help="The main file.")] = DEFAULT_CONFIG,
    since: Annotated[str, typer.Option(help="How much of the timeline.")] = "1d",
    file: Annotated[
        Path | None, typer.Option("--out", help="The archive; it must not be there yet.")
    ] = None,
    as_json: Json = False,
) -> None:
    """One archive of configuration, timeline, status, metrics and host facts; no secrets."""
    from fabricd.support.bundle import collect, write  # heavy, and needed here alone

    start = parse_since(since, time.time_ns())
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    root = f"fabricd-support-{sockets.gethostname().split('.')[0]}-{stamp}"
    path = file or Path(f"{root}.tar.gz")
    data = collect(socket, config, start, root)
    try:
        write(path, data)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    if as_json:
        put_json({"file": str(path), "bytes": len(data)})
    else:
        out.print(f"{path}: {len(data)} bytes; read it before you send it", soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "support-bundle", epilog="Example: fabricctl support-bundle --out /tmp/case-17.tar.gz"
    )(support_bundle)
