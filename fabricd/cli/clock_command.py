"""``fabricctl clock``: fabric time on this host, in the words of `chronyc tracking`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from clocksync.page.clock_page import ClockError, ClockReader, State
from clocksync.page.tai_page import TaiReader
from fabricd.cli import tables
from fabricd.cli.base import Json, fail, out, parse_duration, put_json, why
from fabricd.cli.host_names import host_names

RunDir = Annotated[
    Path, typer.Option("--run-dir", envvar="FABRIC_RUN_DIR", help="Where the clock page lies.")
]
DEFAULT_RUN_DIR = Path("/run/fabricd")


Paths = Annotated[
    bool, typer.Option("--paths", help="One-way delays in fabric time, source ports and moves.")
]


Wait = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="DURATION",
        help="First wait until it is locked, at most so long (90s; 0s: look once), else status 1.",
    ),
]
MostBound = Annotated[
    float | None,
    typer.Option("--max-bound", metavar="US", min=0.0, help="With --wait: and within so many us."),
]
LOOK_S = 0.1


def clock(
    run_dir: RunDir = DEFAULT_RUN_DIR, paths: Paths = False, as_json: Json = False,
    wait: Wait = None, max_bound: MostBound = None, form: tables.Output = None,
) -> None:  # fmt: skip
    """Fabric time on this host: whose it is, how sure, and what the paths say.

    As a job's first step: fabricctl clock --wait 60s --max-bound 5.
    """
    if max_bound is not None and wait is None:
        raise typer.BadParameter("goes with --wait", param_hint="--max-bound")
    if max_bound is not None and not math.isfinite(max_bound):
        raise typer.BadParameter("no number of microseconds", param_hint="--max-bound")
    if wait is not None:
        until_locked(run_dir, parse_duration(wait), max_bound)
    said = read(run_dir)
    try:
        with ClockReader(run_dir) as reader:
            now = reader.now()
        said["page"] = {
            "state": now.state.name.lower(), "fabric_ns": now.ns, "bound_ns": now.bound_ns,
            "reference": now.reference, "epoch": now.epoch,
        }  # fmt: skip
    except ClockError as error:
        said["page"] = {"state": "unsynced", "why": str(error)}
    said["probes"] = probes(run_dir)
    said["tai"] = page_of_tai(run_dir)
    if not tables.as_text(form, as_json=as_json):
        put_json(said)
        return
    said["names"] = host_names(run_dir / "ctl.sock")
    for name, text in [*tracking(said), *traced(said), *steered(said)]:
        out.print(f"{name:<16}: {text}", soft_wrap=True)
    if said["paths"]:
        rows = [path | {"name": _host(said, path["host"])} for path in said["paths"]]
        wide = form is tables.Form.WIDE
        made = ways(rows, wide=wide) if paths else sources(rows, wide=wide)
        tables.put_table(made, wide=wide)
    for one in said.get("phcs", ()):
        out.print(nic_clock(one), soft_wrap=True)
    if said.get("ptp"):
        out.print(masters(said["ptp"]["masters"]))


def until_locked(run_dir: Path, most_s: float, max_bound_us: float | None) -> None:
    """Wait; ends the program with status 1 when it takes longer, and says what is amiss."""
    end = time.monotonic() + most_s
    while amiss := missing(run_dir, max_bound_us):
        left = end - time.monotonic()
        if left <= 0:
            fail(f"no fabric time that will do after {most_s:g} s: {amiss}")
        time.sleep(min(LOOK_S, left))


def missing(run_dir: Path, max_bound_us: float | None) -> str:
    """What keeps the page from being locked, and within that bound; empty: nothing."""
    try:
        with ClockReader(run_dir) as reader:
            now = reader.now()
    except ClockError as error:
        return str(error)
    if now.state is not State.LOCKED:
        return f"{now.state.name.lower()}, within {_ns(now.bound_ns)}"
    if max_bound_us is not None and now.bound_ns > 1e3 * max_bound_us:
        return f"locked, but within {_ns(now.bound_ns)} only"
    return ""


def read(run_dir: Path) -> dict[str, Any]:
    """What the clock service left beside its page; ends the program when there is nothing."""
    from fabricd.clock import status_reader

    try:
        return status_reader.read(run_dir)
    except OSError as error:
        fail(f"{why(error)} (is fabric-clock running?)")
    except ValueError as error:
        fail(str(error))


def probes(run_dir: Path) -> str:
    """By which time this host's probes go: ``fabric``, ``wall``, or ``none`` without a prober."""
    from fabricd.probes.ring import RingError, RingReader

    try:
        with RingReader(run_dir / "prober" / "ring") as ring:
            header = ring.header()
    except (OSError, RingError):
        return "none"
    if not header.running:
        return "none"
    return "fabric" if header.synchronized else "wall"


