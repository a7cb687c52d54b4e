"""The timeline in a terminal: a heading for each day, then time, link and sentence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from fabricd.cli.tables import Clipped
from fabricd.timeline.levels import ERROR, WARNING
from fabricd.views.moments import Moment

COLOURS = {WARNING: "yellow", ERROR: "red"}
LEAST_LINK = 6


def local(wall_ns: int) -> dt.datetime:
    """CLOCK_REALTIME ns as local time."""
    return dt.datetime.fromtimestamp(wall_ns / 1e9, tz=dt.UTC).astimezone()


def clock_time(wall_ns: int) -> str:
    """Local time of the day with milliseconds."""
    moment = local(wall_ns)
    return moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def day(wall_ns: int) -> str:
    """Local date."""
    return local(wall_ns).strftime("%A %Y-%m-%d")


def sentence(moment: Moment) -> Text:
    """What happened, in the colour of its level."""
    return Text(moment.text, style=COLOURS.get(moment.level, ""))


def table(found: Sequence[Moment], *, wide: bool = False, links: int = LEAST_LINK) -> Table:
    """The moments of one day.

    Args:
        found: oldest first.
        wide: each on one line, with its date.
        links: columns for the names of links.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True, min_width=links)
    made.add_column()
    for moment in found:
        date = local(moment.wall_ns).strftime("%Y-%m-%d ") if wide else ""
        said = sentence(moment)
        cell = said if wide else Clipped(said)
        made.add_row(date + clock_time(moment.wall_ns), Text(moment.subject or "-"), cell)
    return made


def by_day(found: Iterable[Moment]) -> list[tuple[str, list[Moment]]]:
    """The days with their moments."""
    days: dict[str, list[Moment]] = {}
    for moment in found:
        days.setdefault(day(moment.wall_ns), []).append(moment)
    return list(days.items())


def width_of_links(found: Iterable[Moment]) -> int:
    """Columns that the names of links take."""
    return max((len(moment.subject) for moment in found), default=LEAST_LINK)


def line(moment: Moment) -> Text:
    """A moment on one line, for a stream."""
    text = Text(f"{clock_time(moment.wall_ns)}  {moment.subject or '-':<{LEAST_LINK}}  ")
    return text.append_text(sentence(moment))
