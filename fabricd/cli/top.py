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

Document = Mapping[str, Any]


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


def table(found: Sequence[Row], *, groups: bool, note: str = "") -> Table:
    """The rows for people; ``note``: as of `missing`."""
    title = note or None
    shown = Table(box=None, pad_edge=False, caption=title, caption_justify="left")
    names = ["job", "peer" if groups else "rail", "procs", "send/s", "receive/s", "msgs/s", "p50",
             "p99", "in flight", "again/s", "stalled", "failovers",
             "comms" if groups else "paths"]  # fmt: skip
    for name in names:
        shown.add_column(
            name, justify="left" if name in ("job", "peer", "rail") else "right", no_wrap=True
        )
    users = Counter(job for job, _ in {(row.job, row.uid) for row in found})
    for row in found:
        whose = f" (uid {row.uid})" if users[row.job] > 1 else ""
        paths = f"{row.live_paths}" + (f" -{row.dead_paths}" if row.dead_paths else "")
        bad = bool(row.dead_paths or row.stall_share or row.retransmit_bytes_s or row.slow)
        shown.add_row(
            Text(row.job + whose),
            Text(f"{row.where} SLOW" if row.slow else row.where),
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
            style="yellow" if bad else "",
        )
    return shown


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
