"""The timeline for people: what happened at one moment to one thing is one sentence. Pure.

The timeline keeps a row for each flap, each change of state, each weight and each path of each job.
A fault of one link makes a hundred of them within seconds. `moments` puts together what belongs
together; no flap is lost from the counts. Rows are objects as `Event.to_dict` gives them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fabricd.timeline.levels import ERROR, INFO, WARNING, level
from telemetry.events import Event, EventKind

Row = dict[str, Any]

GAP_NS = 2 * 10**9
"""Rows of a link belong to one moment while no more than this lies between two of them."""
JOB_GAP_NS = 10 * 10**9
"""The same for what the plugins of a job report."""
LEVELS = (INFO, WARNING, ERROR)
CARRIER = frozenset({EventKind.FLAP, EventKind.CARRIER_UP})
WEIGHTS = frozenset({EventKind.STEER, EventKind.WOULD_STEER})
OF_LINK = CARRIER | WEIGHTS | {EventKind.LINK_STATE}
OF_PATH = WEIGHTS | {EventKind.PATH_STATE}
MOST_STATES = 4
"""Of a longer series the first two and the last two are named."""
MOST_PEERS = 4
WHY_DOWN = {
    "steer_page": "fabricd steered away",
    "socket_error": "socket error",
    "no_ack": "no acknowledgement",
    "peer_told": "the peer gave them up",
    "carrier": "no carrier",
    "connect_failed": "no connection",
    "path_validation": "path validation failed",
    "moved": "moved",
    "rehash": "another route was tried",
}
"""`telemetry.statspage.PathDownReason` in words."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened to one thing, with the rows that say so.

    Attributes:
        subject: the link; empty: the host, or a job.
        text: a sentence.
        level: of the worst row: info, warning or error.
        rows: of the timeline, oldest first.
    """

    subject: str
    text: str
    level: str
    rows: tuple[Row, ...]

    @property
    def wall_ns(self) -> int:
        """CLOCK_REALTIME of the first row."""
        return min(int(row["wall_ns"]) for row in self.rows)

    @property
    def until_wall_ns(self) -> int:
        """CLOCK_REALTIME of the last row."""
        return max(int(row["wall_ns"]) for row in self.rows)


class Grouping:
    """Rows in, groups of rows out: for rows that come one by one."""

    def __init__(self) -> None:
        """No row has come."""
        self._open: dict[tuple[str, ...], list[Row]] = {}
        self._groups: list[list[Row]] = []
        self._boot = ""

    def add(self, row: Row) -> None:
        """The next row, in the order of the timeline: what pages of jobs say may come late."""
        if row.get("boot_id", "") != self._boot:
            self._boot = row.get("boot_id", "")
            self._open.clear()
        key = self._key(row)
        group = self._open.get(key)
        if group is not None and abs(_at(row) - _at(group[-1])) <= _gap(row):
            group.append(row)
            return
        self._open[key] = made = [row]
        self._groups.append(made)

    def take(self, before_ns: int | None = None) -> list[list[Row]]:
        """The groups so far, by their first row; they are no longer kept.

        Args:
            before_ns: CLOCK_MONOTONIC: only those whose last row is older, and no later ones; None:
                all.
        """
        done = 0
        while done < len(self._groups) and (
            before_ns is None or _at(self._groups[done][-1]) < before_ns
        ):
            done += 1
        taken, self._groups = self._groups[:done], self._groups[done:]
        kept = {id(group) for group in self._groups}
        self._open = {key: group for key, group in self._open.items() if id(group) in kept}
        return taken

    def _key(self, row: Row) -> tuple[str, ...]:
        kind, link, data = row["kind"], row.get("link", ""), row.get("data") or {}
        if kind == EventKind.PLUGIN and "job" in data:
            return "job", str(data["job"]), str(data.get("uid"))
        transport = str(data.get("transport", ""))
        if link and row.get("peer") and kind in OF_PATH:
            # What its link does at that moment explains it.
            of_link = ("link", link, "")
            last = self._open.get(of_link)
            if last is not None and abs(_at(row) - _at(last[-1])) <= GAP_NS:
                return of_link
            return "paths", link, transport
        if link and kind in OF_LINK:
            return "link", link, transport
        return "other", kind, link, str(row.get("reason", "")), str(row.get("peer", ""))


def moments(rows: Iterable[Row]) -> list[Moment]:
    """The rows (oldest first) put together, in the order of their first ones."""
    grouping = Grouping()
    for row in rows:
        grouping.add(row)
    return [moment(group) for group in grouping.take()]


def moment(group: Sequence[Row]) -> Moment:
    """One group of `Grouping` in words."""
    first = group[0]
    kinds = {row["kind"] for row in group}
    if first["kind"] == EventKind.PLUGIN and (first.get("data") or {}).get("job"):
        subject, text = "", _job(group)
    elif kinds <= OF_LINK | OF_PATH and first.get("link"):
        subject, text = first["link"], _link(group)
    else:
        subject, text = first.get("link", ""), _other(group)
    return Moment(subject, text, _level(group), tuple(group))


def single(row: Row) -> Moment:
    """One row alone, with all that it says."""
    made = moment([row])
    data = row.get("data") or {}
    details = " ".join(f"{key}={value}" for key, value in data.items())
    said = row.get("reason", "") if row["kind"] == EventKind.PLUGIN else made.text
    text = f"{row['kind']}: {said}" + (f" [{details}]" if details else "")
    return Moment(row.get("link", ""), text, made.level, (row,))


def _at(row: Row) -> int:
    return int(row["mono_ns"]) if "mono_ns" in row else int(row["wall_ns"])


def _gap(row: Row) -> int:
    return JOB_GAP_NS if row["kind"] == EventKind.PLUGIN else GAP_NS


def _level(rows: Iterable[Row]) -> str:
    found = set()
    for row in rows:
        try:
            found.add(level(Event.from_dict(row)))
        except (KeyError, TypeError, ValueError):  # Of a newer release.
            found.add(WARNING)
    return max(found, key=LEVELS.index)


def _link(rows: Sequence[Row]) -> str:
    """A link, with the paths that went with it; or paths of one link alone."""
    own = [row for row in rows if not row.get("peer")]
    paths = [row for row in rows if row.get("peer")]
    if not own:
        return f"{_peers(paths)}: {_changes(paths)}{_reason(paths)}"
    text = ", ".join(part for part in (_carrier(own), _changes(own)) if part)
    text += _reason(own, carrier=not text)
    if "rdma" in {(row.get("data") or {}).get("transport") for row in own}:
        text = f"RDMA: {text}"
    return text + (f"; {_peers(paths)} too" if paths else "")


def _carrier(rows: Sequence[Row]) -> str:
    flaps = [row for row in rows if row["kind"] == EventKind.FLAP]
    count = sum(int(row.get("count", 1)) for row in flaps)
    back = [row for row in rows if row["kind"] == EventKind.CARRIER_UP]
    if not flaps:
        return "has carrier" if back else ""
    last = flaps[-1].get("until_wall_ns", flaps[-1]["wall_ns"])  # of a burst that is one row
    seconds = (last - flaps[0]["wall_ns"]) / 1e9
    if count > 1:
        return f"lost its carrier {count} times" + (f" in {seconds:.1f} s" if seconds > 0 else "")
    if back and _at(back[-1]) >= _at(flaps[0]):
        return f"lost its carrier for {(_at(back[-1]) - _at(flaps[0])) / 1e9:.2g} s"
    return "lost its carrier"


def _changes(rows: Sequence[Row]) -> str:
    """States and weights, the first to the last."""
    states: list[str] = []
    for row in rows:
        if row["kind"] in (EventKind.LINK_STATE, EventKind.PATH_STATE, EventKind.RDMA_STATE):
            for name in (row.get("from"), row.get("to")):
                if name and (not states or states[-1] != name):
                    states.append(name)
    if len({row.get("peer") for row in rows}) > 1:
        states = list(dict.fromkeys(states))  # Several paths: each state once.
    if len(states) > MOST_STATES:
        states = [*states[:2], "…", *states[-2:]]
    parts = [" → ".join(states)] if states else []
    for kind, verb in ((EventKind.STEER, "weight"), (EventKind.WOULD_STEER, "would weigh")):
        weights = [row["data"] for row in rows if row["kind"] == kind and row.get("data")]
        if weights:
            before, after = weights[0].get("before"), weights[-1].get("weight")
            parts.append(f"{verb} {_percent(before)} → {_percent(after)}")
    return ", ".join(parts)


def _percent(weight: object) -> str:
    return f"{weight / 10:.0f} %" if isinstance(weight, int | float) else "?"


def _reason(rows: Sequence[Row], *, carrier: bool = True) -> str:
    """Of the last decision; what the carrier's own rows say is in the sentence already."""
    said = [
        row["reason"]
        for row in rows
        if row.get("reason") and (carrier or row["kind"] not in CARRIER)
    ]
    return f": {said[-1]}" if said else ""


