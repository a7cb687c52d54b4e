"""``./run lab vm``: an RDMA cluster in virtual machines, by hand."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lab.lifecycle.owner_start import start_owner
from lab.lifecycle.procs import end_all
from lab.lifecycle.registry import LabError
from lab.node import build_dir
from lab.topology import TopologyError
from lab.vm.rdma import client, console, registry

app = typer.Typer(
    help="An RDMA cluster in virtual machines: soft-RoCE on every rail.\n\n"
    "Example: ./run lab vm up; ./run lab vm bw h0:rail0 h1; "
    "./run lab vm fault roce-drop h1:rail0 --seconds 3; ./run lab vm down",
    no_args_is_help=True,
)
out = Console(soft_wrap=True, highlight=False)
KINDS = ("namespaces", "pair")
DOWN_S = 20

Name = Annotated[str, typer.Option("--name", help="Name of the lab.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
Seconds = Annotated[float, typer.Option(min=1, help="Time limit, kept by the guest.")]
_PASS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command()
def up(
    name: Name = "rdma",
    kind: Annotated[
        str, typer.Option(help="namespaces: one machine, newer kernel; pair: two, Debian's own.")
    ] = "namespaces",
    hosts: Annotated[int, typer.Option(min=2, max=8, help="Of namespaces; a pair has 2.")] = 4,
    rails: Annotated[int, typer.Option(min=1, max=4, help="NICs of a host.")] = 2,
    mtu: Annotated[int, typer.Option(help="Of the rails; 4500 makes the active MTU 4096.")] = 1500,
    payload: Annotated[
        Path | None, typer.Option(help="Build directory to put in; default build/release.")
    ] = None,
) -> None:
    """Boot a lab; it stays until ``lab vm down``."""
    if kind not in KINDS:
        raise TopologyError(f"kind '{kind}': {' or '.join(KINDS)}")
    build = (payload or build_dir()).resolve()
    began = time.monotonic()
    asked = {"name": name, "kind": kind, "hosts": hosts, "rails": rails, "mtu": mtu}
    asked["build"] = str(build)
    pid, answer = start_owner("lab.vm.rdma.owner", asked)
    if not answer["ok"]:
        raise LabError(str(answer["error"]))
    shown = 2 if kind == "pair" else hosts
    out.print(
        f"RDMA lab {name}: {shown} hosts × {rails} rails ({kind}) up in "
        f"{time.monotonic() - began:.0f} s, owner pid {pid}, payload {build}"
    )


@app.command()
def down(name: Name = "rdma") -> None:
    """End the machines and remove the lab."""
    info = registry.load(name)
    if info is None or not info.owner.alive:
        raise LabError(f"no RDMA lab '{name}'")
    end_all([info.owner], grace_s=DOWN_S)
    out.print(f"RDMA lab {name}: down")


@app.command()
def push(
    build: Annotated[Path | None, typer.Argument(help="Default build/release.")] = None,
    name: Name = "rdma",
) -> None:
    """Put plugin and fabric-perf of another build directory into the running guests."""
    chosen = (build or build_dir()).resolve()
    client.ask(name, "push", build=str(chosen))
    out.print(f"RDMA lab {name}: payload {chosen}")


@app.command(context_settings=_PASS)
def ssh(
    host: Annotated[str, typer.Argument(help="h0")],
    command: Annotated[
        list[str] | None, typer.Argument(help="After --; without one: a shell.")
    ] = None,
    name: Name = "rdma",
    timeout: Seconds = 600,
) -> None:
    """Run a command on a host, or open a shell there: ./run lab vm ssh h0 -- rdma link."""
    words = list(command or [])
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        console.attach(registry.ready(name), host, client.ask(name, "status")["consoles"])
        return
    done = client.ask(name, "run", host=host, argv=words, timeout=timeout, stdin="")
    sys.stdout.write(done["out"])
    sys.stderr.write(done["err"])
    raise SystemExit(done["rc"] if done["rc"] >= 0 else 128 - done["rc"])


@app.command()
def fault(
    kind: Annotated[str, typer.Argument(help="Such as roce-drop; ./run lab vm faults lists all.")],
    target: Annotated[str, typer.Argument(help="h1:rail0, h1 or leaf0.")],
    name: Name = "rdma",
    seconds: Annotated[float, typer.Option(min=0, help="How long; 0: until Ctrl-C.")] = 5.0,
    option: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A parameter: percent=10, mtu=640.")
    ] = None,
) -> None:
    """Inject a fault and wait for its end. Several at once: several of these commands.

    Example: ./run lab vm fault netem h1:rail0 --set "spec=delay 5ms" --seconds 10
    """
    parameters = dict(parameter(text) for text in option or [])

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    fields = {"kind": kind, "target": target, "seconds": seconds, "parameters": parameters}
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with client.request(name, "fault", **fields) as answers:
            for number, answer in enumerate(answers):
                phase = "ended" if number else "started"
                out.print(f"{kind} {target}: {phase} (id {answer['id']}, {answer['guest_ns']})")
    except KeyboardInterrupt:
        out.print(f"{kind} {target}: ended by a signal")
    finally:
        signal.signal(signal.SIGTERM, before)
    out.print(f"ground truth in {registry.ready(name).dir.truth}")


def parameter(text: str) -> tuple[str, object]:
    """``percent=10`` to a name and a number, or a text. Pure."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise TopologyError(f"--set '{text}': NAME=VALUE")
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value


