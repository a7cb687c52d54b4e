"""Hosts, agents and a broker in virtual time, for fabric-compute's decisions. No sockets, no sleep.

Each tick is 50 ms. Messages between hosts and each ``Decider`` take a random time, may be repeated,
and wait while a host has no connection to the broker; the newest document of a host replaces older
ones, as retained messages do.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace

from compute.decide.decider import Decider, FenceIssued, Order, Record
from compute.decide.policy import Policy
from fabric_train.messages.documents import (
    AgentDocument,
    JobGeneration,
    JobOrder,
    ProcessState,
    parse,
    to_data,
)
from telemetry.messages.documents import (
    ComputeOrder,
    HostJob,
    HostObservations,
    HostStatus,
    SilentHost,
)
from telemetry.messages.envelope import Sender

TICK_S = 0.05
WILL_S = 1.0  # the broker's patience with a host without connection
JOB = "gpt"
_STATUS = {"host": HostStatus(online=True), "will": HostStatus(online=False)}


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
        process = ProcessState(
            self.process, "ended" if self.stopped else self.state, layout="L", reason="was stopped",
            acknowledged=number, recovered=self.recovered, committed=self.committed, step=self.step,
        )  # fmt: skip
        return AgentDocument(
            JOB, self.name, self.incarnation, self.nodes, self.spares, 1, f"{self.name}:1",
            f"{self.name}:2", "t", [process], accepted=self.accepted, running=number,
            hears=hears, misses=misses, suspects=self.suspects,
        )  # fmt: skip

    def observations(self, now: float) -> HostObservations:
        silent = [SilentHost(host=one, rails=2, rails_probed=2)
                  for one, at in self.heard_at.items() if now - at > 0.1]  # fmt: skip
        heard = [one for one, at in self.heard_at.items() if now - at <= 0.1]
        return HostObservations(silent=silent, heard=heard, fences=sorted(self.fence_ids))

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
        self.heard_at.clear()


class World:
    """Runs one scenario. ``violations`` has what must never happen."""

    def __init__(self, seed: int, *, nodes: int = 4, spares: int = 2, computes: int = 2) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        names = [f"h{i}" for i in range(nodes + spares)]
        self.hosts = {name: SimulatedHost(name, nodes, spares) for name in names}
        self.policy = Policy(
            formation_wait_s=1.0, accept_s=0.6, recovery_s=2.0, suspicion_s=0.6, answer_s=2.0,
            recoveries_without_progress=1000, budget_least=100, budget_most=100,
        )  # fmt: skip
        self.deciders = {f"c{i}": self._decider(f"c{i}") for i in range(computes)}
        self.fences: dict[str, list] = {name: [] for name in self.deciders}
        self.orders: dict[tuple[str, str], ComputeOrder] = {}
        self.cut: set[frozenset[str]] = set()
        self.queue: list[tuple[float, int, str, object]] = []
        self.awaited: dict[str, set[str]] = defaultdict(set)
        """Of a fabric-compute that was started again: hosts whose documents are not there yet."""
        self.offline_since: dict[str, float] = {}
        self.well_since = dict.fromkeys(names, 0.0)
        self.progress: tuple[int, str] = (0, "")
        self.step = 0
        self.violations: list[str] = []
        self.takeovers = 0
        self.records: list[Record] = []
        self.delay_s = 0.2
        self._parsed: dict[int, tuple[object, JobOrder]] = {}
        self._generations: dict[str, JobGeneration] = {}

    def _decider(self, name: str) -> Decider:
        decider = Decider(name, self.policy)
        decider.set_mode("migrate", 0.0)
        return decider

    def connected(self, a: str, b: str) -> bool:
        return frozenset((a, b)) not in self.cut

    @property
    def over(self) -> bool:
        """The job has failed."""
        return any(one.kind == "job_failed" for one in self.records)

    def crash_compute(self, name: str) -> None:
        """kill -9 and a start with the store that it had; retained documents arrive anew.

        It decides nothing before all of them are here, as `compute.link` sees to.
        """
        self.deciders[name] = self._decider(name)
        self.deciders[name].restore(list(self.fences[name]), self.now)
        self.awaited[name] = set(self.hosts)
        for host in self.hosts.values():
            self._publish(host, [name])

    def tick(self) -> None:
        self.now += TICK_S
        for host in self.hosts.values():
            if host.works:
                self._look_around(host)
                self._train_alone(host)
        self._train()
        for host in self.hosts.values():
            reachable = host.works and host.broker
            if reachable:
                self.offline_since.pop(host.name, None)
                self._publish(host, list(self.deciders))
            elif host.name not in self.offline_since:
                self.offline_since[host.name] = self.now
            elif self.now - self.offline_since[host.name] > WILL_S:
                self._send_will(host)
            self._note_health(host)
        self._deliver()
        for name, decider in self.deciders.items():
            if not self.awaited[name]:
                self._decide(name, decider)
        for (name, to), order in list(self.orders.items()):
            host = self.hosts[to]
            if host.works and host.broker and name in self.deciders and self.random.random() < 0.5:
                host.obey(order, self._job_order(order))

    def _job_order(self, order: ComputeOrder) -> JobOrder | None:
        """What is in ``order`` for the job. An order is obeyed in many ticks, and parsed once."""
        data = order.jobs.get(JOB)
        if data is None:
            return None
        known = self._parsed.get(id(data))
        if known is None or known[0] is not data:
            known = self._parsed[id(data)] = (data, parse(JobOrder, data))
        return known[1]

    def _over_the_wire(self, document: AgentDocument) -> AgentDocument:
        """``document`` as its receivers parse it: its generation only when it is another one."""
        accepted = document.accepted
        if accepted is not None and accepted.proposal not in self._generations:
            known = parse(JobGeneration, to_data(accepted))
            self._generations[accepted.proposal] = known
        rest = parse(AgentDocument, to_data(replace(document, accepted=None)))
        return rest if accepted is None else replace(
            rest, accepted=self._generations[accepted.proposal]
        )  # fmt: skip

    def _look_around(self, host: SimulatedHost) -> None:
        for other in self.hosts.values():
            if other is host or f"{other.name}/{other.incarnation}" in host.fenced:
                continue
            host.heard_at.setdefault(other.name, self.now)
            if other.works and self.connected(host.name, other.name):
                host.heard_at[other.name] = self.now

    def _train_alone(self, host: SimulatedHost) -> None:
        generation = host.running
        if generation is None or host.stopped:
            return
        peers = [self.hosts[name] for name in generation.hosts]
        whole = all(
            peer.works and self.connected(host.name, peer.name) for peer in peers if peer != host
        )
        if not whole and host.process in generation.slots:
            host.suspects = generation.number

    def _train(self) -> None:
        """One step for each generation whose ranks all run it and reach each other."""
        active = []
        for generation in {
            one.running.proposal: one.running for one in self.hosts.values() if one.running
        }.values():
            ranks = [self.hosts[name] for name in generation.hosts]
            if not all(
                one.works and not one.stopped and one.running is not None
                and one.running.proposal == generation.proposal and one.process == slot
                for one, slot in zip(ranks, generation.slots, strict=True)
            ):  # fmt: skip
                continue
            if all(self.connected(a.name, b.name) for a in ranks for b in ranks if a is not b):
                active.append((generation, ranks))
        if len(active) > 1:
            self.violations.append(f"{self.now:.2f}: two generations run: {active}")
        for generation, ranks in active:
            if (generation.number, generation.proposal) != self.progress:
                if generation.number <= self.progress[0]:
                    self.violations.append(
                        f"{self.now:.2f}: back from {self.progress} to {generation.number}"
                    )
                if generation.formed:
                    self.takeovers += 1
                self.progress = (generation.number, generation.proposal)
            step = max(one.step for one in ranks)
            if step < self.step:
                self.violations.append(f"{self.now:.2f}: step {self.step} is lost, now {step}")
            self.step = step + 1
            for one in ranks:
                one.step = self.step
                one.recovered = one.committed = generation.number

    def _note_health(self, host: SimulatedHost) -> None:
        peers = [one for one in self.hosts.values() if one is not host]
        reached = sum(one.works and self.connected(host.name, one.name) for one in peers)
        if not (host.works and host.broker and 2 * reached > len(peers)):
            self.well_since[host.name] = self.now

    def _publish(self, host: SimulatedHost, to: list[str]) -> None:
        host.sequence += 1
        document, said = host.document(self.now), host.observations(self.now)
        document = self._over_the_wire(document)
        for name in to:
            if self.random.random() < 0.3 and len(to) > 1:
                continue  # coalesced with the next
            at = self.now + self.random.random() ** 3 * self.delay_s
            self.queue.append((at, host.sequence, name, ("host", host.name, document, said)))

    def _send_will(self, host: SimulatedHost) -> None:
        for name in self.deciders:
            self.queue.append((self.now, host.sequence, name, ("will", host.name, None, None)))

    def _deliver(self) -> None:
        due = [one for one in self.queue if one[0] <= self.now]
        self.queue = [one for one in self.queue if one[0] > self.now]
        seen = self.__dict__.setdefault("_seen", {})
        for _, sequence, name, (kind, host, document, said) in sorted(due, key=lambda x: x[:2]):
            if sequence < seen.get((name, host), 0) or name not in self.deciders:
                continue  # a broker keeps the order of one sender
            seen[name, host] = sequence
            if kind == "host":
                self.awaited[name].discard(host)
            decider, sender = self.deciders[name], Sender("boot", "d")
            decider.host_status(host, sender, _STATUS[kind], self.now)
            if kind == "host":
                decider.host_observations(host, sender, said, self.now)
                news = HostJob(job=JOB, incarnation=document.incarnation)
                decider.host_job(host, JOB, news, self.now, document=document)

    def _decide(self, name: str, decider: Decider) -> None:
        for effect in decider.decide(self.now):
            if isinstance(effect, Order):
                self.orders[name, effect.host] = effect.order
            elif isinstance(effect, FenceIssued):
                self.fences[name].append(effect.fence)
                self._check_fence(effect)
            elif isinstance(effect, Record):
                self.records.append(effect)

    def _check_fence(self, effect: FenceIssued) -> None:
        host = self.hosts[effect.fence.host]
        if effect.fence.incarnation != host.incarnation:
            return
        well = self.now - self.well_since[host.name]
        # A peer that was paused as the host became well says the old thing until its last will.
        if well > WILL_S + self.delay_s + 0.5:
            self.violations.append(
                f"{self.now:.2f}: {host.name} is fenced, well for {well:.2f} s: {effect.fence}"
            )
