"""Watches a running lab through the interfaces an operator has: timelines and stats pages."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fabricd.cli import client
from lab.demo.record import JobEvent, RetransmitSample
from lab.node import Node
from telemetry.events import Event, EventKind, LinkState
from telemetry.statsdir import StatsDirectory
from telemetry.timeline import Timeline, TimelineError


@dataclass(slots=True)
class HostWatch:
    """One host: its daemon's timeline and link states, its jobs' stats pages."""

    node: Node
    with_daemon: bool
    states: dict[str, LinkState] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    job_events: list[JobEvent] = field(default_factory=list)
    lost_job_events: int = 0
    stats: StatsDirectory = field(init=False)
    _timeline: Timeline | None = None
    _cursor: int = 0
    _retransmitted: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stats = StatsDirectory(self.node.run_dir / "stats")

    @property
    def retransmitted(self) -> int:
        """Bytes that this host's processes have sent again so far."""
        return sum(self._retransmitted.values())

    def ready(self) -> bool:
        """Whether the daemon answers and holds every link and path for up."""
        try:
            links = client.request(self.node.run_dir / "ctl.sock", {"op": "links"})
        except (client.DaemonError, OSError):
            return False
        for link in links:
            self.states[link["netdev"]] = LinkState[link["state"].upper()]
        paths = [path for link in links for path in link["paths"]]
        return bool(paths) and all(row["state"] == "up" for row in [*links, *paths])

    def poll(self) -> tuple[list[Event], list[JobEvent]]:
        """Read what is new: rows of the timeline, events of the stats pages."""
        return self._poll_timeline(), self._poll_stats()

    def _poll_timeline(self) -> list[Event]:
        if not self.with_daemon:
            return []
        new: list[Event] = []
        try:
            if self._timeline is None:
                path = self.node.state_dir / "timeline.db"
                self._timeline = Timeline(path, host=self.node.name, read_only=True)
            while True:
                events, self._cursor = self._timeline.read_after(self._cursor)
                new += events
                if len(events) < 1000:
                    break
        except TimelineError:
            return new  # not made yet, or busy: next time
        for event in new:
            if event.kind is EventKind.LINK_STATE and event.to_state is not None:
                self.states[event.link] = event.to_state
        self.events += new
        return new

    def _poll_stats(self) -> list[JobEvent]:
        new: list[JobEvent] = []
        for process in self.stats.scan(time.monotonic_ns()):
            rails = process.page.rails
            self._retransmitted[process.page.key] = sum(r.retransmit_bytes for r in rails)
            batch = self.stats.new_events(process)
            self.lost_job_events += batch.lost
            new += [
                JobEvent(
                    host=self.node.name,
                    process=process.page.key,
                    event=event,
                    local="" if event.local_rail is None else rails[event.local_rail].netdev,
                )
                for event in batch.events
            ]
        self.job_events += new
        return new

    def close(self) -> None:
        """Close the timeline."""
        if self._timeline is not None:
            self._timeline.close()
            self._timeline = None


@dataclass(slots=True)
class Watch:
    """All hosts of a lab."""

    hosts: list[HostWatch]
    retransmits: list[RetransmitSample] = field(default_factory=list)

    def poll(self) -> tuple[list[Event], list[JobEvent]]:
        """What is new on all hosts, in the order of time."""
        events: list[Event] = []
        jobs: list[JobEvent] = []
        for host in self.hosts:
            new_events, new_jobs = host.poll()
            events += new_events
            jobs += new_jobs
        total = sum(host.retransmitted for host in self.hosts)
        self.retransmits.append(RetransmitSample(time.monotonic_ns(), total))
        events.sort(key=lambda event: event.mono_ns)
        jobs.sort(key=lambda job: job.event.time_ns)
        return events, jobs

    def close(self) -> None:
        """Close every host's timeline."""
        for host in self.hosts:
            host.close()
