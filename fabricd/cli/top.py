"""What jobs do on each rail now: two looks at their counters, the difference, a table.

Pure but for the table: it takes the JSON of ``{"op": "jobs"}`` twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from fabricd.cli import tables
from fabricd.cli.show import counted

Document = Mapping[str, Any]
JOB_WIDTH, PLACE_WIDTH = 22, 20
"""Columns of a job's name, and of a rail or peer, in a narrow table."""


@dataclass(slots=True)
class Row:
    """One job on one rail, or with one peer in one direction; all its processes together.

    Rates are per second, since the earlier look; the others are totals or as of now.
    """

    job: str
    where: str
    """The rail, or the peer and the direction."""
    uid: int = 0
    """Of the job's user: a name may be taken by several."""
    processes: int = 0
    following: int = 0
    """Processes that follow the steer page."""
    tx_bytes_s: float = 0.0
    rx_bytes_s: float = 0.0
    messages_s: float = 0.0
    """Sent and acknowledged; of a receiving group: received."""
    retransmit_bytes_s: float = 0.0
    stall_share: float = 0.0
    """Seconds of stall per second, summed over communicators: may be above 1."""
    in_flight_bytes: int = 0
    failovers: int = 0
    live_paths: int = 0
    dead_paths: int = 0
    comms: int = 0
    latency: list[int] = field(default_factory=list)
    """Messages per bucket since the earlier look."""
    slow: str = ""
    """Why the daemon calls the rail slower than the job's others; empty: it does not."""

    def quantile_us(self, share: float) -> float | None:
        """The end of the bucket in which that share of the messages is; None: there were none."""
        wanted = share * sum(self.latency)
        if not wanted:
            return None
        seen = 0
        for bucket, count in enumerate(self.latency):
            seen += count
            if seen >= wanted:
                return float(2**bucket)
        return None

    def as_json(self) -> dict[str, Any]:
        """For ``--json``: without the buckets, with what they say."""
        out = asdict(self)
        del out["latency"]
        return out | {"p50_us": self.quantile_us(0.5), "p99_us": self.quantile_us(0.99)}


def rows(before: Document, after: Document, *, groups: bool = False, job: str = "") -> list[Row]:
    """What happened between two looks.

    Args:
        before: the earlier answer; a process that is not in it shows no rates.
        after: the later answer.
        groups: by peer and direction instead of by rail.
        job: only jobs whose name begins so.
    """
    seconds = (after["time_ns"] - before["time_ns"]) / 1e9
    earlier = {_key(process): process for process in before["processes"]}
    found: dict[tuple[str, int, str], Row] = {}
    for process in after["processes"]:
        if not process["job"].startswith(job):
            continue
        last = earlier.get(_key(process))
        parts = _groups(process, last) if groups else _rails(process, last)
        for where, now, then in parts:
            name, uid = process["job"], process["uid"]
            row = found.setdefault((name, uid, where), Row(name, where, uid))
            row.slow = "" if groups else _slow(after, row)
            row.processes += 1
            row.following += bool(process["following"])
            _add(row, now, then, seconds)
    return [found[key] for key in sorted(found)]


def _slow(answer: Document, row: Row) -> str:
    """Why a rail is slow; one user's claim concerns that user's job alone."""
    claim = answer.get("slow_claims", {}).get(row.where)
    own = claim is not None and (claim["uid"], claim["job"]) == (row.uid, row.job)
    return str(answer.get("slow", {}).get(row.where, claim["text"] if own else ""))


_Part = tuple[str, Document, Document | None]


def _rails(process: Document, last: Document | None) -> Iterator[_Part]:
    then = {rail["netdev"]: rail for rail in last["rails"]} if last else {}
    for rail in process["rails"]:
        yield rail["netdev"], rail, then.get(rail["netdev"])


def _groups(process: Document, last: Document | None) -> Iterator[_Part]:
    def key(group: Document) -> tuple[Any, ...]:
        return group["address"], group["incarnation"], group["direction"]

    then = {key(group): group for group in last["groups"]} if last else {}
    arrows = {"send": "to", "receive": "from"}
    for group in process["groups"]:
        arrow = arrows.get(group["direction"])
        where = f"{arrow} {group['address']}" if arrow else "others"
        receives = group["direction"] == "receive"
        before = then.get(key(group))
        yield (
            where,
            _as_rail(group, receives=receives),
            before and _as_rail(before, receives=receives),
        )


def _as_rail(group: Document, *, receives: bool) -> Document:
    way = "rx" if receives else "tx"
    return dict(group) | {f"{way}_bytes": group["bytes"], "tx_messages": group["messages"]}


def _add(row: Row, now: Document, then: Document | None, seconds: float) -> None:
    row.in_flight_bytes += now["in_flight_bytes"]
    row.failovers += now["failovers"]
    row.live_paths += now.get("live_paths", 0)
    row.dead_paths += now.get("dead_paths", 0)
    row.comms += now.get("comms", 0)
    if then is None or seconds <= 0:
        return

    def rate(name: str) -> float:
        step: int = now.get(name, 0) - then.get(name, 0)
        return max(0, step) / seconds

    row.tx_bytes_s += rate("tx_bytes")
    row.rx_bytes_s += rate("rx_bytes")
    row.messages_s += rate("tx_messages")
    row.retransmit_bytes_s += rate("retransmit_bytes")
    row.stall_share += rate("stall_ns") / 1e9
    fresh = [
        max(0, a - b)
        for a, b in zip(now["latency"]["buckets"], then["latency"]["buckets"], strict=True)
    ]
    row.latency = [a + b for a, b in zip(row.latency or [0] * len(fresh), fresh, strict=True)]


