"""Plays the demo: cluster, daemons, job and faults, watched ten times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.cluster import Cluster
from lab.demo.cpu import CpuWatch
from lab.demo.job import Job
from lab.demo.live import Live
from lab.demo.record import RankEnd, Recording
from lab.demo.story import DAMPING, HOLD, HOSTS, Chapter
from lab.demo.watch import HostWatch, Watch
from lab.topology import Topology

TICK_S = 0.1
READY_S = 20.0
CONNECT_S = 20.0
WIND_DOWN_S = 10.0
AFTER_DEATH_S = 6.0
"""How long the other ranks get to notice that one died, without failover."""


class DemoError(RuntimeError):
    """The demo could not be played; the text says what was missing."""


@dataclass(slots=True)
class Demo:
    """One run. ``show`` is called after each look at the lab."""

    cluster: Cluster
    live: Live
    show: Callable[[], None]
    failover: bool = True
    recording: Recording = field(default_factory=Recording)
    _cpu: CpuWatch = field(default_factory=CpuWatch)
    _seen_error: bool = False

    def play(self) -> Recording:
        """Run everything; the cluster is up already and goes down after.

        Raises:
            DemoError: daemons or job did not start.
        """
        names = tuple(node.name for node in self.cluster.nodes)
        self.recording.hosts = names
        self.recording.rails = self.live.rails
        self.recording.planned = len(self.live.chapters)
        hosts = [HostWatch(node, with_daemon=self.failover) for node in self.cluster.nodes]
        watch = Watch(hosts)
        try:
            if self.failover:
                self._start_daemons(watch)
            job = self._start_job(watch)
            try:
                self._run(watch, job)
            finally:
                job.stop()
            self._collect(watch, job)
        finally:
            watch.close()
        return self.recording

    def _start_daemons(self, watch: Watch) -> None:
        self._phase("starting a prober and a daemon on each host")
        self.cluster.start_daemons(mode="steer", hold=HOLD, damping=DAMPING)
        waiting = list(watch.hosts)
        deadline = time.monotonic() + READY_S
        while waiting:
            waiting = [host for host in waiting if not host.ready()]
            for host in watch.hosts:
                for rail, state in host.states.items():
                    self.live.states[host.node.name, rail] = state
            self.show()
            if time.monotonic() > deadline:
                raise DemoError("; ".join(_why_not_ready(host) for host in waiting))
            if waiting:
                time.sleep(TICK_S)

    def _start_job(self, watch: Watch) -> Job:
        self._phase("starting the job")
        job = Job(self.cluster, self.live.seconds, failover=self.failover)
        deadline = time.monotonic() + CONNECT_S
        try:
            while not all(reader.moving for reader in job.readers):
                for reader in job.readers:
                    reader.poll()
                self._look(watch, job)
                if job.running < HOSTS or time.monotonic() > deadline:
                    job.stop()
                    tail = "; ".join(job.log_tail()) or f"no payload within {CONNECT_S:g} s"
                    raise DemoError(f"the job did not start: {tail}")
                time.sleep(TICK_S / 2)
        except BaseException:
            job.stop()
            raise
        self.live.start_ns = min(reader.first_ns for reader in job.readers)
        self.recording.start_ns = self.live.start_ns
        self.recording.start_wall_ns = time.time_ns() - (time.monotonic_ns() - self.live.start_ns)
        return job

    def _run(self, watch: Watch, job: Job) -> None:
        self._phase("the job runs")
        steps = [step for chapter in self.live.chapters for step in chapter.steps()]
        play = self.cluster.play(steps)
        # The chapters' times count from the play's start; the view's from the job's.
        offset = (play.started_ns - self.live.start_ns) / 1e9
        for chapter in self.live.chapters:
            chapter.at += offset
        told: set[tuple[int, str]] = set()
        end_ns = self.live.start_ns + int((self.live.seconds + WIND_DOWN_S) * 1e9)
        died_ns: int | None = None
        try:
            while job.running:
                began = time.monotonic()
                self._tell(told)
                self._look(watch, job)
                self.show()
                now = time.monotonic_ns()
                if self._seen_error or job.running < HOSTS:
                    died_ns = died_ns or now
                if not self.failover and died_ns and now - died_ns > AFTER_DEATH_S * 1e9:
                    break
                if now > end_ns:
                    break
                time.sleep(max(0.0, TICK_S - (time.monotonic() - began)))
        finally:
            play.stop()
        play.wait(5.0)
        self._phase("collecting")
        if self.failover:
            # What the daemons and plugins said last has to reach their files.
            time.sleep(0.3)
        self._look(watch, job)
        self.show()

    def _look(self, watch: Watch, job: Job) -> None:
        live = self.live
        live.now_s = (time.monotonic_ns() - live.start_ns) / 1e9 if live.start_ns else 0.0
        total, rows = 0.0, 0
        for reader in job.readers:
            before = reader.last_ns
            for row in reader.poll():
                seconds = max(1e-3, (int(row["t_ns"]) - before) / 1e9) if before else TICK_S
                before = int(row["t_ns"])
                live.sample(reader.host, seconds, row["rails"])
            if reader.samples:
                rails = reader.samples[-1]["rails"].values()
                total += sum(rail["rx"] for rail in rails) / reader.last_seconds
                rows += 1
            if reader.error_row is not None and not self._seen_error:
                self._seen_error = True
                live.errors += 1
                text = reader.error_row.get("text", "")
                live.add("down", f"{reader.host}  the job got an error: {text}")
        if rows:
            # Looks are not exactly 0.1 s apart; the view's columns are.
            missing = int(live.now_s / TICK_S) - len(live.total)
            live.total += [total] * max(0, missing)
        live.running = job.running
        self.recording.cpu.append(self._cpu.sample(self._pids(job)))
        events, jobs = watch.poll()
        live.retransmitted = watch.retransmits[-1].total
        live.take(events, jobs)

    def _pids(self, job: Job) -> list[int]:
        services = [s for node in self.cluster.nodes for s in (node.daemon, node.prober)]
        return job.pids + [s.pid for s in services if s is not None and s.pid is not None]

    def _tell(self, told: set[tuple[int, str]]) -> None:
        """Say that a fault begins or is over, before what the daemons say about it."""
        self.live.now_s = (time.monotonic_ns() - self.live.start_ns) / 1e9
        for number, chapter in enumerate(self.live.chapters, 1):
            where = ", ".join(target.replace(":", " ") for target in chapter.targets)
            edges = (
                ("fault", chapter.at, f" FAULT {number}: {chapter.title} — {where} "),
                ("over", chapter.at + chapter.seconds, f" fault {number} is over "),
            )
            for style, at_s, text in edges:
                if at_s <= self.live.now_s and (number, style) not in told:
                    told.add((number, style))
                    t_ns = self.live.start_ns + int(at_s * 1e9)
                    self.live.add(style, text, t_ns)
                    if style == "fault" and chapter.note:
                        self.live.add("info", chapter.note, t_ns)

    def _collect(self, watch: Watch, job: Job) -> None:
        recording = self.recording
        recording.series = [reader.series(recording.rails) for reader in job.readers]
        recording.ends = job.ends()
        recording.events = [event for host in watch.hosts for event in host.events]
        recording.job_events = [event for host in watch.hosts for event in host.job_events]
        recording.retransmits = watch.retransmits
        truth = self.cluster.truth()
        spans = [chapter.span(truth) for chapter in self.live.chapters]
        recording.spans = [span for span in spans if span is not None]

    def _phase(self, text: str) -> None:
        self.live.phase = text
        self.live.add("info", text)
        self.show()


def _why_not_ready(host: HostWatch) -> str:
    log = host.node.dir / "fabricd.log"
    tail = log.read_text(errors="replace").splitlines()[-1:] if log.exists() else []
    states = ", ".join(f"{rail} {state.name.lower()}" for rail, state in host.states.items())
    return f"{host.node.name} is not ready ({states or 'no answer'}; log: {' '.join(tail)})"


def make_live(
    lab: Topology, story: list[Chapter], seconds: float, *, failover: bool = True
) -> Live:
    """The state that the view shows, for the demo's lab."""
    hosts = tuple(f"h{i}" for i in range(lab.hosts))
    rails = tuple(f"rail{r}" for r in range(lab.rails))
    return Live(
        hosts=hosts,
        rails=rails,
        addresses={
            lab.address4(i, r): (host, rail)
            for i, host in enumerate(hosts)
            for r, rail in enumerate(rails)
        },
        seconds=seconds,
        chapters=story,
        failover=failover,
    )


def first_error(ends: list[RankEnd]) -> tuple[RankEnd, dict[str, Any]] | None:
    """The rank that reported an error first, and its row."""
    errors = [(end, end.error) for end in ends if end.error is not None]
    return min(errors, key=lambda pair: pair[1].get("t_ns", 0)) if errors else None