def _host(said: dict[str, Any], number: int) -> str:
    """A host's name, or its number where nobody knows the name."""
    name = said.get("names", {}).get(number)
    return name if name is not None else f"host {number:08x}"


def page_of_tai(run_dir: Path) -> dict[str, Any]:
    """What the page of TAI says now."""
    try:
        with TaiReader(run_dir) as reader:
            now = reader.now()
    except ClockError as error:
        return {"state": "unsynced", "why": str(error)}
    source = now.source
    return {
        "state": now.state.name.lower(), "tai_ns": now.ns, "bound_ns": now.bound_ns,
        "utc_ns": now.utc_ns, "host": now.host, "epoch": now.epoch,
        "grandmaster": f"{source.grandmaster:016x}", "clock_class": source.clock_class,
        "accuracy": source.accuracy, "steps_removed": source.steps_removed,
        "utc_offset_s": source.utc_offset_s, "traceable": source.traceable, "leap": source.leap,
    }  # fmt: skip


def tracking(said: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each line."""
    page = said["page"]
    reference = said["reference"]
    whose = "this host" if said["is_reference"] else _host(said, reference)
    return [
        ("Reference ID", whose if reference else "none"),
        ("State", page["state"] + (f" ({page['why']})" if "why" in page else "")),
        ("Epoch", f"{said['epoch']}"),
        ("Fabric time", f"{page['fabric_ns'] / 1e9:.9f} s" if "fabric_ns" in page else "unknown"),
        ("Bound", _ns(page.get("bound_ns"))),
        ("Root delay", _ns(said.get("root_delay_ns"))),
        ("Offset", f"{_ns(said.get('offset_ns'))} at the last step"),
        ("Residual", f"{_ns(said['residual_ns'])} to {said['neighbours']} paths"),
        (
            "Probes go by",
            {"fabric": "fabric time", "wall": "the wall clock"}.get(
                said["probes"], "nobody's: no prober"
            ),
        ),
        ("Frequency", f"{said['slope'] * 1e6:+.6f} ppm of this host's raw clock"),
        ("Skew", "unknown" if said.get("skew") is None else f"{said['skew'] * 1e6:.6f} ppm"),
        ("References lost", f"{said['lost']}, taken over {said['takeovers']}"),
    ]


def traced(said: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines on TAI; one alone where no host has a PTP master."""
    tai, ptp = said["tai"], said.get("ptp")
    if "tai_ns" not in tai:
        lines = [("TAI", f"{tai['state']} ({tai['why']})")]
    else:
        offset, host = tai["utc_offset_s"], tai["host"]
        whose = "this host's" if host == said.get("host") else f"{_host(said, host)}'s"
        lines = [
            ("TAI", f"{tai['tai_ns'] / 1e9:.9f} s, {tai['state']}"),
            ("TAI bound", _ns(tai["bound_ns"])),
            ("UTC offset", "unknown" if offset is None else f"{offset} s"),
            ("Grandmaster", f"{tai['grandmaster']}, class {tai['clock_class']}, {whose}"),
            ("Traceable", "yes" if tai["traceable"] else "no"),
            ("Steps removed", f"{tai['steps_removed']}"),
        ]
    if ptp:
        if ptp["why"]:
            lines.append(("PTP", ptp["why"]))
        lines += [
            ("TAI root delay", _ns(ptp["root_delay_ns"])),
            ("TAI dispersion", _ns(ptp["root_dispersion_ns"])),
        ]
    return lines


def steered(said: dict[str, Any]) -> list[tuple[str, str]]:
    """What chronyd is told, on a host where it is to be."""
    told = said.get("chrony")
    if not isinstance(told, dict):
        return []
    how = f"not now: {told.get('why')}" if told.get("why") else f"by {told.get('socket')}"
    return [("Chronyd is told", f"{how} ({told.get('told')} times so far)")]


def masters(rows: list[dict[str, Any]]) -> Table:
    """A row for each PTP master of this host."""
    table = Table(box=None, pad_edge=False)
    for name in ("master", "state", "grandmaster", "class", "steps", "half rtt", "spread", "bound"):
        left = name in ("master", "state", "grandmaster")
        table.add_column(name, justify="left" if left else "right")
    for row in rows:
        state = "silent" if not row["alive"] else "timed" if row["timing"] else "heard"
        table.add_row(
            ("*" if row["best"] else " ") + row["address"], state, row.get("identity", "-"),
            str(row.get("clock_class", "-")), str(row.get("steps_removed", "-")),
            _ns(row.get("half_rtt_ns")), _ns(row.get("spread_ns")), _ns(row.get("bound_ns")),
        )  # fmt: skip
    return table


def sources(paths: list[dict[str, Any]], *, wide: bool = False) -> Table:
    """A row for each path that carries trains."""
    narrow = ("path", "host", "offset", "half rtt", "spread", "judged")
    more = ("path", "host", "offset", "skew", "half rtt", "spread", "kept", "surplus", "stamps",
            "judged")  # fmt: skip
    names = more if wide else narrow
    rows = [[cells[name] for name in names] for cells in map(_source, paths)]
    return tables.table(names, rows, left="host stamps")


def _source(path: dict[str, Any]) -> dict[str, str]:
    """The cells of a path, by column."""
    slope, kept = path["slope"], path["kept"]
    return {
        "path": _name(path),
        "host": path["name"],
        "offset": _ns(path["offset_ns"]),
        "skew": "-" if slope is None else f"{slope * 1e6:+.4f} ppm",
        "half rtt": _ns(path["half_rtt_ns"]),
        "spread": _ns(path["spread_ns"]),
        "kept": "-" if kept is None else "/".join(f"{100 * share:.0f}" for share in kept) + " %",
        "surplus": _ns(path["surplus_ns"]),
        "stamps": "/".join(kind[:2] for kind in path.get("stamps", ("software", "software"))),
        "judged": _judged(path) or "-",
    }


def nic_clock(said: dict[str, Any]) -> str:
    """A line for a NIC's clock: how it is read, and how well it is known over the raw clock."""
    name = f"/dev/ptp{said['phc']}"
    if said["why"] is not None:
        return f"{name}: off: {said['why']}"
    slope = said["slope"]
    if slope is None:
        known = "no line over the raw clock yet"
    else:
        known = (
            f"{slope * 1e6:+.4f} ppm of the raw clock, spread {_ns(said['spread_ns'])}, within "
            f"{_ns(said['half_ns'])}"
        )
    more = [f"set {said['steps']} times, adjusted {said['adjusted']} times by others"]
    if said["too_slow"]:
        more.append(f"{said['too_slow']} readings too slow")
    return f"{name} ({said['way']}): {known}; {', '.join(more)}"


def ways(paths: list[dict[str, Any]], *, wide: bool = False) -> Table:
    """A row for each path: its two ways, and from where it is probed."""
    narrow = ("path", "host", "out", "back", "within", "judged")
    more = ("path", "host", "out", "back", "within", "surplus", "from port", "moves", "judged")
    names = more if wide else narrow
    rows = [[cells[name] for name in names] for cells in map(_ways, paths)]
    return tables.table(names, rows, left="host")


def _ways(path: dict[str, Any]) -> dict[str, str]:
    """The cells of a path, by column."""
    port = path.get("source_port") or 0
    return {
        "path": _name(path),
        "host": path["name"],
        "out": _ns(path.get("out_ns")),
        "back": _ns(path.get("back_ns")),
        "within": _ns(path.get("way_bound_ns")),
        "surplus": _ns(path["surplus_ns"]),
        "from port": str(port) if port else "own",
        "moves": str(path.get("moves", 0)),
        "judged": _judged(path) or "-",
    }


def _name(path: dict[str, Any]) -> str:
    over = ", RDMA" if path.get("rdma") else ""
    return f"{path['netdev']} → {path['peer']}{over}"


def _judged(path: dict[str, Any]) -> str:
    """What is thought of a path; nothing of one that is well and was never moved."""
    said = str(path.get("judged", "watching"))
    port = path.get("source_port") or 0
    where = f"port {port}" if port else ""
    return ", ".join(text for text in ("" if said == "watching" else said, where) if text)


def _ns(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3f} {unit}"
    return f"{value:.1f} ns"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog="Example: fabricctl clock --json")(clock)
