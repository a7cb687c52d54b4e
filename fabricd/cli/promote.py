"""``fabricctl promote``: the replay first, then the question, then the mode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fabricd.cli.base import (
    DEFAULT_SOCKET,
    Json,
    Socket,
    Yes,
    ask,
    fail,
    out,
    parse_since,
    put_json,
)
from fabricd.cli.show import age, when
from fabricd.cli.tables import table
from telemetry.events import Event

if TYPE_CHECKING:
    from fabricd.operate.replay import Episode, ReplayReport

MODES = ("observe", "steer", "migrate")
ROWS = 100_000
SHOWN = 20


def promote(
    mode: Annotated[str, typer.Argument(help="observe, steer or migrate.")],
    socket: Socket = DEFAULT_SOCKET,
    group: Annotated[str, typer.Option("--group", help="Only this group of links.")] = "",
    yes: Yes = False,
    since: Annotated[str, typer.Option(help="How far back to look.")] = "7d",
    as_json: Json = False,
) -> None:
    """Raise (or lower) the mode, after showing what steering would have done."""
    if mode not in MODES:
        raise typer.BadParameter(f'"{mode}"; allowed: {", ".join(MODES)}')
    report: dict[str, ReplayReport] = {}
    if mode != "observe":
        report = _replayed(socket, parse_since(since, time.time_ns()), group)
        if not as_json:
            _show(out, report, since, steers=_mode(socket, group) in MODES[1:])
    where = f"group {group}" if group else "the host"
    if not yes and not typer.confirm(f"Set the mode of {where} to {mode}?", err=True):
        fail("not changed")
    answer = ask(socket, {"op": "promote", "mode": mode, "group": group})
    if as_json:
        put_json(answer | {name: told.as_json() for name, told in report.items()})
        return
    out.print(f"promoted to {answer['promoted']}, in effect: {answer['mode']}")
    if answer["stop_file"]:
        out.print("The stop file is present: the host observes until it is removed.")


def _mode(socket: Path, group: str) -> str:
    """The mode in effect now, of the host or of a group."""
    status = ask(socket, {"op": "status"})
    return str(status["groups"].get(group, status["mode"]))


def _replayed(socket: Path, since_ns: int, group: str) -> dict[str, ReplayReport]:
    """``recorded`` from the WOULD_STEER rows, ``replayed`` from the evidence of the same time."""
    # Here: the engine would make every other command wait.
    from fabricd.config.loader import Config
    from fabricd.operate.replay import EVIDENCE, recorded, replay

    config = Config.model_validate(ask(socket, {"op": "config"})["config"])
    told = [link for link in config.links if not group or link.group == group]
    if not told:
        fail(f'no group "{group}" in the configuration')
    netdevs = frozenset(link.netdev for link in told)
    now = time.time_ns()
    evidence = [row for kind in EVIDENCE for row in _rows(socket, since_ns, kind.value)]
    evidence.sort(key=lambda row: (row.wall_ns, row.seq or 0))
    would = [row for row in _rows(socket, since_ns, "would_steer") if row.link in netdevs]
    return {
        "recorded": recorded(would, len(config.links), now),
        "replayed": replay(config, evidence, now, netdevs),
    }


def _rows(socket: Path, since_ns: int, kind: str) -> list[Event]:
    query = {"op": "timeline", "kind": kind, "since_ns": since_ns, "limit": ROWS}
    return [Event.from_dict(row) for row in ask(socket, query)]


def _show(console: Console, report: dict[str, ReplayReport], since: str, *, steers: bool) -> None:
    """What steering would have done. ``steers``: it does it already."""
    then, now = report["recorded"], report["replayed"]
    taken = sum(episode.weight == 0 for episode in then.episodes)
    if steers:
        console.print("It steers already: what it did is on the timeline (--kind steer).")
    if then.episodes:
        console.print(f"In observe mode, steering would have done this since {since}:")
        console.print(_table(then.episodes))
        console.print(
            f"{then.transitions} changes, {taken} of them took traffic from a link; "
            f"at least {then.fewest} of {then.links} links carried throughout."
        )
    elif then.paths:
        console.print(f"In observe mode, steering would have left all links alone since {since}.")
    elif not steers:
        console.print(f"In observe mode, steering would have changed nothing since {since}.")
    console.print(
        f"The recorded evidence ({now.flaps} flaps) through today's rules: "
        f"{len(now.episodes)} times away, {age(sum(e.seconds for e in now.episodes))} in all, "
        f"{now.transitions} published transitions; "
        f"at least {now.fewest} of {now.links} links carried throughout."
    )
    if now.episodes and not then.episodes:
        console.print(_table(now.episodes))
    if then.paths or now.paths:
        console.print(
            f"Single paths avoided: {_total(then.paths)} as decided then, "
            f"{_total(now.paths)} by today's rules."
        )
        console.print(_table(then.paths or now.paths))


def _total(episodes: Sequence[Episode]) -> str:
    return f"{len(episodes)} times, {age(sum(e.seconds for e in episodes))} in all"


def _table(episodes: Sequence[Episode]) -> Table:
    rows = [
        (
            when(episode.begun_ns)[:19],
            episode.link + (f" → {episode.peer}" if episode.remote else ""),
            age(episode.seconds),
            f"{100 * episode.weight // 1000} %",
            episode.reason + (f" ({episode.remote})" if episode.remote else ""),
        )
        for episode in episodes[-SHOWN:]
    ]
    made = table(("from", "link", "for", "weight", "why"), rows, left="link")
    if len(episodes) > SHOWN:
        made.caption = f"{len(episodes) - SHOWN} earlier ones are not shown"
    return made


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog="Example: fabricctl promote steer --group backend")(promote)
