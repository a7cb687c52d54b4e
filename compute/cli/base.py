"""What all commands share: options, configuration, output."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from compute.config import DEFAULT_FILE, Config, load
from compute.store import Store, StoreError
from telemetry.service.config_errors import ConfigError
from telemetry.service.shown import on_one_line, shown

EXIT_ERROR, EXIT_USAGE = 1, 2
DATABASE = "compute.db"

ConfigFile = Annotated[
    Path, typer.Option("--config", envvar="FABRIC_COMPUTE_CONFIG", help="Configuration file.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
DEFAULT_CONFIG = DEFAULT_FILE


def fail(text: str, status: int = EXIT_ERROR) -> NoReturn:
    """Say why on stderr, and end."""
    sys.stderr.write(f"fabric-compute: {shown(text)}\n")
    raise typer.Exit(status)


def put(text: str) -> None:
    """A line on stdout; words of others in it cannot act on the terminal."""
    sys.stdout.write(f"{on_one_line(text)}\n")


def put_error(text: str) -> None:
    """A line on stderr, made harmless as `put` does."""
    sys.stderr.write(f"{on_one_line(text)}\n")


def put_json(data: Any) -> None:  # noqa: ANN401
    """JSON on stdout."""
    sys.stdout.write(f"{json.dumps(data, indent=2)}\n")


def load_config(path: Path) -> Config:
    """The configuration; ends the program with status 2 and every problem when it is wrong."""
    try:
        return load(path)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)


def open_store(config: Config) -> Store:
    """The store, to read; ends the program with status 1 when there is none."""
    path = Path(config.state_dir) / DATABASE
    try:
        return Store(path, read_only=True)
    except StoreError as error:
        fail(str(error))


def table(rows: Sequence[tuple[str, ...]]) -> None:
    """Columns of text; the first row is the header."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        put("  ".join([*cells, row[-1]]).rstrip())