def _peers(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(row["peer"] for row in rows))
    more = len(names) - MOST_PEERS
    text = ", ".join(names[:MOST_PEERS]) + (f" and {more} more" if more > 0 else "")
    return f"path{'s' if len(names) > 1 else ''} to {text}"


def _job(rows: Sequence[Row]) -> str:
    """What the plugins of a job did."""
    kinds = Counter(row.get("reason", "") for row in rows)
    down = [row for row in rows if row.get("reason") == "path_down"]
    parts = []
    if kinds["all_paths_down"]:
        parts.append("NO PATH LEFT")
    errors = sorted({(row.get("data") or {}).get("detail") for row in rows
                     if row.get("reason") == "error"}, key=str)  # fmt: skip
    if errors:
        parts.append(f"ERROR {', '.join(map(str, errors))} went to NCCL")
    if down:
        links = ", ".join(dict.fromkeys(row["link"] for row in down if row.get("link")))
        whys = dict.fromkeys(
            WHY_DOWN.get(str((row.get("data") or {}).get("why")), "") for row in down
        )
        because = ", ".join(why for why in whys if why)
        on = f" on {links}" if links else ""
        parts.append(f"{_times(len(down), 'path')} given up{on}" + _because(because))
    if kinds["path_up"]:
        parts.append(f"{_times(kinds['path_up'], 'path')} taken up again")
    if kinds["rail_told_down"] and not down:
        parts.append("a peer said that its rail is down")
    if kinds["path_weight"]:
        parts.append(f"{_times(kinds['path_weight'], 'weight')} by latency changed")
    if not parts:
        parts.append(f"{_times(len(rows), 'report')} of its plugin (--detail)")
    data = rows[0].get("data") or {}
    return f"job {data['job']}: {', '.join(parts)}"


