"""A fleet of simulated hosts at a real broker: fabricd's own client, topics and envelopes.

Each host has a connection with a last will, a document, observations of about 20 peers, and an
agent of the job that it is in. Each job has a key: its agents seal who they are, and accept no
generation with a member without that seal. A frozen host says nothing more, and its connection
stays open, as that of a host that hangs.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fabric_train.host.job_key import JobKey
from fabric_train.messages.documents import (
    AgentDocument,
    DocumentError,
    JobGeneration,
    JobOrder,
    ProcessState,
    parse,
    to_data,
)
from telemetry.broker.client import BrokerClient
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.documents import ComputeOrder, HostDocument, HostJob, HostObservations
from telemetry.messages.documents import parse as parse_data
from telemetry.messages.envelope import Message, Sender, encode
from telemetry.messages.topics import Kind, Topic, subscription

RANKS = 8
"""Of a host."""
PEERS = 10
"""That each host chooses to probe; as many on the average choose it."""
JOBS = ((512, 4), *[(128, 2)] * 4, *[(32, 1)] * 16, *[(8, 1)] * 44)
"""(hosts with ranks, spare hosts) of each job, for a fleet of 2,000. What is left has no job."""


@dataclass(frozen=True)
class Place:
    """What a host is part of. ``job`` is "" for a host without one."""

    host: str
    job: str
    nodes: int = 0
    spares: int = 0
    mates: tuple[str, ...] = ()
    """All hosts of the job, this one among them."""
    peers: tuple[str, ...] = ()
    """Hosts that it probes, and that probe it."""


def plan(hosts: int, seed: int = 1) -> dict[str, Place]:
    """Host → place, the same for the same arguments. Jobs shrink with the number of hosts."""
    names = [f"gpu-{number:04}" for number in range(hosts)]
    chosen = random.Random(seed)
    pairs: dict[str, set[str]] = {name: set() for name in names}
    for name in names:
        for other in chosen.sample(names, min(PEERS + 1, hosts)):
            if other != name:
                pairs[name].add(other)
                pairs[other].add(name)
    places: dict[str, Place] = {}
    left = list(names)
    for number, (most, spares) in enumerate(JOBS):
        nodes = max(4, most * hosts // 2000)
        if nodes + spares > len(left):
            continue
        mates, left = tuple(left[: nodes + spares]), left[nodes + spares :]
        for name in mates:
            job = f"job-{number:02}"
            places[name] = Place(name, job, nodes, spares, mates, tuple(sorted(pairs[name])))
    for name in left:
        places[name] = Place(name, "", peers=tuple(sorted(pairs[name])))
    return places


@functools.cache
def key_of(job: str) -> JobKey:
    """The key of a job, which its hosts alone have."""
    return JobKey(job, random.Random(job).randbytes(32))


@dataclass
class Happened:
    """What the hosts of one process have seen; times are CLOCK_MONOTONIC seconds."""

    clock: Callable[[], float]
    fenced: dict[str, float] = field(default_factory=dict)
    """Host → when the first order with a fence of it came to any other host."""
    running: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    """(job, generation) → host → when it started it."""
    ordered: dict[str, dict[str, float]] = field(default_factory=dict)
    """Lost host → host → when an order with the fence came to it."""
    largest_order: int = 0
    """Bytes, as JSON, of the largest order that was new to a job."""
    sealed: set[str] = field(default_factory=set)
    """Proposals whose seals were found right. All hosts are here, so one looks for all."""
    wrong: list[str] = field(default_factory=list)


class SimulatedHost:
    """One host with its connection. ``run`` it, then call ``publish`` after each change."""

    def __init__(self, settings: BrokerSettings, place: Place, happened: Happened) -> None:
        self.place, self.happened = place, happened
        self.frozen = False
        self.step = 0
        self.published = 0
        """Messages handed to the client, and not replaced by a newer one before."""
        self._accepted: JobGeneration | None = None
        self._running: JobGeneration | None = None
        self._warm = False
        self._silent: set[str] = set()
        self._fences: set[str] = set()
        self._incarnation = f"{random.Random(place.host).getrandbits(64):016x}"
        self._token = random.Random(place.host + "token").randbytes(32).hex()
        self.client = BrokerClient(
            settings,
            client_id=f"fabricd-{place.host}",
            factory=MessageFactory(Sender("boot", self._incarnation)),
            status=Topic(Kind.HOST_STATUS, place.host),
            subscriptions=[(subscription(Kind.COMPUTE_ORDER, name=place.host), 1)],
            receiver=self,
        )

    def publish(self) -> None:
        """All of its present state."""
        host = self.place.host
        links = [
            {"netdev": f"eth{rail}", "rail": rail, "addresses": [f"10.{rail}.{host[-4:]}"]}
            for rail in range(8)
        ]
        document = HostDocument.model_validate({"name": host, "links": links, "probe_port": 7011})
        self._set(Topic(Kind.HOST_DOCUMENT, host), document.model_dump(mode="json"))
        self.publish_observations()
        self.publish_agent()

    def publish_observations(self, *, gap_ms: float = 0.0) -> None:
        """What its probes say."""
        said = HostObservations.model_validate(
            {
                "silent": [
                    {"host": one, "rails": 8, "rails_probed": 8}
                    for one in self.place.peers
                    if one in self._silent
                ],
                "heard": [one for one in self.place.peers if one not in self._silent],
                "fences": sorted(self._fences),
                "gap_ms": gap_ms,
            }
        )
        topic = Topic(Kind.HOST_OBSERVATIONS, self.place.host)
        self._set(topic, said.model_dump(mode="json"))

    def publish_agent(self) -> None:
        """What its agent says of its job."""
        place = self.place
        if not place.job:
            return
        document = self._document()
        job = HostJob(
            job=place.job, incarnation=self._incarnation, uid=0, document=to_data(document)
        )
        self._set(Topic(Kind.HOST_JOB, place.host, place.job), job.model_dump(mode="json"))

    def _set(self, topic: Topic, data: Mapping[str, object]) -> None:
        if not self.frozen:
            self.published += self.client.set_state(topic, dict(data))

    def _document(self) -> AgentDocument:
        place, running = self.place, self._running
        number = running.number if running else 0
        trains = running is not None and place.host in running.hosts
        processes = [
            ProcessState(
                f"{place.host}/{self._incarnation}/p{rank}",
                "warm" if self._warm else "joined",
                layout="L",
                software={"torch": "2.13.0", "fabric_train": "1"},
                acknowledged=number,
                recovered=number if trains else 0,
                committed=number if trains else 0,
                step=self.step if trains else 0,
            )
            for rank in range(RANKS)
        ]
        others = [one for one in place.mates if one != place.host]
        key = key_of(place.job)
        address, store = (f"10.0.{place.host[-4:]}:{port}" for port in (40000, 40001))
        return AgentDocument(
            place.job, place.host, self._incarnation, place.nodes, place.spares, RANKS,
            address, store, self._token, processes,
            accepted=self._accepted, running=number,
            hears=[one for one in others if one not in self._silent],
            misses=[one for one in others if one in self._silent],
            key=key.id,
            seal=key.seal(place.host, self._incarnation, address, store, self._token),
        )  # fmt: skip

    def largest_document(self) -> int:
        """Bytes of its present document of the job, as a message."""
        topic = Topic(Kind.HOST_JOB, self.place.host, self.place.job)
        data = self.client.states.value(topic)
        factory = MessageFactory(Sender("boot", self._incarnation))
        return 0 if data is None else len(encode(factory.make(topic, data)))

    def freeze(self) -> None:
        """It says nothing more."""
        self.frozen = True

    def lose(self, host: str) -> bool:
        """It hears ``host`` no more. Returns whether it had anything to say about that."""
        if host == self.place.host or self.frozen:
            return False
        probes, mate = host in self.place.peers, host in self.place.mates
        self._silent.add(host)
        if probes:
            self.publish_observations()
        if mate:
            self.publish_agent()
        return probes or mate

    # -- Receiver -----------------------------------------------------------------------------

    def received(self, message: Message, *, retained: bool) -> None:  # noqa: ARG002
        """An order: fences first, then the job."""
        if self.frozen:
            return
        now = self.happened.clock()
        try:
            order = parse_data(ComputeOrder, message.data)
            data = order.jobs.get(self.place.job)
            job = None if data is None else parse(JobOrder, data)
        except DocumentError as error:
            self.happened.wrong.append(f"{self.place.host}: {error}")
            return
        fences = {one.id for one in order.fences}
        if not fences <= self._fences:
            for one in order.fences:
                self.happened.fenced.setdefault(one.host, now)
                self.happened.ordered.setdefault(one.host, {}).setdefault(self.place.host, now)
            self._fences |= fences
            self.publish_observations()
        if job is not None and job.generation is not None:
            if job.generation.proposal not in self.happened.sealed:
                size = len(json.dumps(message.data, separators=(",", ":")))
                self.happened.largest_order = max(self.happened.largest_order, size)
            self._obey(job, job.generation, now)

    def _obey(self, job: JobOrder, news: JobGeneration, now: float) -> None:
        mine = self._accepted
        if job.phase == "proposed" and (
            mine is None or (news.number > mine.number and news.base >= mine.number)
        ):
            if not self._is_sealed(news):
                return
            self._accepted = news
        elif job.phase == "running" and mine is not None and mine.proposal == news.proposal:
            if self._running is not None and self._running.number >= news.number:
                return
            self._running, self._warm = news, True
            started = self.happened.running.setdefault((self.place.job, news.number), {})
            started[self.place.host] = now
        else:
            return
        self.publish_agent()

    def _is_sealed(self, news: JobGeneration) -> bool:
        """As fabric-run does; what is not sealed is wrong here."""
        sealed = self.happened.sealed
        if news.proposal not in sealed:
            key = key_of(self.place.job)
            if not all(key.is_sealed(member) for member in news.members):
                self.happened.wrong.append(f"{self.place.host}: a member without the key's seal")
                return False
            sealed.add(news.proposal)
        return True

    def cleared(self, topic: Topic) -> None:
        """Orders are not cleared."""

    def refused(self, topic: str, reason: str) -> None:
        """A message that could not be sent or read."""
        self.happened.wrong.append(f"{self.place.host}: {topic}: {reason}")

    def connection_changed(self, *, connected: bool, reason: str) -> None:
        """The client connects again by itself."""
