"""What all commands share: options, the daemon's answer, durations, output."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fabricd.cli import client
from telemetry.service.shown import on_one_line, shown

Socket = Annotated[
    Path,
    # Not looked at beforehand: that nobody may read it is told better by who tries to.
    typer.Option("--socket", envvar="FABRIC_CTL_SOCKET", help="Control socket.", readable=False),
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the timeline and colleagues.")]
DEFAULT_SOCKET = Path("/run/fabricd/ctl.sock")
DEFAULT_CONFIG = Path("/etc/fabricd/fabricd.toml")
RUNBOOK = "docs/operate/runbook/FabricDaemonDown.md"
HINT = f"  what to do: {RUNBOOK}; fabricctl timeline reads its history without it"
"""Below an error that says that the daemon does not answer."""
MOST_COLUMNS = 100
"""Of prose: longer lines are hard to read."""


class PlainConsole(Console):
    """Prints the words of others as they are: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - rich's
        """``options``: those of `rich.console.Console`."""
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - rich's
        """As the base class does. A text, or a cell of a table, is one line, whatever is in it."""
        super().print(*map(one_line, objects), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """As the base class does. Escape sequences of its own are no text of segments."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=shown(segment.text))


def one_line(printed: Any) -> Any:  # noqa: ANN401 - what rich can print
    """A text, or each text of a table, without line ends; other things as they are."""
    if isinstance(printed, str):
        return on_one_line(printed)
    if isinstance(printed, Text):
        line = printed.copy()
        line.plain = on_one_line(printed.plain)  # As long as before: styles stay.
        return line
    if isinstance(printed, Table):
        printed.title, printed.caption = one_line(printed.title), one_line(printed.caption)
        for column in printed.columns:
            column._cells = [one_line(cell) for cell in column._cells]  # noqa: SLF001
    return printed


out = PlainConsole(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160)
err = PlainConsole(stderr=True)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """``90s``, ``15m``, ``2h`` or ``7d`` in seconds.

    Raises:
        typer.BadParameter: none of these.
    """
    if match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", text):
        return float(match[1]) * _UNITS[match[2]]
    raise typer.BadParameter(f'"{text}"; allowed: 90s, 15m, 2h, 7d')


def parse_since(text: str, now_ns: int) -> int:
    """``90s``, ``15m``, ``2h``, ``7d`` ago, or seconds since the epoch, as ns.

    Raises:
        typer.BadParameter: neither.
    """
    if re.fullmatch(r"\d{1,11}(\.\d{1,9})?", text):
        return round(float(text) * 1e9)
    try:
        return now_ns - round(parse_duration(text) * 1e9)
    except typer.BadParameter:
        raise typer.BadParameter(
            f'"{text}"; allowed: 90s, 15m, 2h, 7d, or seconds since 1970'
        ) from None


def prose_width() -> int:
    """Columns for prose on the standard output."""
    return min(out.width, MOST_COLUMNS)


def ask(socket: Path, document: dict[str, Any], *, limit_s: float | None = None) -> Any:  # noqa: ANN401 - a JSON value
    """The daemon's answer; ends the program with status 1 when there is none.

    ``limit_s`` is as `client.request` has it.
    """
    try:
        return client.request(socket, document, limit_s=limit_s)
    except client.UnreachableError as error:
        fail(f"{error}\n{HINT}")
    except (client.DaemonError, OSError) as error:
        fail(str(error))


def why(error: Exception) -> str:
    """An error for an operator: without numbers and quotes of Python."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def fail(text: str) -> NoReturn:
    """Say why and end with status 1."""
    # Several lines are several problems of a file.
    for line in f"fabricctl: {text}".split("\n"):
        err.print(Text(line, style="red"), soft_wrap=True)
    raise typer.Exit(1)


def put(text: str) -> None:
    """A line on the standard output; words of others in it cannot act on the terminal."""
    sys.stdout.write(f"{on_one_line(text)}\n")


def put_json(data: Any) -> None:  # noqa: ANN401
    """JSON on the standard output."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")