def _because(text: str) -> str:
    return f" ({text})" if text else ""


def _times(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _by(row: Row) -> str:
    by = (row.get("data") or {}).get("by")
    return f", by {by}" if by and str(by) not in row.get("reason", "") else ""


SENTENCES: dict[str, Callable[[Row], str]] = {
    EventKind.LOCATED: lambda row: f"fault located: {row.get('reason', '')}",
    EventKind.RISK: lambda row: f"failure forecast: {row.get('reason', '')}",
    EventKind.PROBING: lambda row: f"probes: {row.get('reason', '')}",
    EventKind.MODE: lambda row: f"mode: {row.get('reason', '')}",
    EventKind.BROKER: lambda row: f"broker: {row.get('reason', '')}",
    EventKind.FENCE: lambda row: f"fence: {row.get('reason', '')}",
    EventKind.OPERATOR: lambda row: f"operator: {row.get('reason', '')}{_by(row)}",
}
"""Kind → its sentence; of other kinds the reason is one."""


def _other(rows: Sequence[Row]) -> str:
    row = rows[0]
    kind, reason, peer = row["kind"], row.get("reason", ""), row.get("peer", "")
    text = SENTENCES[kind](row) if kind in SENTENCES else reason or kind.replace("_", " ")
    if row.get("from") and row.get("to"):
        text = f"{row['from']} → {row['to']}: {text}"
    if kind == EventKind.RDMA_STATE:
        text = f"RDMA{f' to {peer}' if peer else ''} {text}"
    elif peer and peer not in text:
        text = f"to {peer}: {text}"
    count = sum(int(one.get("count", 1)) for one in rows)
    return text + (f" (× {count})" if count > 1 and kind != EventKind.FINDING else "")
