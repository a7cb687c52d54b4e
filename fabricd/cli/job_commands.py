"""``fabricctl top`` and ``fabricctl plugin``: what concerns jobs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from fabricd.cli import client, plugin_env, top
from fabricd.cli.base import one_line
from fabricd.config.loader import ConfigError, load

DEFAULT_CONFIG = Path("/etc/fabricd/fabricd.toml")
DEFAULT_RUN_DIR = Path("/run/fabricd")


def watch(
    socket: Path, interval_s: float, *, groups: bool, job: str, once: bool
) -> Iterator[tuple[list[top.Row], top.Document]]:
    """Rows, and the answer that they are from, once per interval.

    Raises:
        client.DaemonError: the daemon cannot be reached, or says no.
    """
    before = client.request(socket, {"op": "jobs"})
    while True:
        time.sleep(interval_s)
        after = client.request(socket, {"op": "jobs"})
        yield top.rows(before, after, groups=groups, job=job), after
        if once:
            return
        before = after


def show(
    out: Console,
    looks: Iterator[tuple[list[top.Row], top.Document]],
    *,
    groups: bool,
    as_json: bool,
) -> None:
    """Print every look: JSON lines, a table that stays in place, or (no terminal) one after one."""
    if as_json:
        for rows, answer in looks:
            document = {"rows": [row.as_json() for row in rows], "left_out": answer["left_out"],
                        "partial": answer.get("scan", {}).get("partial", "")}  # fmt: skip
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
        return
    if not out.is_terminal:
        for rows, answer in looks:
            out.print(_view(rows, top.missing(answer), groups=groups))
        return
    with Live(console=out, auto_refresh=False) as live:
        for rows, answer in looks:
            view = _view(rows, top.missing(answer), groups=groups)
            live.update(one_line(view), refresh=True)


def _view(rows: list[top.Row], note: str, *, groups: bool) -> Any:  # noqa: ANN401
    if not rows:
        return note or "No job uses the plugin on this host."
    return top.table(rows, groups=groups, note=note)


def run_dir_of(config: Path | None) -> Path:
    """``[paths] run_dir`` of the configuration; without a file the default.

    Raises:
        plugin_env.PluginError: the file is named but missing, or wrong.
    """
    path = config or DEFAULT_CONFIG
    if config is None and not path.exists():
        return DEFAULT_RUN_DIR
    try:
        return Path(load(path, shared_peers=False).paths.run_dir)
    except ConfigError as error:
        raise plugin_env.PluginError(str(error.problems[0])) from error


def plugin_lines(
    form: str, library: Path | None, config: Path | None, *, by_name: bool, job: str
) -> str:
    """What ``fabricctl plugin env`` prints.

    Raises:
        plugin_env.PluginError: with a text for the operator.
    """
    run_dir = run_dir_of(config)
    found = plugin_env.find_library(library)
    env = plugin_env.variables(found, run_dir, by_name=by_name, job=job)
    return plugin_env.render(form, env, plugin_env.mounts(found, run_dir))


def known_format(form: str) -> str:
    """The format, when there is such a one.

    Raises:
        typer.BadParameter: there is not.
    """
    if form not in plugin_env.FORMATS:
        raise typer.BadParameter(f'"{form}"; allowed: {", ".join(plugin_env.FORMATS)}')
    return form


Interval = Annotated[
    float, typer.Option("--interval", "-i", min=0.1, max=3600, help="Seconds between two looks.")
]
Once = Annotated[bool, typer.Option("--once", help="One table, then end.")]
Groups = Annotated[
    bool, typer.Option("--groups", "-g", help="By peer and direction instead of by rail.")
]
JobPrefix = Annotated[str, typer.Option("--job", help="Only jobs whose name begins so.")]
Format = Annotated[
    str, typer.Option("--format", callback=known_format, help="sh, slurm, k8s, docker or json.")
]
Library = Annotated[Path | None, typer.Option("--library", help="Another library than ours.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The daemon's configuration, for its run_dir.")
]
ByName = Annotated[
    bool,
    typer.Option("--by-name", help="For a NCCL or RCCL that takes a name and a search path only."),
]
JobName = Annotated[str, typer.Option("--job", help="Set FABRIC_JOB: the name in fabricctl top.")]
