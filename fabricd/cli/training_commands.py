"""``fabricctl jobs``, ``migrations`` and ``explain host``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fabricd.cli.base import DEFAULT_SOCKET, Json, Socket, ask, out, put_json
from fabricd.cli.show import age, event_line, when

Data = dict[str, Any]

MOST_NAMES = 8
LISTS = (
    ("silent", "silent to"),
    ("heard", "heard by"),
    ("abstained", "abstained"),
    ("missed_by", "missed by agents on"),
    ("heard_by", "heard by agents on"),
    ("acknowledged", "fence applied on"),
)


def jobs(socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:
    """Training jobs with a part on this host: phase, generation, ranks on hosts, spares."""
    data = ask(socket, {"op": "training_jobs"})
    if as_json:
        put_json(data)
    else:
        show_jobs(out, data)


def migrations(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    limit: Annotated[int, typer.Option(min=0, max=1000, help="The newest that many.")] = 50,
) -> None:
    """Takeovers of ranks in jobs of this host, newest first."""
    data = ask(socket, {"op": "migrations", "limit": limit})
    if as_json:
        put_json(data)
    else:
        show_migrations(out, data)


def explain_host(name: str, socket: Any, *, as_json: bool) -> None:  # noqa: ANN401
    """Why a host counts as lost, or not."""
    data = ask(socket, {"op": "explain_host", "host": name})
    if as_json:
        put_json(data)
    else:
        show_host(out, data)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog="Example: fabricctl jobs --json")(jobs)
    app.command(epilog="Example: fabricctl migrations --limit 5")(migrations)


def show_jobs(console: Console, data: Data) -> None:
    """A table; then what is not well with what it says."""
    if not data["jobs"]:
        console.print(f"no training job has a part on {data['host']}")
    else:
        table = _table(
            "job", "phase", "generation", "here", "ranks on hosts", "spares on", "reason"
        )
        for job in data["jobs"]:
            over = "" if job.get("present", True) else f" ({age(job['age_s'])} ago)"
            notes = [one for one in (job["reason"], *job.get("slow_ranks", ())) if one]
            if job.get("suspected"):
                notes.append(_suspects(job["suspected"]))
            table.add_row(
                job["job"], job["phase"] + over, str(job.get("generation") or "-"),
                job["here"] or "-", Text(ranks_on_hosts(job.get("ranks", {}))),
                Text(", ".join(one["host"] for one in job.get("spares", ())) or "-"),
                Text("; ".join(notes)),
            )  # fmt: skip
        console.print(table)
    _notes(console, data)


def _suspects(hosts: Sequence[str]) -> str:
    return f"under suspicion: {', '.join(hosts)} (fabricctl explain host {hosts[0]})"


def ranks_on_hosts(ranks: dict[str, Data]) -> str:
    """E.g. ``0-7 h0, 8-15 h1``; the end is left out where there are many hosts."""
    hosts: dict[str, list[int]] = {}
    for rank, place in sorted(ranks.items(), key=lambda one: int(one[0])):
        hosts.setdefault(place["host"], []).append(int(rank))
    parts = [f"{spans(found)} {host}" for host, found in hosts.items()]
    more = len(parts) - MOST_NAMES
    return ", ".join(parts[:MOST_NAMES]) + (f", and {more} more hosts" if more > 0 else "") or "-"


def spans(numbers: Sequence[int]) -> str:
    """Rising numbers, e.g. ``0-3,5``."""
    parts: list[list[int]] = []
    for one in numbers:
        if parts and parts[-1][-1] == one - 1:
            parts[-1] = [parts[-1][0], one]
        else:
            parts.append([one])
    return ",".join("-".join(map(str, part)) for part in parts)


def show_migrations(console: Console, data: Data) -> None:
    """A table, newest first."""
    if not data["migrations"]:
        console.print(f"no migration of a job of {data['host']} is on its timeline")
    else:
        table = _table(
            "time", "job", "generation", "class", "ranks", "from", "to", "pause", "steps lost",
            "outcome", "reason",
        )  # fmt: skip
        for one in data["migrations"]:
            pause = one.get("committed_ms")
            table.add_row(
                when(one["wall_ns"]), one["job"], str(one["generation"]), one["class"],
                spans(one["ranks"]) or "-", ", ".join(dict.fromkeys(one["from"])) or "-",
                ", ".join(dict.fromkeys(one["to"])) or "-",
                "-" if pause is None else f"{pause:.0f} ms", str(one["steps_lost"]),
                Text(one["outcome"], style="red" if one["outcome"] == "failed" else ""),
                Text(one["reason"]),
            )  # fmt: skip
        console.print(table)
    _notes(console, data)


def show_host(console: Console, data: Data) -> None:
    """Probes, evidence of each job, fences, history."""
    console.print(Text(f"host {data['host']}, as {data['asked']} knows it", style="bold"))
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    if (probes := data["probes"]) is not None:
        table.add_row("own probes", Text(_probes(probes)))
    for job in data["jobs"]:
        _job_rows(table, job)
    if not data["jobs"]:
        table.add_row("jobs", "none that both hosts have a part in")
    for fence in data["fences"]:
        state = "applied here" if fence["applied"] else "not applied here yet"
        table.add_row("fence", Text(f"{fence['id']}: {state}; {fence['reason']}"))
    console.print(table)
    for row in data["history"]:
        console.print(event_line(row), soft_wrap=True)
    _notes(console, data)


def _probes(probes: Data) -> str:
    if not probes["prober"]:
        return "no prober"
    what = "silent on all rails" if probes["silent"] else "heard"
    return f"{what}: {probes['paths_silent']} of {probes['paths']} paths are silent"


def _job_rows(table: Table, job: Data) -> None:
    ranks = f"rank {spans(job['ranks'])}" if job["ranks"] else "no rank"
    over = "" if job["present"] else ", over on the asked host"
    table.add_row(f"job {job['job']}", Text(f"generation {job['generation']}, {ranks}{over}"))
    said = job["evidence"]
    if said is None:
        table.add_row("", "nothing speaks against the host")
        return
    old = "" if job["current"] else f" (last said {age(job['age_s'])} ago)"
    style = "red" if said["lost"] and job["current"] else ""
    table.add_row("  rule", Text(said["rule"] + old, style=style))
    table.add_row("  evidence", Text(said["reason"]))
    counts = said["counts"]
    for name, label in LISTS:
        if count := counts.get(name, 0):
            names = ", ".join(said[name][:MOST_NAMES])
            more = count - min(count, MOST_NAMES)
            table.add_row(f"  {label}", Text(names + (f", and {more} more" if more else "")))
    if said["last_will"]:
        table.add_row("  broker", "has published its last will")
    if said["fence"]:
        table.add_row("  fence", Text(said["fence"]))


def _notes(console: Console, data: Data) -> None:
    if not data["connected"]:
        why = data["why_not_connected"]
        text = f"not connected to the broker ({why}): this may be old"
        console.print(Text(text, style="yellow"), soft_wrap=True)
    computes = data.get("computes")
    if computes is not None and computes and not any(computes.values()):
        text = f"no fabric-compute is at the broker ({', '.join(computes)}): this may be old"
        console.print(Text(text, style="yellow"), soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name)
    return table
