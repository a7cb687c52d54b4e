"""``./run bench NAME [--quick]``: one table, and ``bench/results/NAME.json``."""

from __future__ import annotations

import importlib
import time
from typing import Annotated

import typer

from bench.report import publish

BENCHES = {
    "failover": "NIC faults under a ring all-reduce: time to a survivor, throughput, flap counts",
}


def main(
    name: Annotated[str, typer.Argument(help="one of: " + ", ".join(BENCHES))],
    quick: Annotated[bool, typer.Option("--quick", help="fewer rounds; under 5 minutes")] = False,
) -> None:
    """Run one benchmark. Example: sudo ./run bench failover --quick."""
    if name not in BENCHES:
        listing = "\n".join(f"  {key:10} {text}" for key, text in BENCHES.items())
        typer.echo(f"no benchmark '{name}'; there are:\n{listing}", err=True)
        raise typer.Exit(2)
    began = time.monotonic()
    rows = importlib.import_module(f"bench.{name}").run(quick=quick)
    if not publish(name, rows, quick=quick, seconds=time.monotonic() - began):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
