"""``fabricctl jobs``, ``migrations`` and ``explain host``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fabricd.cli import show_explain
from fabricd.cli.base import DEFAULT_SOCKET, Json, Socket, ask, out, put_json
from fabricd.cli.show import age, counted, when
from fabricd.cli.tables import Form, Output, as_text, put_table, table
from fabricd.cli.top import JOB_WIDTH, middle, size

Data = dict[str, Any]

MOST_NAMES = 8
SHORT_JOB = 14
"""Columns of a job's name in a table that has little room."""
STALL_NS = 10**8
"""Stalls of a job that are shorter, all together, are no news."""
LISTS = (
    ("silent", "silent to"),
    ("heard", "heard by"),
    ("abstained", "abstained"),
    ("missed_by", "missed by agents on"),
    ("heard_by", "heard by agents on"),
    ("acknowledged", "fence applied on"),
)


def jobs(socket: Socket = DEFAULT_SOCKET, as_json: Json = False, form: Output = None) -> None:
    """Jobs with a part on this host: those that move bytes here, and those of fabric-runs."""
    data = ask(socket, {"op": "training_jobs"})
    if as_text(form, as_json=as_json):
        show_jobs(out, data, wide=form is Form.WIDE)
    else:
        put_json(data)


def migrations(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    limit: Annotated[int, typer.Option(min=0, max=1000, help="The newest that many.")] = 50,
    form: Output = None,
) -> None:
    """Takeovers of ranks in jobs of this host, newest first."""
    data = ask(socket, {"op": "migrations", "limit": limit})
    if as_text(form, as_json=as_json):
        show_migrations(out, data, wide=form is Form.WIDE)
    else:
        put_json(data)


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


COLUMNS = ("job", "phase", "procs", "rails", "sent", "notes")
WIDE_COLUMNS = ("job", "uid", "phase", "generation", "here", "procs", "rails", "sent", "received",
                "in flight", "stalled", "failovers", "errors", "ranks on hosts", "spares on",
                "notes")  # fmt: skip


def show_jobs(console: Console, data: Data, *, wide: bool = False) -> None:
    """A table; then what is not well with what it says."""
    rows = list(_job_parts(data))
    if rows:
        cells = [_wide_cells(*row) if wide else _cells(*row) for row in rows]
        made = table(WIDE_COLUMNS if wide else COLUMNS, cells, left="phase here ranks spares")
        put_table(made, console, wide=wide)
    else:
        console.print(f"no job has a part on {data['host']}, and none uses the plugin here")
    if data.get("left_out"):
        console.print(f"{data['left_out']} processes more are not counted")
    if data.get("incomplete"):
        console.print(f"not all stats pages were read: {data['incomplete']}", soft_wrap=True)
    if data.get("broker", True):
        _notes(console, data)


def _job_parts(data: Data) -> Iterator[tuple[Data, Data]]:
    """Each job: what fabric-compute says of it (or nothing), what its pages say (or nothing)."""
    pages = list(data.get("plugin_jobs", ()))
    for job in data["jobs"]:
        own: Data = next((page for page in pages if page["job"] == job["job"]), {})
        pages = [page for page in pages if page is not own]
        yield job, own
    for page in pages:
        yield {}, page


def _cells(job: Data, page: Data) -> tuple[Text | str, ...]:
    name = middle(job.get("job") or page["job"], JOB_WIDTH)
    return (
        name,
        _phase(job),
        str(page.get("processes", "-")),
        _rails(page),
        size(page["tx_bytes"]) if page else "-",
        "; ".join(_job_notes(job, page)) or "-",
    )


def _wide_cells(job: Data, page: Data) -> tuple[Text | str, ...]:
    totals = (
        (size(page["tx_bytes"]), size(page["rx_bytes"]), size(page["in_flight_bytes"]),
         f"{page['stall_ns'] / 1e9:.1f} s", str(page["failovers"]), str(page["errors"]))
        if page
        else ("-",) * 6
    )  # fmt: skip
    return (
        job.get("job") or page["job"],
        str(page.get("uid", "-")),
        _phase(job),
        str(job.get("generation") or "-"),
        job.get("here") or "-",
        str(page.get("processes", "-")),
        _rails(page),
        *totals,
        ranks_on_hosts(job.get("ranks", {})),
        ", ".join(one["host"] for one in job.get("spares", ())) or "-",
        "; ".join(_job_notes(job, page)) or "-",
    )


def _phase(job: Data) -> str:
    if not job:
        return "-"
    over = "" if job.get("present", True) else f" ({age(job['age_s'])} ago)"
    return f"{job['phase']}{over}"


def _rails(page: Data) -> str:
    if not page:
        return "-"
    sound = len(page["rails"]) - len(page["dead_rails"])
    return f"{sound} of {len(page['rails'])}" if page["dead_rails"] else str(sound)


