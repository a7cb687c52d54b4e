"""``./run lab``: bring labs up and down, look at them, break them.

Exit status: 0 done, 1 it could not be done (the reason is printed), 2 the command makes no sense.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from enum import StrEnum
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from lab.faults import catalog
from lab.faults.catalog import Direction, Fault, Flap, Site
from lab.faults.reap import reap
from lab.lifecycle import procs, registry
from lab.lifecycle.owner_start import start_owner
from lab.lifecycle.registry import LabError
from lab.network import netns
from lab.node import Node
from lab.observe.status import LabStatus, read_status
from lab.topology import HostTarget, SwitchTarget, Topology, TopologyError, parse_rate
from lab.vm.rdma import cli as rdma_cli
from lab.vm.wire import VmError

app = typer.Typer(
    help="A cluster of network namespaces on one machine.\n\n"
    "Example: ./run lab up --hosts 2 --rails 2; ./run lab fault carrier h0:rail1 --seconds 3; "
    "./run lab down",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(rdma_cli.app, name="vm")
out = Console(soft_wrap=True, highlight=False)

Name = Annotated[str, typer.Option("--name", help="Name of the lab.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable.")]


class Kind(StrEnum):
    """Faults of the command line."""

    CARRIER = "carrier"
    ADMIN = "admin"
    FLAP = "flap"
    BLACKHOLE = "blackhole"
    LOSS = "loss"
    RESET = "reset"
    ADDRESS = "address"
    LEAF = "leaf"
    SPINE = "spine"
    KILL = "kill"
    FREEZE = "freeze"


class Way(StrEnum):
    """Directions as the host sees them."""

    TX = "tx"
    RX = "rx"
    BOTH = "both"


def fail(text: str, status: int) -> NoReturn:
    """Say why and leave."""
    print(f"lab: {text}", file=sys.stderr)
    raise SystemExit(status)


def need_root() -> None:
    """Labs are made of network namespaces."""
    if os.geteuid() != 0:
        fail("needs root: sudo ./run lab …", 1)


@app.command()
def up(
    name: Name = "lab",
    hosts: Annotated[int, typer.Option(help="Hosts, 1 to 64.")] = 4,
    rails: Annotated[int, typer.Option(help="Rails (NICs of a host), 1 to 16.")] = 4,
    rate: Annotated[
        str, typer.Option(help="Of every host link: 500mbit, 1gbit, none.")
    ] = "500mbit",
    rail_only: Annotated[bool, typer.Option("--rail-only", help="No spines.")] = False,
    daemons: Annotated[bool, typer.Option(help="Run prober and fabricd on every host.")] = True,
) -> None:
    """Bring a lab up; it stays until ``lab down``."""
    need_root()
    topology = Topology(
        name=name,
        hosts=hosts,
        rails=rails,
        spines=0 if rail_only else 2,
        rate_bps=parse_rate(rate),
    )
    began = time.monotonic()
    asked = {"topology": dataclasses.asdict(topology), "daemons": daemons}
    pid, answer = start_owner("lab.lifecycle.owner", asked)
    if not answer["ok"]:
        fail(str(answer["error"]), 1)
    seconds = time.monotonic() - began
    out.print(
        f"lab {name}: {hosts} hosts × {rails} rails up in {seconds:.1f} s, "
        f"owner pid {pid}, files in {registry.LabDir(name).root}"
    )


@app.command()
def down(name: Name = "lab") -> None:
    """Take a lab down, whoever started it; everything of it is removed."""
    need_root()
    info = registry.load(name)
    if info is None and name not in registry.names():
        fail(f"no lab '{name}' (labs: {', '.join(registry.names()) or 'none'})", 1)
    began = time.monotonic()
    if info is not None and info.owner.signal(signal.SIGTERM):
        while info.owner.alive and time.monotonic() < began + 8:
            time.sleep(0.01)
        if info.owner.signal(signal.SIGKILL):
            procs.end_all([info.owner])
    registry.release(name)
    out.print(f"lab {name}: down in {time.monotonic() - began:.1f} s")


@app.command()
def clean() -> None:
    """Remove labs whose owner is gone."""
    need_root()
    cleaned = registry.clean_stale()
    out.print(f"removed: {', '.join(cleaned)}" if cleaned else "nothing to remove")


@app.command("list")
def list_labs(as_json: AsJson = False) -> None:
    """All labs of this machine."""
    rows: list[dict[str, str | int | None]] = []
    for name in registry.names():
        info = registry.load(name)
        if info is None:
            rows.append(
                {"name": name, "state": "stale", "hosts": None, "rails": None, "owner": None}
            )
            continue
        rows.append(
            {
                "name": name,
                "state": "stale" if info.stale else info.state,
                "hosts": info.topology.hosts,
                "rails": info.topology.rails,
                "owner": info.owner.pid,
            }
        )
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("lab", "state", "hosts", "rails", "owner pid", box=None)
    for row in rows:
        table.add_row(*(str(v) if v is not None else "?" for v in row.values()))
    out.print(table if rows else "no labs")


@app.command()
def status(name: Name = "lab", as_json: AsJson = False) -> None:
    """Ports, faults in force and processes of a lab."""
    need_root()
    found = read_status(registry.ready(name))
    if as_json:
        print(json.dumps(dataclasses.asdict(found)))
        return
    _print_status(found)


def _print_status(found: LabStatus) -> None:
    out.print(f"lab {found.name}: {found.hosts} hosts × {found.rails} rails, {found.spines} spines")
    table = Table("host", *(f"rail{r}" for r in range(found.rails)), "processes", box=None)
    for host in found.host_rows:
        cells = [f"{p.state} ({p.carrier_downs} downs)" for p in host.ports]
        table.add_row(host.name, *cells, ", ".join(host.processes) or "-")
    out.print(table)
    for fault in found.faults:
        out.print(f"in force: {fault['fault']} {fault['target']} (id {fault['id']})")


@app.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def execute(
    host: Annotated[str, typer.Argument(help="h0, or leaf0, spine1.")],
    command: Annotated[list[str], typer.Argument(help="After --: the command.")],
    name: Name = "lab",
) -> None:
    """Run a command in a host (or switch): ./run lab exec h0 -- ping -c1 10.0.0.2."""
    need_root()
    info = registry.ready(name)
    target = info.topology.target(host)
    if command[:1] == ["--"]:
        command = command[1:]
    if isinstance(target, HostTarget):
        node = Node(Site(info.topology, info.dir), target.host)
        ns, env = node.ns, node.env({"FABRIC_CTL_SOCKET": str(node.run_dir / "ctl.sock")})
    elif isinstance(target, SwitchTarget):
        ns, env = info.topology.ns(target.role, target.index), dict(os.environ)
    else:
        raise TopologyError(f"'{host}' is a port; exec takes h0, leaf0 or spine0")
    if not netns.exists(ns):
        fail(f"namespace {ns} is gone", 1)
    os.execvpe("ip", ["ip", "netns", "exec", ns, *command], env)


@app.command()
def fault(
    kind: Annotated[Kind, typer.Argument(help="What happens.")],
    target: Annotated[str, typer.Argument(help="h1:rail2, h2, leaf0 or spine1.")],
    name: Name = "lab",
    seconds: Annotated[
        float, typer.Option(min=0, help="How long; 0: until Ctrl-C. A flap ends by itself.")
    ] = 5.0,
    after: Annotated[float, typer.Option(min=0, help="Wait so long before.")] = 0.0,
    direction: Annotated[
        Way, typer.Option(help="blackhole, loss: as the host sees it.")
    ] = Way.BOTH,
    percent: Annotated[float, typer.Option(help="loss: share of packets.")] = 10.0,
    period_ms: Annotated[float, typer.Option(help="flap: one cycle.")] = 200.0,
    duty: Annotated[float, typer.Option(help="flap: share of a cycle spent down.")] = 0.5,
    count: Annotated[int, typer.Option(help="flap: cycles.")] = 20,
) -> None:
    """Inject a fault and wait for its end. Several at once: several of these commands.

    Example: ./run lab fault blackhole h1:rail2 --direction rx --seconds 3
    """
    need_root()
    info = registry.ready(name)
    site = Site(info.topology, info.dir)
    reap(site)
    way: Direction = direction.value
    made: Fault
    match kind:
        case Kind.CARRIER:
            made = catalog.Carrier(target)
        case Kind.ADMIN:
            made = catalog.AdminDown(target)
        case Kind.FLAP:
            made = Flap(target, period_ms, count, duty)
        case Kind.BLACKHOLE:
            made = catalog.BlackHole(target, way)
        case Kind.LOSS:
            made = catalog.Loss(target, percent, way)
        case Kind.RESET:
            made = catalog.ResetStorm(target)
        case Kind.ADDRESS:
            made = catalog.AddressRemoved(target)
        case Kind.LEAF:
            made = catalog.LeafDown(target)
        case Kind.SPINE:
            made = catalog.SpineDown(target)
        case Kind.KILL:
            made = catalog.NodeKill(target)
        case Kind.FREEZE:
            made = catalog.NodeFreeze(target)
    _inject(site, made, after, seconds)


def _inject(site: Site, made: Fault, after: float, seconds: float) -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    made.arm(site)
    try:
        if stop.wait(after):
            return
        made.start()
        out.print(f"{made.kind} {made.target_text}: started (id {made.id})")
        if isinstance(made, Flap):
            while made.running and not stop.wait(0.02):
                pass
        else:
            stop.wait(seconds or None)
    finally:
        try:
            made.end()
        except OSError as error:
            fail(f"lab '{site.topology.name}' went down while the fault was in force ({error})", 1)
        made.close()
    out.print(f"{made.kind} {made.target_text}: ended; ground truth in {site.dir.truth}")


def main() -> None:
    """Entry point; errors of ours are one line, not a traceback."""
    try:
        app()
    except TopologyError as error:
        fail(str(error), 2)
    except (LabError, VmError, OSError) as error:
        fail(str(error), 1)
