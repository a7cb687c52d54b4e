"""What the view shows, kept up to date by the run: plain data, no terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from lab.demo.record import JobEvent, Rail
from lab.demo.story import Chapter
from telemetry.events import Event, EventKind, LinkState
from telemetry.statspage import PathDownReason, StatsEventKind

HISTORY = 240
LOG_LINES = 200
MERGE_S = 1.0
"""What is said again within this time is counted on the line that said it first."""
MERGE_LINES = 24
MERGED = frozenset({"flap", "plugin"})
"""Styles of lines that come in bursts."""


@dataclass(slots=True)
class LogLine:
    """One line of the log: seconds since the job's start, a style of the view, what is said."""

    at_s: float
    style: str
    what: str
    times: int = 1
    last_s: float = 0.0

    @property
    def text(self) -> str:
        """What is said, and how often."""
        return self.what if self.times == 1 else f"{self.what}  × {self.times}"

    def settled(self, now_s: float) -> bool:
        """Whether the count cannot grow any more."""
        return self.style not in MERGED or now_s > self.last_s + MERGE_S


@dataclass(slots=True)
class Live:
    """The run so far. Rates in byte/s of payload sent per rail and accepted in total."""

    hosts: tuple[str, ...]
    rails: tuple[str, ...]
    seconds: float
    chapters: list[Chapter]
    failover: bool
    phase: str = "setting up"
    start_ns: int = 0
    now_s: float = 0.0
    addresses: Mapping[str, Rail] = field(default_factory=dict)
    """Whose each address of a path is."""
    states: dict[Rail, LinkState] = field(default_factory=dict)
    unreachable: dict[Rail, set[str]] = field(default_factory=dict)
    """Peers whose same rail a link does not reach."""
    rates: dict[Rail, deque[float]] = field(default_factory=dict)
    total: list[float] = field(default_factory=list)
    """Since the start, one value for each 0.1 s."""
    log: deque[LogLine] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    lines_ever: int = 0
    running: int = 0
    retransmitted: int = 0
    errors: int = 0

    def current(self, at_s: float | None = None) -> Chapter | None:
        """The chapter in force, now or then."""
        when = self.now_s if at_s is None else at_s
        for chapter in self.chapters:
            if chapter.at <= when < chapter.at + chapter.seconds:
                return chapter
        return None

    def faulty(self, rail: Rail, at_s: float | None = None) -> bool:
        """Whether a fault holds that rail, now or then."""
        chapter = self.current(at_s)
        return chapter is not None and rail in chapter.rails

    def add(self, style: str, what: str, t_ns: int | None = None, times: int = 1) -> None:
        """Append a line to the log, or count it on the line that has just said the same."""
        at_s = self.now_s if t_ns is None else (t_ns - self.start_ns) / 1e9
        if style in MERGED:
            for line in islice(reversed(self.log), MERGE_LINES):
                if line.what == what and at_s - line.last_s <= MERGE_S:
                    line.times += times
                    line.last_s = max(line.last_s, at_s)
                    return
        self.log.append(LogLine(at_s, style, what, times, at_s))
        self.lines_ever += 1

    def sample(self, host: str, seconds: float, rails: dict[str, dict[str, int]]) -> None:
        """One sample row of a rank that covers ``seconds``."""
        for rail in self.rails:
            history = self.rates.setdefault((host, rail), deque(maxlen=HISTORY))
            history.append(rails.get(rail, {}).get("tx", 0) / seconds)

    def take(self, events: list[Event], jobs: list[JobEvent]) -> None:
        """Turn new events into states and lines of the log."""
        lines: list[tuple[int, str, str, int]] = []
        for event in events:
            if event.kind is EventKind.LINK_STATE and event.to_state is not None:
                self.states[event.host, event.link] = event.to_state
            if event.kind is EventKind.PATH_STATE:
                self._path(event)
            # Single paths and suspicions are in the report; here they would drown the failures.
            if event.peer or is_suspicion(event) or event.kind is EventKind.PROBER:
                continue
            if event.kind is EventKind.FLAP:
                where = f"{event.host} {event.link}"
                lines.append((event.mono_ns, "flap", f"{where}  carrier lost", event.count))
            elif line := describe(event):
                lines.append((event.mono_ns, *line, 1))
        lines += [(job.event.time_ns, *line, 1) for job in jobs if (line := describe_job(job))]
        for t_ns, style, text, times in sorted(lines):
            if t_ns >= self.start_ns > 0:
                self.add(style, text, t_ns, times)

    def _path(self, event: Event) -> None:
        peer, rail = self.addresses.get(str(event.data.get("address")), ("", ""))
        if rail != event.link:
            return  # a cross-rail path
        peers = self.unreachable.setdefault((event.host, event.link), set())
        if event.to_state in (LinkState.DOWN, LinkState.HOLD):
            peers.add(peer)
        else:
            peers.discard(peer)


def is_suspicion(event: Event) -> bool:
    """Whether a row only says that a link is suspected, or no longer: no traffic moves for it."""
    states = {event.from_state, event.to_state}
    return event.kind is EventKind.LINK_STATE and states == {LinkState.UP, LinkState.SUSPECT}


def describe(event: Event) -> tuple[str, str] | None:
    """Style and text of a timeline row; None: not worth a line."""
    where = f"{event.host} {event.link}".strip()
    to = f"path to {event.peer}: " if event.peer else ""
    match event.kind:
        case EventKind.LINK_STATE | EventKind.PATH_STATE if event.to_state is not None:
            reason = f": {event.reason}" if event.reason else ""
            style = "down" if event.to_state in (LinkState.DOWN, LinkState.HOLD) else "up"
            old = event.from_state.name.lower() if event.from_state is not None else "?"
            return style, f"{where}  {to}{old} → {event.to_state.name.lower()}{reason}"
        case EventKind.FLAP:
            times = "once" if event.count == 1 else f"{event.count} times"
            return "flap", f"{where}  carrier lost {times}"
        case EventKind.STEER:
            weight = event.data.get("weight")
            if weight == 0:
                return "steer", f"{where}  {to}traffic steered away"
            return "steer", f"{where}  {to}traffic comes back (weight {weight})"
        case EventKind.PROBER | EventKind.DAEMON | EventKind.MODE:
            return "info", f"{where}  {event.reason or event.kind.value}"
        case _:
            return None


def describe_job(job: JobEvent) -> tuple[str, str] | None:
    """The same for an event of a plugin."""
    where = f"{job.host} {job.local}".strip()
    match job.event.kind:
        case StatsEventKind.PATH_DOWN:
            try:
                why = PathDownReason(job.event.detail).name.lower().replace("_", " ")
            except ValueError:
                why = f"reason {job.event.detail}"
            return "plugin", f"{where}  plugin gives a path up ({why})"
        case StatsEventKind.ALL_PATHS_DOWN:
            return "down", f"{where}  plugin: all paths to a peer are down"
        case StatsEventKind.ERROR:
            return "down", f"{where}  plugin returned error {job.event.detail}"
        case _:
            return None
