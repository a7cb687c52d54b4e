"""``./run bench NAME [--quick]``: one table, and ``bench/results/NAME.json``."""

from __future__ import annotations

import importlib
import inspect
import json
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated

import typer

from bench.report import RESULTS, Lap, Row, markdown, show, store

BENCHES = {
    "counters": "a sweep over all counters of eight links: CPU of the daemon",
    "failover": "NIC faults under a ring all-reduce: time to a survivor, throughput, flap counts",
    "detect": "link health: flaps, faults beside FRR bfdd, false alarms, loss, simulations, optics",
    "clock": "fabric time beside ptp4l and chronyd: errors, bound, lost reference, holdover, Clos",
    "migrate": "ranks that die: time to the next commit, exactness, cost, torchft and torchrun",
    "plugin": "the plugin beside iperf3 and bare sockets: throughput, latency, CPU, stalls, memory",
    "peers": "a list of 2,048 peers: CPU of check, start and reload, and what waits meanwhile",
    "attack": "hosts, users and jobs that do harm, and everybody else beside them",
    "verbs": "the plugin over RDMA beside ib_write_bw and ib_write_lat, in the same guests",
}

Part = Callable[..., list[Row]]
"""Called with ``quick``, and with ``minutes`` where it takes that."""


def chosen(name: str, parts: Mapping[str, object], only: str) -> list[str]:
    """The parts that ``only`` names (all when it is empty), in their own order.

    Raises:
        typer.BadParameter: there is none of that name.
    """
    wanted = {word.strip() for word in only.split(",") if word.strip()}
    if unknown := wanted - set(parts):
        known = "its parts are " + ", ".join(parts) if parts else "it has no parts"
        raise typer.BadParameter(f"bench {name} has no '{min(unknown)}': {known}")
    return [part for part in parts if part in wanted or not wanted]


def run_parts(
    bench: str,
    parts: Mapping[str, Part],
    names: list[str],
    *,
    quick: bool,
    minutes: float | None = None,
    lasts: Mapping[str, float] | None = None,
) -> tuple[list[Row], list[str]]:
    """The rows of the parts, and the parts that failed.

    Each is stored when it is done: a later one that fails takes no result away. ``lasts``: minutes
    that each takes in full, on two cores.
    """
    rows: list[Row] = []
    failed: list[str] = []
    known = {part: lasts[part] for part in names if part in lasts} if lasts and not quick else {}
    if known and not minutes:
        print(f"bench: about {sum(known.values()):.0f} minutes", file=sys.stderr, flush=True)
    for part in names:
        about = f", about {known[part]:.0f} min" if part in known else ""
        print(f"bench: {part}{about}", file=sys.stderr, flush=True)
        lap = Lap()
        timed = minutes and "minutes" in inspect.signature(parts[part]).parameters
        more = {"minutes": minutes} if timed else {}
        try:
            taken = [replace(row, part=part) for row in parts[part](quick=quick, **more)]
        except Exception:
            traceback.print_exc()
            failed.append(part)
            continue
        rows += store(bench, taken, quick=quick, lap=lap, part=part, order=list(parts))
    return rows, failed


def main(
    name: Annotated[str, typer.Argument(help="one of: " + ", ".join(BENCHES))],
    quick: Annotated[bool, typer.Option("--quick", help="fewer rounds; under 5 minutes")] = False,
    only: Annotated[
        str, typer.Option("--only", help="parts, with commas between; other rows stay in the file")
    ] = "",
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0.1, help="of parts that watch for a time: false, damping"),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="measure nothing: the last results as Markdown")
    ] = False,
) -> None:
    """Run one benchmark. Example: sudo ./run bench plugin --quick --only bulk,pingpong."""
    if name not in BENCHES:
        listing = "\n".join(f"  {key:10} {text}" for key, text in BENCHES.items())
        typer.echo(f"no benchmark '{name}'; there are:\n{listing}", err=True)
        raise typer.Exit(2)
    if table:
        typer.echo(markdown(json.loads((RESULTS / f"{name}.json").read_text())), nl=False)
        return
    # What a part has started or mounted ends with it, also where somebody ends the benchmark.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    module = importlib.import_module(f"bench.{name}")
    parts: Mapping[str, Part] = getattr(module, "PARTS", {})
    names = chosen(name, parts, only)
    failed: list[str] = []
    if parts:
        lasts: Mapping[str, float] = getattr(module, "MINUTES", {})
        rows, failed = run_parts(name, parts, names, quick=quick, minutes=minutes, lasts=lasts)
    else:
        lap = Lap()
        rows = module.run(quick=quick)
        rows = store(name, rows, quick=quick, lap=lap)
    ok = show(name, rows, quick=quick)
    if failed:
        typer.echo(f"not measured, because it failed: {', '.join(failed)}", err=True)
    if failed or not ok:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