def _key(process: Document) -> tuple[Any, ...]:
    return process["uid"], process["pid"], process["start_ns"], process["subdirectory"]


def missing(answer: Document) -> str:
    """Why there may be processes that are not in an answer; empty: all are in it."""
    reasons = []
    if answer["left_out"]:
        reasons.append(f"{answer['left_out']} processes more are not shown")
    if partial := answer.get("scan", {}).get("partial"):
        reasons.append(f"not all stats pages were read: {partial}")
    return "; ".join(reasons)


COLUMNS = ("send/s", "receive/s", "p99", "notes")
WIDE_COLUMNS = ("procs", "send/s", "receive/s", "msgs/s", "p50", "p99", "in flight", "again/s",
                "stalled", "failovers")  # fmt: skip


def table(found: Sequence[Row], *, groups: bool, wide: bool = False) -> Table:
    """The rows for people; those with something amiss are the first of their job."""
    users = Counter(job for job, _ in {(row.job, row.uid) for row in found})
    where = "peer" if groups else "rail"
    last = ("comms" if groups else "paths", "notes")
    names = ("job", where, *(WIDE_COLUMNS + last if wide else COLUMNS))
    ordered = sorted(found, key=lambda row: (row.job, row.uid, not notes(row), row.where))
    rows = []
    for row in ordered:
        style = "yellow" if notes(row) else ""
        job = row.job + (f" (uid {row.uid})" if users[row.job] > 1 else "")
        place = f"{row.where} SLOW" if row.slow else row.where
        cells = _wide(row, groups=groups) if wide else _narrow(row)
        head = (job, place) if wide else (middle(job, JOB_WIDTH), middle(place, PLACE_WIDTH))
        rows.append([Text(cell, style=style) for cell in (*head, *cells)])
    return tables.table(names, rows, left="peer rail")


def notes(row: Row) -> str:
    """What is amiss on a rail, or with a peer; empty: nothing."""
    parts = []
    if row.dead_paths:
        parts.append(f"{row.dead_paths} of {row.live_paths + row.dead_paths} paths dead")
    if row.stall_share:
        parts.append(f"stalled {100 * row.stall_share:.0f} %")
    if row.retransmit_bytes_s:
        parts.append(f"sends {size(row.retransmit_bytes_s)}/s again")
    if row.slow:
        parts.append(row.slow)
    return ", ".join(parts)


def sentences(found: Sequence[Row]) -> list[str]:
    """How each job does, in a sentence. ``found``: rows by rail."""
    jobs: dict[tuple[str, int], list[Row]] = {}
    for row in found:
        jobs.setdefault((row.job, row.uid), []).append(row)
    users = Counter(job for job, _ in jobs)
    return [
        f"{job}{f' (uid {uid})' if users[job] > 1 else ''}: {_sentence(rows)}"
        for (job, uid), rows in jobs.items()
    ]


def _sentence(rows: Sequence[Row]) -> str:
    processes = max(row.processes for row in rows)
    dead = sum(bool(row.dead_paths) for row in rows)
    slow = [row.where for row in rows if row.slow]
    stall = sum(row.stall_share for row in rows)
    text = f"{counted(processes, 'process', 'processes')}, {counted(len(rows), 'rail', 'rails')}"
    text += f", sends {size(sum(row.tx_bytes_s for row in rows))}/s"
    text += f"; {dead} of them with dead paths" if dead else ""
    text += f"; {', '.join(slow)} slow" if slow else ""
    text += f"; stalled {100 * stall:.0f} % of the time" if stall else ""
    failovers = sum(row.failovers for row in rows)
    return text + (f"; {counted(failovers, 'failover', 'failovers')} so far" if failovers else "")


def middle(text: str, width: int) -> str:
    """A name of at most ``width`` characters: of a longer one both ends, which tell it apart."""
    if len(text) <= width:
        return text
    front = (width - 1) // 2
    return f"{text[:front]}…{text[len(text) - (width - 1 - front) :]}"


def _narrow(row: Row) -> tuple[str, ...]:
    return (
        size(row.tx_bytes_s),
        size(row.rx_bytes_s),
        duration(row.quantile_us(0.99)),
        notes(row) or "-",
    )


def _wide(row: Row, *, groups: bool) -> tuple[str, ...]:
    paths = f"{row.live_paths}" + (f" -{row.dead_paths}" if row.dead_paths else "")
    return (
        str(row.processes),
        size(row.tx_bytes_s),
        size(row.rx_bytes_s),
        count(row.messages_s),
        duration(row.quantile_us(0.5)),
        duration(row.quantile_us(0.99)),
        size(row.in_flight_bytes),
        size(row.retransmit_bytes_s),
        f"{100 * row.stall_share:.0f} %",
        str(row.failovers),
        str(row.comms) if groups else paths,
        notes(row) or "-",
    )


def size(number: float) -> str:
    """Bytes in the unit that fits, powers of ten: links are sold so."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= limit:
            return f"{number / limit:.2f} {unit}"
    return f"{number:.0f} B"


def count(number: float) -> str:
    """A count per second."""
    return f"{number / 1e3:.1f} k" if number >= 10_000 else f"{number:.0f}"


def duration(us: float | None) -> str:
    """Microseconds in the unit that fits: "at most"."""
    if us is None:
        return "-"
    for limit, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= limit:
            return f"{us / limit:.1f} {unit}"
    return f"{us:.0f} µs"
