"""One host of ``job_world``: its daemon, its agent with one main process, and what it knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from fabric_train.host.witness import is_witness
from fabric_train.messages.documents import (
    NETWORK,
    AgentDocument,
    JobGeneration,
    JobOrder,
    ProcessState,
)
from telemetry.messages.documents import ComputeOrder, HostObservations, SilentHost

JOB = "gpt"
ALERT_S, CALM_S = 0.2, 2.0  # between two documents that say a newer step


@dataclass
class SimulatedHost:
    """One host: its daemon, its agent with one main process, and what it knows."""

    name: str
    nodes: int
    spares: int
    life: int = 0
    up: bool = True
    paused: bool = False
    broker: bool = True
    state: str = "joined"
    accepted: JobGeneration | None = None
    running: JobGeneration | None = None
    fenced: set[str] = field(default_factory=set)  # host/incarnation
    fence_ids: set[str] = field(default_factory=set)
    stopped: bool = False  # it knows that it is fenced
    recovered: int = 0
    committed: int = 0
    step: int = 0
    suspects: int = 0
    heard_at: dict[str, float] = field(default_factory=dict)
    """Of agents, over management."""
    probed_at: dict[str, float] = field(default_factory=dict)
    """Of probes, over the rails."""
    probes: tuple[str, ...] | None = None
    """Hosts that it probes; None: all."""
    in_job: bool = True
    prober: bool = True
    network: str = "rails"
    told: tuple[int, float] = (0, 0.0)
    """Step that its document says, and since when."""
    looks: int = 0
    sequence: int = 0
    begun_anew: int = 0  # the newest start that has ended before the job had state

    @property
    def incarnation(self) -> str:
        return f"i{self.life}"

    @property
    def process(self) -> str:
        return f"{self.name}.{self.incarnation}.{self.begun_anew}"

    @property
    def works(self) -> bool:
        return self.up and not self.paused

    def document(self, now: float) -> AgentDocument:
        misses = sorted(one for one, at in self.heard_at.items() if now - at > 0.3)
        hears = sorted(one for one, at in self.heard_at.items() if now - at <= 0.3)
        number = self.running.number if self.running else 0
        software = {NETWORK: self.network} if self.network else {}
        process = ProcessState(
            self.process, "ended" if self.stopped else self.state, layout="L", reason="was stopped",
            acknowledged=number, recovered=self.recovered, committed=self.committed,
            step=self._step_to_tell(now), software=software,
        )  # fmt: skip
        return AgentDocument(
            JOB, self.name, self.incarnation, self.nodes, self.spares, 1, f"{self.name}:1",
            f"{self.name}:2", "t", [process], accepted=self.accepted, running=number,
            hears=hears, misses=misses, suspects=self.suspects, looks=self.looks,
        )  # fmt: skip

    def _step_to_tell(self, now: float) -> int:
        """The newest step, each `ALERT_S` while a host is in question, else each `CALM_S`."""
        step, since = self.told
        alert = self._bears_witness(now)
        if now - since >= (ALERT_S if alert else CALM_S) or self.step < step or not step:
            self.told = (self.step, now)
            self.looks += alert
        return self.told[0]

    def _bears_witness(self, now: float) -> bool:
        """As `HostCore.bears_witness` says it."""
        mine, running = self.accepted, self.running
        if mine is None or running is None:
            return False
        fenced = {m.host for m in running.members if f"{m.host}/{m.incarnation}" in self.fenced}
        known = (*self.probed_at.items(), *self.heard_at.items())
        silent = fenced.union(one for one, at in known if now - at > 0.1)
        return is_witness(self.name, running.hosts, silent, waits=mine.number > running.number)

    def observations(self, now: float) -> HostObservations:
        silent = [SilentHost(host=one, rails=2, rails_probed=2)
                  for one, at in self.probed_at.items() if now - at > 0.1]  # fmt: skip
        heard = [one for one, at in self.probed_at.items() if now - at <= 0.1]
        return HostObservations(
            silent=silent, heard=heard, abstains=not self.prober, fences=sorted(self.fence_ids)
        )

    def obey(self, order: ComputeOrder, job: JobOrder | None = None) -> None:
        """As fabricd and fabric-run do: fences first, then ``job``, what ``order`` says of it."""
        for fence in order.fences:
            if fence.host == self.name and fence.incarnation == self.incarnation:
                self.stopped = True
            self.fenced.add(f"{fence.host}/{fence.incarnation}")
            self.fence_ids.add(fence.id)
        if job is None or self.stopped:
            return
        if job.incarnation != self.incarnation or job.generation is None:
            return
        news = job.generation
        if job.phase == "proposed" and self._acceptable(news):
            self.accepted = news
        if job.phase == "held" and self.running is None:
            self.state = "warm"
        ran = self.running
        if job.phase == "waiting" and ran and not ran.formed and ran.number <= news.number:
            self.begun_anew, self.running, self.state = news.number, None, "joined"
        mine = self.accepted
        if news.number <= self.begun_anew:
            return
        if job.phase == "running" and mine is not None and mine.proposal == news.proposal:
            if self.running is None or self.running.proposal != news.proposal:
                self.step = self.step if news.formed else 0
            self.running = news
            self.state = "warm"

    def _acceptable(self, news: JobGeneration) -> bool:
        if self.accepted is not None and (
            news.number <= self.accepted.number or news.base < self.accepted.number
        ):
            return False
        if not news.formed and self.committed:
            return False  # It would lose all steps.
        holders = {
            f"{member.host}/{member.incarnation}"
            for member in news.members
            if member.host in news.hosts
        }
        return not holders & self.fenced

    def restart(self) -> None:
        """Another life: nothing is remembered."""
        self.life += 1
        self.up, self.paused, self.stopped, self.state = True, False, False, "joined"
        self.accepted = self.running = None
        self.fenced, self.fence_ids = set(), set()
        self.recovered = self.committed = self.step = self.suspects = 0
        self.prober, self.told = True, (0, 0.0)
        self.heard_at.clear()
        self.probed_at.clear()
