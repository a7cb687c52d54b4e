"""``fabricctl plugin check``: this host's plugin and verbs, or those of all hosts of a job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fabricd.cli.base import (
    DEFAULT_CONFIG,
    Json,
    out,
    parse_duration,
    prose_width,
    put,
    put_json,
)

Hosts = Annotated[
    str, typer.Option("--hosts", help="h1,h2,…: ask all of them, and compare their answers.")
]
Via = Annotated[
    str | None,
    typer.Option(help="How to run there: 'srun -N1 -w {host}', or 'srun -N4' for all at once."),
]
Command = Annotated[str, typer.Option(help="How fabricctl is called there.")]
Timeout = Annotated[str, typer.Option(help="For each host: 30s.")]
Mixed = Annotated[
    bool, typer.Option("--allow-mixed", help="Warn of older versions and hosts without verbs.")
]
Library = Annotated[Path | None, typer.Option("--library", help="Another library than ours.")]
Config = Annotated[Path, typer.Option("--config", help="The daemon's configuration.")]


def plugin_check(
    hosts: Hosts = "",
    via: Via = None,
    command: Command = "fabricctl",
    timeout: Timeout = "30s",
    allow_mixed: Mixed = False,
    library: Library = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """May these hosts run a job together? 0 yes, 1 warning, 2 refused, 3 no answer of some."""
    from fabricd.plugincheck import compare, reach  # heavy, and needed here alone

    if not hosts:
        answer = _own(library, config)
        judgement = compare.judge({answer.host: answer}, allow_mixed=allow_mixed)
        if as_json:
            put(answer.line())
        else:
            _show(judgement)
        raise typer.Exit(int(judgement.level))
    try:
        names = reach.host_names(hosts)
        there = [*shlex.split(command), "plugin", "check", "--json"]
        there += ["--library", str(library)] if library else []
        reach.command_for(names[0], via, there)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    judgement = compare.judge(
        reach.query_hosts(names, via, there, parse_duration(timeout)), allow_mixed=allow_mixed
    )
    if as_json:
        put_json(judgement.document())
    else:
        _show(judgement)
    raise typer.Exit(int(judgement.level))


def _own(library: Path | None, config: Path) -> Any:  # noqa: ANN401 - imported where needed
    from fabricd.doctor.gather import GatherOptions, gather_for_job
    from fabricd.doctor.machine import ThisMachine
    from fabricd.doctor.tree import Tree
    from fabricd.plugincheck.answer import local_answer

    return local_answer(gather_for_job(Tree(), ThisMachine(), GatherOptions(config, library)))


def _show(judgement: Any) -> None:  # noqa: ANN401 - imported where needed
    from fabricd.doctor.report import finding_lines
    from fabricd.plugincheck.compare import DOCS
    from fabricd.views.host_check import Level

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("host", "plugin", "wire", "verbs", "rails"):
        table.add_column(name, overflow="fold")
    for cells in _cells(judgement.hosts):
        table.add_row(*(Text(cell) for cell in cells))
    out.print(table)
    put("")
    for finding in judgement.findings:
        for line in finding_lines(finding, DOCS, prose_width()):
            put(line)
    word = {Level.OK: "these hosts may run a job together", Level.WARNING: "they may, with care",
            Level.CRITICAL: "refused", Level.UNKNOWN: "not all hosts answered"}  # fmt: skip
    put(f"{judgement.level.name}: {word[judgement.level]}")


def _cells(hosts: Any) -> Iterator[tuple[str, ...]]:  # noqa: ANN401 - imported where needed
    for host, answer in hosts.items():
        if isinstance(answer, str):
            yield host, "?", "?", "?", "?"
            continue
        plugin = answer.plugin
        wire = f"{plugin.wire_min} to {plugin.wire_max}" if plugin.wire_max else "?"
        kinds = sorted({port.link_layer for port in answer.usable})
        verbs = f"{len(answer.usable)} {' and '.join(kinds)}" if kinds else "none"
        release = "none" if plugin.problem else plugin.release or "unknown"
        yield host, release, wire, verbs, str(len(answer.rails))
