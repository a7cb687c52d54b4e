"""``fabricctl explain`` of a link or job, and ``detector list``, for people."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fabricd.cli import show_timeline
from fabricd.cli.show import age, override_text, state, when
from fabricd.cli.tables import Clipped
from fabricd.views import moments

MOST_COUNTERS = 8
MOST_MOMENTS = 12
"""Of a history below other things."""


def explain(console: Console, data: dict[str, Any], *, detail: bool = False) -> None:
    """One link. ``detail``: also each source of its NIC, and each row of its history."""
    head = Text(f"{data['link']}  rail {data['rail']}  ", style="bold")
    head.append_text(state(data["state"]))
    began = when(time.time_ns() - round(data["since_s"] * 1e9)) if data["since_s"] else ""
    head.append(f"  for {age(data['since_s'])}{began and f' (since {began})'}")
    head.append(f"  weight {100 * data['weight']:.0f} %")
    console.print(head)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    rule = data["rule"]
    table.add_row("reason", Text(data["reason"] or "-"))
    table.add_row("rule", Text(f"{rule['name']}: {rule['text']}"))
    if rule.get("parameters"):
        table.add_row("", Text(rule["parameters"]))
    for number, line in enumerate(data["steering"]):
        table.add_row("" if number else "steering", Text(line))
    for number, line in enumerate(data.get("located", [])):
        table.add_row("" if number else "located", Text(line))
    for number, line in enumerate(data.get("located_beyond", [])):
        table.add_row("" if number else "far ends", Text(f"not this link: {line}"))
    if (rdma := data.get("rdma")) is not None:
        table.add_row("RDMA", Text(f"{rdma['state']}, weight {100 * rdma['weight']:.0f} %"))
        table.add_row("", Text(rdma["text"]))
    if data["next"]:
        table.add_row("next", Text(data["next"]))
    damping = data["damping"]
    waits = f", suppressed for {damping['reuse_in_s']} s more" if damping["suppressed"] else ""
    table.add_row(
        "damping",
        f"penalty {damping['penalty']:.0f}{waits}, {damping['flaps_last_hour']} downs in the hour",
    )
    if damping.get("return_in_s", 0) > damping["reuse_in_s"]:
        table.add_row(
            "",
            f"{damping['published']} changes published within {age(damping['window_s'])}, "
            f"{damping['max_transitions']} are allowed: back in {age(damping['return_in_s'])} "
            "at the earliest",
        )
    if data["drain"]:
        table.add_row("drain", Text(override_text(data["drain"])))
    for window in data["maintenance"]:
        table.add_row("maintenance", Text(f"{window['target']}: {override_text(window)}"))
    if data["detectors_off"]:
        table.add_row("detectors off", ", ".join(data["detectors_off"]))
    console.print(table)
    console.print(_evidence(data["evidence"]))
    if (nic := data.get("nic")) is not None:
        console.print(_nic(nic, detail=detail))
    if data.get("history_error"):
        console.print(f"timeline: {data['history_error']}", markup=False)
    history(console, data["history"], detail=detail, more=f"--link {data['link']}")


def history(
    console: Console, rows: list[dict[str, Any]], *, detail: bool = False, more: str = ""
) -> None:
    """Rows of the timeline in sentences.

    Args:
        console: where to print.
        rows: oldest first.
        detail: each row by itself, and all of them; else the newest `MOST_MOMENTS`.
        more: options of ``fabricctl timeline`` that show those before.
    """
    found = [moments.single(row) for row in rows] if detail else moments.moments(rows)
    if not detail and len(found) > MOST_MOMENTS:
        console.print(f"({len(found) - MOST_MOMENTS} before: fabricctl timeline {more})")
        found = found[-MOST_MOMENTS:]
    for day, of_day in show_timeline.by_day(found):
        console.print(day)
        console.print(show_timeline.table(of_day, links=show_timeline.width_of_links(found)))


def job(console: Console, data: dict[str, Any]) -> None:
    """One job: whether it moves, whom it waits for, what may hold it up."""
    count = data["processes"]
    whose = "".join(f" of uid {uid}" for uid in data.get("uids", ()))
    head = f"job {data['job']}{whose} on {data['host']}"
    head += f", {count} process{'es' if count != 1 else ''}"
    console.print(Text(head, style="bold"))
    if data["stands"]:
        how = f"stands: bytes are under way, and none moved in {data['seconds']:g} s"
    elif data["bytes_s"]:
        how = f"moves {data['bytes_s'] / 1e6:.3g} MB/s"
    else:
        how = "moves nothing and has nothing under way: it computes, or waits for others"
    if data["stalled_s"]:
        how += f"; communicators stood for {data['stalled_s']:g} s together"
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("now", Text(how))
    table.add_row("peers", Text(", ".join(data["peers"]) or "-"))
    if data["waits_for"]:
        table.add_row("waits for", Text(", ".join(data["waits_for"])))
    for number, cause in enumerate(data["causes"]):
        table.add_row("" if number else "at fault", Text(cause["text"], style="red"))
    if not data["causes"]:
        table.add_row("at fault", "nothing that is known here: ask its other hosts, too")
    for number, text in enumerate(_limits(data)):
        table.add_row("" if number else "but", Text(text))
    console.print(table)


def _limits(data: dict[str, Any]) -> list[str]:
    incomplete, uids = data.get("incomplete", ()), data.get("uids", ())
    if len(uids) < 2:
        return list(incomplete)
    users = ", ".join(map(str, uids))
    return [*incomplete, f"users {users} have processes of this job's name: all are in it"]


def detectors(console: Console, operator: dict[str, Any]) -> None:
    """All detectors; which are off, by whom and until when."""
    off = {override["target"]: override for override in operator["detector_off"]}
    table = Table(box=None, pad_edge=False)
    for name in ("detector", "", "since"):
        table.add_column(name)
    for name, on in operator["detectors"].items():
        why = override_text(off[name]) if name in off else "" if on else "by the configuration"
        table.add_row(name, Text("on" if on else "OFF", style="" if on else "red"), Text(why))
    console.print(table)


def _nic(nic: dict[str, Any], *, detail: bool) -> Table:
    """What is read of the NIC, and what is not and why."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    read = [source["source"] for source in nic["sources"] if source["on"]]
    others = [(source["source"], source["reason"]) for source in nic["sources"] if not source["on"]]
    table.add_row("NIC read by", Clipped(", ".join(dict.fromkeys(read)) or "nothing"))
    if detail:
        for name, reason in others:
            table.add_row("not read", Clipped(f"{name}: {reason}"))
    elif others:
        text = ", ".join(dict.fromkeys(name for name, _ in others))
        table.add_row("not read", Clipped(f"{text} (why: --detail)"))
    for label, said in (
        ("module", " ".join(x for x in (nic.get("module"), nic.get("measured")) if x)),
        ("alarms", ", ".join(nic.get("flags", []))),
        ("PCIe", nic.get("pcie")),
        ("speed", nic.get("speed")),
        ("flaps", nic.get("flaps_inexact") and f"count not exact: {nic['flaps_inexact']}"),
        ("counted", ", ".join(_counted(nic.get("counted", {})))),
    ):
        if said:
            table.add_row(label, Clipped(said))
    return table


def _counted(counted: dict[str, dict[str, Any]]) -> list[str]:
    """The counters with a rule that rose since the daemon began, the largest first."""
    found = [f"{name} {item['count']} ({item['class']})" for name, item in counted.items()]
    return found[:MOST_COUNTERS] + (["…"] if len(found) > MOST_COUNTERS else [])


def _evidence(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("detector", "age"):
        table.add_column(name, no_wrap=True)
    table.add_column("says")
    for item in found:
        style = "red" if item["against"] else "yellow" if item.get("unwatched") else ""
        style = "dim" if item.get("off") else style
        text = Text(item["says"] + (" (detector off)" if item.get("off") else ""), style=style)
        table.add_row(item["detector"], age(item["age_s"]), Clipped(text))
    return table
