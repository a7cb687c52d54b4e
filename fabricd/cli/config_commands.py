"""``fabricctl config``: the configuration file, and what the daemon runs with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fabricd.cli.base import (
    DEFAULT_CONFIG,
    DEFAULT_SOCKET,
    Json,
    Socket,
    ask,
    err,
    out,
    put_json,
)

config_app = typer.Typer(no_args_is_help=True, help="The configuration file.")


@config_app.command("check", epilog="Example: fabricctl config check /etc/fabricd/fabricd.toml")
def config_check(
    file: Annotated[Path, typer.Argument(help="The main file; conf.d lies beside it.")] = (
        DEFAULT_CONFIG
    ),
    as_json: Json = False,
) -> None:
    """Validate a file and its overrides without a daemon: 0 valid, 1 wrong; all problems."""
    from fabricd.config.loader import ConfigError, config_hash, policy_hash, read

    problems: list[dict[str, Any]] = []
    good: dict[str, Any] = {}
    try:
        loaded = read(file)
        config = loaded.config
        good = {
            "hash": config_hash(config), "policy_hash": policy_hash(config),
            "files": list(loaded.files), "peers": len(config.peers),
            "altnames": dict(loaded.altnames),
        }  # fmt: skip
    except ConfigError as error:
        problems = [
            {"file": p.file, "line": p.line, "key": p.key, "text": p.text} for p in error.problems
        ]
        if not as_json:
            for problem in error.problems:
                err.print(str(problem), soft_wrap=True)
    if as_json:
        put_json({"file": str(file), "valid": not problems, "problems": problems} | good)
    elif not problems:
        out.print(f"{file}: valid, hash {good['hash']}", soft_wrap=True)
        for other in good["files"][1:]:
            out.print(f"  with {other}", soft_wrap=True)
        for altname, netdev in good["altnames"].items():
            out.print(f"  {altname} is an altname of {netdev}", soft_wrap=True)
    raise typer.Exit(1 if problems else 0)


@config_app.command("show", epilog="Example: fabricctl config show --json")
def config_show(socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:  # noqa: ARG001
    """The configuration that the daemon runs with, defaults filled in."""
    put_json(ask(socket, {"op": "config"}))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(config_app, name="config")
