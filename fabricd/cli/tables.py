"""Tables that fit a terminal of 80 columns: few columns, the worst rows first, no torn cell.

A table has one column of prose, the last one. It takes what the other columns leave, and at most
two lines; what does not fit ends with "…". ``-o wide`` shows every column, each row on one line.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Literal

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fabricd.cli.base import PlainConsole, one_line, out
from telemetry.service.shown import on_one_line

LINES = 2
"""The most of one row."""
WIDE = 2000
"""Columns of ``-o wide``: no row is longer, and the terminal breaks the lines."""
LEAST_PROSE = 24
"""Columns that the last column has at least: the others are cut before it."""
DETAILS = "…"


class Form(StrEnum):
    """How a table is shown."""

    WIDE = "wide"
    JSON = "json"


Output = Annotated[
    Form | None,
    typer.Option("--output", "-o", help="wide: every column; json: the same as --json."),
]


def as_text(form: Form | None, *, as_json: bool) -> bool:
    """Whether people read it."""
    return not as_json and form is not Form.JSON


class Clipped:
    """A cell of at most `LINES` lines."""

    def __init__(self, text: Text | str, lines: int = LINES) -> None:
        """``text``: also another host's or job's, with whatever characters."""
        self._text = one_line(text) if isinstance(text, Text) else Text(on_one_line(text))
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines that are shown; rich's protocol."""
        width = options.max_width
        found = self._text.wrap(console, width)
        yield from found[: self._lines - 1]
        if len(found) <= self._lines:
            yield from found[self._lines - 1 :]
            return
        last = found[self._lines - 1]
        last.rstrip()
        last.truncate(max(0, width - len(DETAILS)))
        yield last + DETAILS

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Of the whole text; rich's protocol."""
        whole = Measurement.get(console, options, self._text)
        return Measurement(min(whole.maximum, LEAST_PROSE), whole.maximum)


def table(columns: Iterable[str], rows: Iterable[Sequence[Text | str]], left: str = "") -> Table:
    """A table for `put_table`.

    Args:
        columns: their names; the last one is prose.
        rows: a cell for each column.
        left: names of columns that are aligned to the left, with blanks between them; the first
            and the last always are.
    """
    names = list(columns)
    at_left = {*left.split(), names[0], names[-1]}
    made = Table(box=None, pad_edge=False, padding=(0, 1))
    for name in names[:-1]:
        side: Literal["left", "right"] = "left" if name in at_left else "right"
        made.add_column(Text(name), justify=side, no_wrap=True, min_width=len(name))
    made.add_column(Text(names[-1]))
    for row in rows:
        made.add_row(*row[:-1], Clipped(row[-1]))
    return made


def put_table(made: Table, console: Console = out, *, wide: bool = False) -> None:
    """Print a table; a wide one without regard to the terminal's width."""
    if not wide:
        console.print(made)
        return
    file = io.StringIO()
    colours = {"force_terminal": True, "color_system": "auto"} if console.is_terminal else {}
    PlainConsole(file=file, width=WIDE, **colours).print(made)
    for line in file.getvalue().splitlines():
        console.file.write(f"{line.rstrip()}\n")  # Cells are padded to the longest one.
