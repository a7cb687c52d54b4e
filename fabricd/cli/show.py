"""Tables for people. Every function takes the JSON of the control socket."""

from __future__ import annotations

import datetime as dt
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fabricd.cli.tables import Clipped

_COLOURS = {
    "up": "green",
    "suspect": "yellow",
    "down": "red",
    "hold": "magenta",
    "probation": "cyan",
    "degraded": "yellow",
    "admin": "blue",
    "unknown": "dim",
}


def state(name: str | None) -> Text:
    """A state in its colour."""
    return Text(name or "-", style=_COLOURS.get(name or "", ""))


def condition(name: str) -> Text:
    """What a link suffers from, in its colour; nothing where nothing is wrong or known."""
    colours = {"congested": "yellow", "slow": "yellow", "broken": "red"}
    return Text(name if name in colours else "-", style=colours.get(name, ""))


def queues(delay: dict[str, Any]) -> str:
    """Median queueing out and back, in microseconds."""
    tx, rx = delay["queue_tx_p50_us"], delay["queue_rx_p50_us"]
    return "-" if tx is None or rx is None else f"{tx:.0f}/{rx:.0f} µs"


def when(wall_ns: int) -> str:
    """Local time with milliseconds."""
    moment = dt.datetime.fromtimestamp(wall_ns / 1e9, tz=dt.UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def counted(number: int, one: str, many: str) -> str:
    """E.g. ``1 process``, ``2 processes``."""
    return f"{number} {one if number == 1 else many}"


def age(seconds: float | None) -> str:
    """A duration in the unit that fits."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def status(console: Console, data: dict[str, Any]) -> None:
    """``fabricctl status``."""
    table = Table(show_header=False, box=None, pad_edge=False)
    mode = data["mode"] + (" (stop file present)" if data["stop_file"] else "")
    if data["promoted"] != data["mode"]:
        mode += f", promoted {data['promoted']}"
    links = ", ".join(f"{count} {name}" for name, count in sorted(data["links"].items()))
    prober = data["prober"]
    line = data["timeline"]
    for key, value in (
        ("host", data["host"]),
        ("version", data["version"]),
        ("mode", mode),
        ("links", links or "none"),
        *(("", _not_carrying(link)) for link in data.get("not_carrying", [])),
        ("silent hosts", ", ".join(data["silent_hosts"]) or "none"),
        ("not watched", _listed(data.get("unwatched", {})) or "none"),
        ("MTU black holes", _listed(data.get("mtu_black_holes", {})) or "none"),
        *([("RDMA", _listed(data["rdma"]))] if data.get("rdma") else []),
        ("prober", f"{'up' if prober['up'] else 'DOWN'}, {prober['restarts']} restarts"),
        ("timeline", f"{line['stored']} stored, {line['waiting']} waiting, "
                     f"{line['failures']} failures"),
        ("lldp", data.get("lldp", "off")),
        ("broker", _broker(data.get("broker"))),
        ("jobs", f"{counted(data['plugin']['processes'], 'process', 'processes')}, "
                 f"{counted(data['plugin']['errors'], 'error', 'errors')}"),
        ("stats pages", _stats(data.get("stats", {}))),
        ("counters", _not_read(data.get("counters", {}))),
        ("metrics", data["metrics"]["text"] if "metrics" in data else "not told"),
        ("at risk", ", ".join(data.get("at_risk", [])) or "none"),
        ("refused", ", ".join(f"{k} {v}" for k, v in data["refused"].items() if v) or "nothing"),
    ):  # fmt: skip
        table.add_row(key, Clipped(value))
    config = data["config"]
    bad = f", LAST RELOAD REFUSED: {config['problems'][0]}" if config["problems"] else ""
    table.add_row("configuration", Clipped(f"{config['hash']}{bad}"))
    for group, own in data["groups"].items():
        table.add_row(f"group {group}", own)
    for key, value in operator_lines(data["operator"]):
        table.add_row(key, Clipped(value))
    console.print(table)


def _broker(said: dict[str, Any] | None) -> str:
    """The connection to the broker, and what waits for it."""
    if said is None:
        return "none configured"
    parts = [said["where"] + (": connected" if said["connected"] else ": NOT CONNECTED")]
    if said["reason"]:
        parts.append(said["reason"])
    if said["stopped"] is not None:
        parts.append(f"STOPPED BY AN OPERATOR: {said['stopped']}")
    if said["outbox"] or said["outbox_dropped"]:
        parts.append(f"{said['outbox']} events wait, {said['outbox_dropped']} dropped")
    if unstored := said.get("outbox_unstored"):
        parts.append(f"{unstored} events are not on disk yet")
    for topic, why in said.get("not_sent", {}).items():
        parts.append(f"NOT SENT: {topic} has {why}")
    parts += [note.rstrip(".") for note in said.get("limits", [])]
    if said["jobs"]:
        parts.append("jobs " + ", ".join(f"{job} ({how})" for job, how in said["jobs"].items()))
    if said["fences"]:
        parts.append(f"{len(said['fences_applied'])} of {len(said['fences'])} fences applied")
    if said["refused"] or said["rejected"]:
        refused = ", ".join(f"{why} {count}" for why, count in said["refused"].items())
        parts.append(f"refused {refused or 'nothing'}, rejected by the broker {said['rejected']}")
    return "; ".join(parts)


def _listed(said: dict[str, str]) -> str:
    """Links, and what is said of each."""
    return "; ".join(f"{link}: {text}" for link, text in said.items())


def _not_carrying(link: dict[str, Any]) -> str:
    """A link that is not at its full weight, and why."""
    planned = ", planned" if link["planned"] else ""
    reason = f": {link['reason']}" if link["reason"] else ""
    return f"{link['netdev']} {link['state']} for {age(link['since_s'])}{planned}{reason}"


def _stats(report: dict[str, Any]) -> str:
    """How much of the stats directory was read."""
    pages, entries = report.get("pages", 0), report.get("entries", 0)
    text = f"{pages} read" + (f" of {entries} names" if entries != pages else "")
    return text + (f", PARTIAL: {report['partial']}" if report.get("partial") else "")


def _not_read(counters: dict[str, str]) -> str:
    """Links whose NIC is not read, and why."""
    bad = {link: why for link, why in counters.items() if why}
    read = f"{len(counters) - len(bad)} of {len(counters)} links read"
    return read + "".join(f"; {link}: {why}" for link, why in bad.items())


def operator_lines(operator: dict[str, Any]) -> list[tuple[str, str]]:
    """What is in force, for ``fabricctl status``."""
    lines = []
    for kind, label in (("drain", "drained"), ("maintenance", "maintenance")):
        lines += [
            (label, f"{override['target']}: {override_text(override)}")
            for override in operator[kind]
        ]
    off = [name for name, on in operator["detectors"].items() if not on]
    return lines + ([("detectors off", ", ".join(off))] if off else [])


def override_text(override: dict[str, Any]) -> str:
    """Who asked, for how long, why."""
    left = override["left_s"]
    end = "until taken back" if left is None else f"{age(left)} left"
    return f"by {override['by']}, {end}" + (f": {override['reason']}" if override["reason"] else "")