def _job_notes(job: Data, page: Data) -> Iterator[str]:
    """The worst first."""
    if page.get("errors"):
        yield f"{counted(page['errors'], 'error', 'errors')} went to NCCL"
    if job.get("reason"):
        yield job["reason"]
    if page.get("dead_rails"):
        yield f"dead paths on {', '.join(page['dead_rails'][:MOST_NAMES])}"
    if page.get("stall_ns", 0) >= STALL_NS:
        yield f"stalled {age(page['stall_ns'] / 1e9)} in all"
    if page and not page["following"]:
        yield "does not follow fabricd (no steer page)"
    yield from job.get("slow_ranks", ())
    if job.get("suspected"):
        yield _suspects(job["suspected"])
    if job.get("ranks"):
        yield f"ranks {ranks_on_hosts(job['ranks'])}"
    if job.get("spares"):
        yield f"spares {', '.join(one['host'] for one in job['spares'])}"
    if job.get("generation") is not None:
        yield f"generation {job['generation']}"


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


def show_migrations(console: Console, data: Data, *, wide: bool = False) -> None:
    """A table, newest first."""
    if not data["migrations"]:
        console.print(f"no migration of a job of {data['host']} is on its timeline")
    else:
        rows = [_wide_move(one) if wide else _move(one) for one in data["migrations"]]
        made = table(WIDE_MOVE if wide else MOVE, rows, left="job class from to outcome")
        put_table(made, console, wide=wide)
    _notes(console, data)


MOVE = ("time", "job", "outcome", "pause", "steps lost", "what")
WIDE_MOVE = ("time", "job", "generation", "class", "ranks", "from", "to", "pause", "steps lost",
             "outcome", "reason")  # fmt: skip


def _move(one: Data) -> tuple[Text | str, ...]:
    pause = one.get("committed_ms")
    ranks = f"rank {spans(one['ranks'])} " if one["ranks"] else ""
    places = f"{_places(one['from'])} → {_places(one['to'])}"
    return (
        when(one["wall_ns"])[:19],
        middle(one["job"], SHORT_JOB),
        _outcome(one),
        "-" if pause is None else f"{pause:.0f} ms",
        str(one["steps_lost"]),
        f"{ranks}{places}; {one['reason']}",
    )


def _wide_move(one: Data) -> tuple[Text | str, ...]:
    pause = one.get("committed_ms")
    return (
        when(one["wall_ns"]), one["job"], str(one["generation"]), one["class"],
        spans(one["ranks"]) or "-", _places(one["from"]), _places(one["to"]),
        "-" if pause is None else f"{pause:.0f} ms", str(one["steps_lost"]),
        _outcome(one), one["reason"],
    )  # fmt: skip


def _outcome(one: Data) -> Text:
    return Text(one["outcome"], style="red" if one["outcome"] == "failed" else "")


def _places(hosts: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(hosts)) or "-"


def show_host(console: Console, data: Data) -> None:
    """Probes, evidence of each job, fences, history."""
    console.print(Text(f"host {data['host']}, as {data['asked']} knows it", style="bold"))
    grid = Table(show_header=False, box=None, pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column()
    if (probes := data["probes"]) is not None:
        grid.add_row("own probes", Text(_probes(probes)))
    for job in data["jobs"]:
        _job_rows(grid, job)
    if not data["jobs"]:
        grid.add_row("jobs", "none that both hosts have a part in")
    for fence in data["fences"]:
        state = "applied here" if fence["applied"] else "not applied here yet"
        grid.add_row("fence", Text(f"{fence['id']}: {state}; {fence['reason']}"))
    console.print(grid)
    show_explain.history(console, data["history"])
    _notes(console, data)


def _probes(probes: Data) -> str:
    if not probes["prober"]:
        return "no prober"
    what = "silent on all rails" if probes["silent"] else "heard"
    return f"{what}: {probes['paths_silent']} of {probes['paths']} paths are silent"


def _job_rows(grid: Table, job: Data) -> None:
    ranks = f"rank {spans(job['ranks'])}" if job["ranks"] else "no rank"
    over = "" if job["present"] else ", over on the asked host"
    grid.add_row(f"job {job['job']}", Text(f"generation {job['generation']}, {ranks}{over}"))
    said = job["evidence"]
    if said is None:
        grid.add_row("", "nothing speaks against the host")
        return
    old = "" if job["current"] else f" (last said {age(job['age_s'])} ago)"
    style = "red" if said["lost"] and job["current"] else ""
    grid.add_row("  rule", Text(said["rule"] + old, style=style))
    grid.add_row("  evidence", Text(said["reason"]))
    counts = said["counts"]
    for name, label in LISTS:
        if count := counts.get(name, 0):
            names = ", ".join(said[name][:MOST_NAMES])
            more = count - min(count, MOST_NAMES)
            grid.add_row(f"  {label}", Text(names + (f", and {more} more" if more else "")))
    if said["last_will"]:
        grid.add_row("  broker", "has published its last will")
    if said["fence"]:
        grid.add_row("  fence", Text(said["fence"]))


def _notes(console: Console, data: Data) -> None:
    if not data["connected"]:
        why = data["why_not_connected"]
        text = f"not connected to the broker ({why}): this may be old"
        console.print(Text(text, style="yellow"), soft_wrap=True)
    computes = data.get("computes")
    if computes is not None and computes and not any(computes.values()):
        text = f"no fabric-compute is at the broker ({', '.join(computes)}): this may be old"
        console.print(Text(text, style="yellow"), soft_wrap=True)
