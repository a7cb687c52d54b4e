"""Hosts, agents and a broker in virtual time, for fabric-compute's decisions. No sockets, no sleep.

Three networks fail apart: the rails (probes, and the job's collectives), management (heartbeats of
agents), and the way to the broker.

Each tick is 50 ms. Messages between hosts and each ``Decider`` take a random time, may be repeated,
and wait while a host has no connection to the broker; the newest document of a host replaces older
ones, as retained messages do.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

from simulated_host import ALERT_S, JOB, SimulatedHost

from compute.decide.absence import LATE_S
from compute.decide.decider import Decider
from compute.decide.effects import FenceIssued, Order, Record
from compute.decide.policy import Policy
from fabric_train.messages.documents import (
    AgentDocument,
    JobGeneration,
    JobOrder,
    parse,
    to_data,
)
from telemetry.messages.documents import (
    ComputeOrder,
    HostJob,
    HostStatus,
)
from telemetry.messages.envelope import Sender

TICK_S = 0.05
USER = 1000
WILL_S = 1.0  # the broker's patience with a host without connection
_STATUS = {"host": HostStatus(online=True), "will": HostStatus(online=False)}


class World:
    """Runs one scenario. ``violations`` has what must never happen."""

    def __init__(
        self, seed: int, *, nodes: int = 4, spares: int = 2, computes: int = 2, others: int = 0,
        probes: int | None = None, network: str = "rails", key: str = "",
    ) -> None:  # fmt: skip
        """``others``: hosts of the fabric that are not of the job. ``probes``: each host probes so
        many others, drawn at random; None: all.
        """
        self.random = random.Random(seed)
        self.now = 0.0
        self.network, self.key = network, key
        names = [f"h{i}" for i in range(nodes + spares)]
        names += [f"x{i}" for i in range(others)]
        self.hosts = {
            name: SimulatedHost(name, nodes, spares, network=network, in_job=name[0] == "h")
            for name in names
        }
        for host in self.hosts.values() if probes is not None else ():
            rest = [name for name in names if name != host.name]
            host.probes = tuple(self.random.sample(rest, min(probes, len(rest))))
        self._pairs = self._probing_pairs()
        self.policy = Policy(
            away_s=0.8, deaf_s=2.5, untold_s=1.5, formation_wait_s=1.0, accept_s=0.6,
            recovery_s=2.0, suspicion_s=0.6, answer_s=2.0,
            recoveries_without_progress=1000, budget_least=100, budget_most=100,
        )  # fmt: skip
        self.deciders = {f"c{i}": self._decider(f"c{i}") for i in range(computes)}
        self.fences: dict[str, list] = {name: [] for name in self.deciders}
        self.orders: dict[tuple[str, str], ComputeOrder] = {}
        self.cut: set[frozenset[str]] = set()
        """Pairs that reach each other neither over the rails nor over management."""
        self.deaf: set[tuple[str, str]] = set()
        """(a, b): over the rails a hears nothing of b."""
        self.management_cut: set[frozenset[str]] = set()
        self.paths_cut: set[str] = set()
        """Hosts whose rails are all dead."""
        self.queue: list[tuple[float, int, str, object]] = []
        self.awaited: dict[str, set[str]] = defaultdict(set)
        """Of a fabric-compute that was started again: hosts whose documents are not there yet."""
        self.offline_since: dict[str, float] = {}
        self.well_since = dict.fromkeys(names, 0.0)
        self.progress: tuple[int, str] = (0, "")
        self.step, self.stepped_at, self.stepping_since = 0, 0.0, 0.0
        self.proved: set[str] = set()
        """Agents whose loss somebody has confirmed."""
        self.core_at = 0.0
        """When a majority of the job's hosts was last connected."""
        self.flapped: set[str] = set()
        """Hosts whose rails came and went: they may be fenced between two flaps."""
        self.violations: list[str] = []
        self.takeovers = 0
        self.records: list[Record] = []
        self.delay_s = 0.2
        self._core_of: tuple[object, frozenset[str]] = (None, frozenset())
        self._last_said: dict[tuple[str, str], object] = {}
        self._parsed: dict[int, tuple[object, JobOrder]] = {}
        self._generations: dict[str, JobGeneration] = {}

    def _decider(self, name: str) -> Decider:
        decider = Decider(name, self.policy)
        decider.set_mode("migrate", 0.0)
        return decider

    def hears(self, a: str, b: str) -> bool:
        """Over the rails ``a`` hears ``b``."""
        if not (self.cut or self.deaf or self.paths_cut):
            return True
        return (
            (a, b) not in self.deaf
            and not (a in self.paths_cut or b in self.paths_cut)
            and not (self.cut and frozenset((a, b)) in self.cut)
        )

    def manages(self, a: str, b: str) -> bool:
        """Over management both reach each other."""
        if not (self.cut or self.management_cut):
            return True
        pair = frozenset((a, b))
        return pair not in self.cut and pair not in self.management_cut

    def connected(self, a: str, b: str) -> bool:
        """The collectives of the job pass between both."""
        if self.network == "agents":
            return self.manages(a, b)
        return self.hears(a, b) and self.hears(b, a)

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
            self._last_said.pop((name, host.name), None)
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
                for name in self.deciders:  # its birth comes with all that it says
                    self._last_said.pop((name, host.name), None)
            self._note_health(host)
        self._deliver()
        for name, decider in self.deciders.items():
            if not self.awaited[name]:
                self._decide(name, decider)
        for (name, to), order in list(self.orders.items()):
            if to not in self.hosts:
                continue  # a stranger's, whom a test plays
            host = self.hosts[to]
            if host.works and host.broker and name in self.deciders and self.random.random() < 0.5:
                job = self._job_order(order)
                if job is not None and host.process in job.kill and self._is_known_to_step():
                    self.violations.append(f"{self.now:.2f}: {host.process} is to be killed")
                host.obey(order, job)

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
            if other is host:
                continue
            if host.prober and (host.probes is None or other.name in host.probes):
                host.probed_at.setdefault(other.name, self.now)
                if other.works and other.prober and self.hears(host.name, other.name):
                    host.probed_at[other.name] = self.now
            if not (host.in_job and other.in_job):
                continue
            if f"{other.name}/{other.incarnation}" in host.fenced:
                continue
            host.heard_at.setdefault(other.name, self.now)
            if other.works and self.manages(host.name, other.name):
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
            if self.now - self.stepped_at > 0.3:
                self.stepping_since = self.now
            self.step, self.stepped_at = step + 1, self.now
            for one in ranks:
                one.step = self.step
                one.recovered = one.committed = generation.number

    def _note_health(self, host: SimulatedHost) -> None:
        """It is well while it reaches a majority of its job, and most of those that probe it."""
        group = self.job_core()
        works = host.works and host.prober and host.broker and host.name in group
        if not (works and self._is_reached(host, group)):
            self.well_since[host.name] = self.now

    def _is_reached(self, host: SimulatedHost, group: frozenset[str]) -> bool:
        if not (self.cut or self.deaf or self.management_cut or self.paths_cut):
            return True
        reached = {one for one in group if self.connected(host.name, one)} - {host.name}
        others = group - {host.name}
        for peers in (others, others & self._pairs[host.name], others & self.electorate()):
            if 2 * len(reached & peers) <= len(peers):
                return False
        return True

    def _probing_pairs(self) -> dict[str, set[str]]:
        """Host → the hosts that it probes, or that probe it."""
        found: dict[str, set[str]] = {name: set() for name in self.hosts}
        for name, host in self.hosts.items():
            for other in self.hosts if host.probes is None else host.probes:
                if other != name:
                    found[name].add(other)
                    found[other].add(name)
        return found

    def electorate(self) -> set[str]:
        """Hosts of the newest generation that any agent has accepted."""
        known = [one.accepted for one in self.hosts.values() if one.accepted is not None]
        if not known:
            return {one.name for one in self.hosts.values() if one.in_job}
        newest = max(known, key=lambda one: one.number)
        return {name.partition("/")[0] for name in newest.electorate if name not in self.proved}

    def job_core(self) -> frozenset[str]:
        """Hosts that work, and that the job's network connects with most of its electorate."""
        key = (round(self.now / TICK_S), len(self.cut))
        if self._core_of[0] == key:
            return self._core_of[1]
        electorate, left = self.electorate(), {h.name for h in self.hosts.values() if h.works}
        found: frozenset[str] = frozenset()
        while left and not found:
            group, edge = set(), [left.pop()]
            while edge:
                group.add(one := edge.pop())
                near = [name for name in left if self.connected(one, name)]
                left.difference_update(near)
                edge += near
            if 2 * len(group & electorate) > len(electorate):
                found = frozenset(group)
        self._core_of = (key, found)
        if found:
            self.core_at = self.now
        return found

    def _publish(self, host: SimulatedHost, to: list[str]) -> None:
        host.sequence += 1
        said = host.observations(self.now)
        document = self._over_the_wire(self._document(host)) if host.in_job else None
        for name in to:
            if self.random.random() < 0.3 and len(to) > 1:
                continue  # coalesced with the next
            if self._last_said.get((name, host.name)) == (document, said):
                continue
            self._last_said[name, host.name] = (document, said)
            at = self.now + self.random.random() ** 3 * self.delay_s
            self.queue.append((at, host.sequence, name, ("host", host.name, document, said)))

    def _document(self, host: SimulatedHost) -> AgentDocument:
        return replace(host.document(self.now), key=self.key)

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
                if document is None:
                    continue
                news = HostJob(job=JOB, incarnation=document.incarnation, uid=USER)
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
                given_up = "not all ranks recovered" in effect.fields.get("reason", "")
                if given_up and effect.kind == "phase" and self._is_known_to_step():
                    self.violations.append(f"{self.now:.2f}: given up while it steps: {effect}")

    def _is_known_to_step(self) -> bool:
        """For so long that who decides has heard of it, by documents delayed on the way."""
        steps = self.now - self.stepped_at < 1.5 * TICK_S
        return steps and self.now - self.stepping_since > self.delay_s + 2 * ALERT_S + LATE_S

    def _check_fence(self, effect: FenceIssued) -> None:
        host = self.hosts[effect.fence.host]
        if effect.fence.incarnation != host.incarnation:
            return
        generation = host.running
        holds = generation is not None and host.process in generation.slots
        if holds and self._is_known_to_step() and host.name not in self.flapped:
            self.violations.append(f"{self.now:.2f}: {host.name} is fenced while its job steps")
        proved = effect.fence.reason.startswith("confirmed lost")
        if proved:
            self.proved.add(f"{host.name}/{host.incarnation}")
            self._core_of = (None, frozenset())
        elif not self.job_core() and self.now - self.core_at > WILL_S + self.delay_s + 0.5:
            self.violations.append(f"{self.now:.2f}: {host.name} is fenced, and no majority is")
        well = self.now - self.well_since[host.name]
        # A peer that was paused as the host became well says the old thing until its last will.
        if well > WILL_S + self.delay_s + 0.5 + self.policy.away_s:
            self.violations.append(
                f"{self.now:.2f}: {host.name} is fenced, well for {well:.2f} s: {effect.fence}"
            )