@app.command()
def faults(kind: Annotated[str, typer.Option(help="namespaces or pair.")] = "namespaces") -> None:
    """All faults, their targets and what they do."""
    from lab.vm.rdma.faults import known

    if kind not in KINDS:
        raise TopologyError(f"kind '{kind}': {' or '.join(KINDS)}")
    table = Table("fault", "what happens", box=None)
    for word, made in known("pair" if kind == "pair" else "namespaces").items():
        table.add_row(word, (made.__doc__ or "").split("\n\n")[0])
    out.print(table)


@app.command()
def status(name: Name = "rdma", as_json: AsJson = False) -> None:
    """Devices of all hosts and the faults in force."""
    found = client.ask(name, "status")
    if as_json:
        print(json.dumps(found))
        return
    table = Table("host", "device", "state", "NIC", box=None)
    for row in found["hosts"]:
        for device in row["devices"] or [{}]:
            state = device.get("state", row["error"] or "no device")
            table.add_row(row["host"], device.get("ifname", ""), state, device.get("netdev", ""))
    out.print(table)
    for item in found["faults"]:
        out.print(f"in force: {item['fault']} {item['target']} (id {item['id']})")


@app.command()
def bw(
    source: Annotated[str, typer.Argument(help="h0:rail0: who writes, and on which rail.")],
    target: Annotated[str, typer.Argument(help="h1: who is written to.")],
    name: Name = "rdma",
    size: Annotated[int, typer.Option(help="Bytes of a message.")] = 65536,
    count: Annotated[int, typer.Option(help="Messages.")] = 200,
) -> None:
    """``ib_write_bw`` between two hosts."""
    row = _perftest(name, "ib_write_bw", source, target, size, count)
    out.print(f"{row['size']} bytes × {row['count']}: {row['gbps'] * 1000:.1f} Mbit/s")


@app.command()
def lat(
    source: Annotated[str, typer.Argument(help="h0:rail0: who writes, and on which rail.")],
    target: Annotated[str, typer.Argument(help="h1: who is written to.")],
    name: Name = "rdma",
    size: Annotated[int, typer.Option(help="Bytes of a message.")] = 8,
    count: Annotated[int, typer.Option(help="Messages.")] = 500,
) -> None:
    """``ib_write_lat`` between two hosts: half round trips."""
    row = _perftest(name, "ib_write_lat", source, target, size, count)
    typical, p99 = row["typical_us"], row["p99_us"]
    out.print(f"{row['size']} bytes × {row['count']}: typical {typical:.1f} µs, p99 {p99:.1f} µs")


def _perftest(
    name: str, program: str, source: str, target: str, size: int, count: int
) -> dict[str, Any]:
    return client.ask(
        name, "perftest", program=program, source=source, target=target, size=size, count=count
    )


@app.command(context_settings=_PASS)
def perf(
    collective: Annotated[str, typer.Argument(help="p2p, ring or alltoall.")],
    args: Annotated[list[str] | None, typer.Argument(help="Of fabric-perf.")] = None,
    name: Name = "rdma",
    host: Annotated[list[str] | None, typer.Option(help="h0, again for each; all.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, again for each.")] = None,
    timeout: Seconds = 300,
) -> None:
    """``fabric-perf`` with the payload's plugin, a rank per host.

    Options come before the collective: ./run lab vm perf --host h0 --host h1 p2p --iters 20
    """
    variables = dict(text.partition("=")[::2] for text in env or [])
    fields: dict[str, Any] = {"collective": collective, "args": list(args or [])}
    fields |= {"hosts": host or [], "env": variables, "timeout": timeout}
    ranks = client.ask(name, "perf", **fields)["ranks"]
    for rank in ranks:
        print(json.dumps(rank))
    raise SystemExit(max(abs(rank["status"]) for rank in ranks))


@app.command()
def dmesg(name: Name = "rdma") -> None:
    """New reports of faults in the guests' kernel logs; status 1 when there are any."""
    lines = client.ask(name, "kernel_faults")["lines"]
    print("\n".join(lines) if lines else "no kernel faults")
    raise SystemExit(1 if lines else 0)
