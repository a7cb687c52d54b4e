"""``fabricctl doctor``: what on this host keeps RDMA, the plugin or a job from working well."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fabricd.cli.base import DEFAULT_CONFIG, Json, prose_width, put, put_json
from fabricd.cli.check_command import CheckCommand


def doctor(
    as_json: Json = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Notes in full; GID tables of all ports.")
    ] = False,
    pid: Annotated[
        list[int] | None,
        typer.Option("--pid", min=1, help="Look at this process's variables too; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Run this check alone; repeatable.")
    ] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="Name the checks and end.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="What could not be looked at ends with 3.")
    ] = False,
    config: Annotated[
        Path, typer.Option("--config", help="The daemon's configuration: it names the rails.")
    ] = DEFAULT_CONFIG,
    library: Annotated[
        Path | None, typer.Option("--library", help="Another plugin library than ours.")
    ] = None,
    root: Annotated[
        Path, typer.Option("--root", help="Files alone, below this directory: a copied /sys, /proc")
    ] = Path("/"),
) -> None:
    """Look for what breaks RDMA and jobs here; needs no daemon. Exit status as of `check`."""
    from fabricd.doctor.checks import CHECKS, run  # heavy, and needed here alone
    from fabricd.doctor.gather import GatherOptions, gather
    from fabricd.doctor.machine import AbsentMachine, ThisMachine
    from fabricd.doctor.report import lines, port_lines
    from fabricd.doctor.tree import Tree

    names = [check.name for check in CHECKS]
    if list_checks:
        for check in CHECKS:
            put(f"{check.name:<18} {check.title}")
        raise typer.Exit(0)
    for name in only or []:
        if name not in names:
            raise typer.BadParameter(f'"{name}"; allowed: {", ".join(names)}', param_hint="--only")
    machine = ThisMachine() if root == Path("/") else AbsentMachine()
    facts = gather(Tree(root), machine, GatherOptions(config, library, tuple(pid or ())))
    report = run(facts, tuple(only or ()))
    if as_json:
        put_json(report.document(strict=strict) | {"facts": facts.document()})
    else:
        if verbose:
            for line in port_lines(facts):
                put(line)
        for line in lines(report, verbose=verbose, width=prose_width()):
            put(line)
    raise typer.Exit(int(report.level(strict=strict)))


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(cls=CheckCommand, epilog="Example: fabricctl doctor --pid 4711")(doctor)
