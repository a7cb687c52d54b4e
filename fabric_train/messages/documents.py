"""What fabric-run of one host and fabric-compute say to each other about a job.

fabricd carries both as they are: ``AgentDocument`` from host to fabric-compute, ``JobOrder`` back.
Each message is the whole present state, so a lost or repeated one does no harm.
``to_data`` gives JSON values; ``parse`` refuses what is not exactly of the described form.

A document has a whole `JobGeneration` in it. One of more than ``PACK_FROM`` bytes is packed there:
``{"number": 7, "packed": "…"}``. Whoever parses it from many hosts holds it once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import weakref
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fabric_train.messages import typed_json
from fabric_train.messages.packed import MOST_BYTES, pack, unpack
from fabric_train.messages.short_form import lengthen, shorten
from fabric_train.messages.step_window import StepWindow
from fabric_train.messages.typed_json import DocumentError, FieldError, Reader

STANDS, WAITS = "stands", "waits"
"""``ProcessState.still``: it works by itself, or waits for others, for long already."""
VERSION = 1
PACK_FROM = 4096
MOST_RANKS = 65_536
"""Of one generation: whoever reads it works for each."""
NETWORK = "network"
"""Key of ``ProcessState.software``: over which network the collectives of the job run.

``rails``, or ``agents``: that of the agents' addresses. An agent of the version before says none.
"""


@dataclass(frozen=True)
class ProcessState:
    """One process of a job on one host.

    ``state``: starting (not yet in ``join``), joined, warm (has protected its state, may hold a
    rank), ended. ``standby``: started to replace a rank of this host. ``acknowledged``,
    ``recovered`` and ``committed`` are the newest generations in which it did so; ``step`` is the
    newest step that it has said to have applied; ``finished`` its last step, once its loop ended.
    ``software``: versions and settings that have to agree in a job; ``NETWORK`` is one of them.
    ``collectives``: how many it has finished, as far as its agent was asked; 0: not said.
    ``window``: how long it worked by itself in its newest window of steps. ``still``: `STANDS`,
    `WAITS`, or "": it goes on, as far as its agent sees; ``frozen``: it is stopped, or runs no
    Python (``agent.hangs``).
    """

    process: str
    state: str
    standby: bool = False
    layout: str | None = None
    software: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    acknowledged: int = 0
    recovered: int = 0
    committed: int = 0
    step: int = 0
    finished: int | None = None
    collectives: int = 0
    window: StepWindow | None = None
    still: str = ""
    frozen: bool = False

    def to_json(self) -> dict[str, Any]:
        """Its JSON value; the version before does not know what is not there."""
        data = typed_json.write(self)
        if not self.collectives:
            del data["collectives"]
        if self.window is None:
            del data["window"]
        if not self.still:
            del data["still"]
        if not self.frozen:
            del data["frozen"]
        return data


@dataclass(frozen=True)
class Member:
    """A host of a generation. ``address`` and ``store`` are ``ip:port``.

    ``token`` opens the agent's port: it is told to the job's own hosts only. ``seal``: that of the
    job's key over all of it, "" for a job without one.
    """

    host: str
    incarnation: str
    address: str
    store: str
    token: str
    seal: str = ""

    def to_json(self) -> dict[str, Any]:
        """Its JSON value; the version before knows no ``seal``."""
        data = typed_json.write(self)
        if not self.seal:
            del data["seal"]
        return data


@dataclass(frozen=True)
class JobGeneration:
    """Process ``slots[r]`` on host ``hosts[r]`` holds rank ``r``, from generation ``number`` on.

    ``electorate``: agents (``host/incarnation``) with ranks or spares of the job. The majority of
    that of generation ``base``, ``voters``, has to accept this one. An agent refuses a generation
    whose base is older than the one that it has accepted, or that gives a rank to whom it fences.
    ``formed`` is False for a start from the beginning. ``lost``: ranks that change hands.
    ``store`` is the address of the agent that keeps the generation's key-value store. ``planned``:
    all processes of ``base`` live, and train on until those of this generation are connected.
    ``parked``: it never runs, and not all of its ranks have a process: while no spare is there, it
    only says who decides from now on.
    """

    number: int
    base: int
    slots: list[str]
    hosts: list[str]
    electorate: list[str]
    voters: list[str]
    members: list[Member]
    store: str
    formed: bool
    lost: list[int] = field(default_factory=list)
    reason: str = ""
    planned: bool = False
    parked: bool = False

    @property
    def store_host(self) -> str:
        """The host whose agent keeps its store; "": no member's."""
        return next((one.host for one in self.members if one.store == self.store), "")

    @functools.cached_property
    def proposal(self) -> str:
        """Names this content: two proposals of one number differ in it. Tokens do not count."""
        data = self._written()
        for member in data["members"]:
            del member["token"]
            member.pop("seal", None)
        del data["reason"]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    def _written(self) -> dict[str, Any]:
        data = typed_json.write(self)
        if not self.planned:  # the version before takes that for granted
            del data["planned"]
        if not self.parked:  # nor does it know this one
            del data["parked"]
        return data

    @functools.cached_property
    def _json(self) -> dict[str, Any]:
        data = self._written()
        if len(json.dumps(data, separators=(",", ":"))) < PACK_FROM:
            return data
        text = json.dumps(shorten(data), separators=(",", ":"))
        return {"number": self.number, "packed": pack(text)}

    def to_json(self) -> dict[str, Any]:
        """Its JSON value inside of a document: packed if it is long. Not to be changed."""
        return self._json

    @classmethod
    def from_json(cls, value: object, read: Reader) -> JobGeneration:
        """The reverse of ``to_json``. Raises ``FieldError``."""
        if not isinstance(value, dict) or "packed" not in value:
            return _sound(read(value))
        number, packed = value.get("number"), value["packed"]
        if value.keys() != {"number", "packed"} or type(packed) is not str:
            raise FieldError("is not a number and a packed generation")
        generation = _UNPACKED.get(packed)
        if generation is None:
            try:
                generation = read(lengthen(unpack(packed), MOST_BYTES))
            except ValueError as error:
                raise FieldError(f"is packed wrongly: {error}") from None
            _UNPACKED[packed] = generation = _sound(generation)
        if type(number) is not int or number != generation.number:
            raise FieldError(f"is number {number!r:.40}, but {generation.number} is packed")
        return generation

    @functools.cached_property
    def ranks(self) -> dict[str, int]:
        """Process → its rank. Not to be changed."""
        return {process: rank for rank, process in enumerate(self.slots)}

    def rank_of(self, process: str) -> int | None:
        """The rank of ``process``; None when it has none."""
        return self.ranks.get(process)

    def has_rank(self, process: str) -> bool:
        """Whether ``process`` holds a rank."""
        return process in self.ranks


def _sound(generation: JobGeneration) -> JobGeneration:
    """``generation``, if all that reads it can rely on its form. Raises ``FieldError``."""
    ranks = len(generation.slots)
    if not 0 < ranks <= MOST_RANKS:
        raise FieldError(f"has {ranks} ranks; allowed: 1 to {MOST_RANKS}")
    if len(generation.hosts) != ranks:
        raise FieldError(f"has {ranks} slots on {len(generation.hosts)} hosts")
    if len(generation.ranks) != ranks:
        raise FieldError("gives several ranks to one process")
    if not 0 <= generation.base < generation.number:
        raise FieldError(f"is number {generation.number}, after {generation.base}")
    return generation


_UNPACKED: weakref.WeakValueDictionary[str, JobGeneration] = weakref.WeakValueDictionary()
"""Packed text → generation, as long as somebody holds it."""


@dataclass(frozen=True)
class AgentDocument:
    """All that fabric-run of one host says of its job.

    ``nodes``, ``spares`` and ``nproc`` are its command line, and have to agree in a job.
    ``node_rank``: the launcher's place of this host, when it has one. ``accepted`` is the newest
    generation that this agent has promised to follow: it never follows one with a lower number, nor
    another one of the same. ``running`` is the number of the newest one that it has started.
    ``hears`` and ``misses``: agents of the job with which it does and does not exchange heartbeats.
    ``suspects``: the newest generation in which a collective of a process here failed.
    ``failed``: a process says that nobody can go on. ``looks``: how often it has looked whether its
    ranks have finished a step, because a host of the job is in question. ``key``: hash of the job's
    key, ``seal``: that of its `Member`; "" for a job without one.
    """

    job: str
    host: str
    incarnation: str
    nodes: int
    spares: int
    nproc: int
    address: str
    store: str
    token: str
    processes: list[ProcessState]
    node_rank: int | None = None
    accepted: JobGeneration | None = None
    running: int = 0
    hears: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    suspects: int = 0
    failed: str = ""
    looks: int = 0
    key: str = ""
    seal: str = ""
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        """Its JSON value; the version before knows none of ``looks``, ``key`` and ``seal``."""
        data = typed_json.write(self)
        for name in ("looks", "key", "seal"):
            if not data[name]:
                del data[name]
        return data

    def is_progress_of(self, before: AgentDocument) -> bool:
        """It says what ``before`` said, but for the steps of its processes, and its looks."""
        return self.is_vote_of(before) and (
            (self.hears, self.misses) == (before.hears, before.misses)
        )

    def is_vote_of(self, before: AgentDocument) -> bool:
        """It says what ``before`` said, but for steps, and for whom it hears and misses."""
        return (
            _same_but(self, before, "processes", "hears", "misses", "looks")
            and len(self.processes) == len(before.processes)
            and all(map(_same_but_step, self.processes, before.processes))
        )


@dataclass(frozen=True)
class JobOrder:
    """What fabric-compute wants of the agent ``incarnation`` of a job.

    ``phase``: waiting (for other hosts; with ``generation``, an agent that has started that one
    begins anew with new processes), proposed (accept ``generation``), running (start it),
    held (no next generation is possible now: an agent without ranks warms its processes up as
    spares), ended (all ranks have finished), failed. ``kill``: processes that count as lost.
    """

    incarnation: str
    phase: str
    reason: str = ""
    generation: JobGeneration | None = None
    kill: list[str] = field(default_factory=list)
    version: int = VERSION


PROCESS_STATES = ("starting", "joined", "warm", "ended")
PHASES = ("waiting", "proposed", "running", "held", "ended", "failed")

T = TypeVar("T")


def _same_but(one: object, other: object, *names: str) -> bool:
    mine, its = vars(one), vars(other)
    return all(mine[field] == its[field] for field in mine if field not in names)


def _same_but_step(one: ProcessState, other: ProcessState) -> bool:
    return _same_but(one, other, "step", "collectives", "window")


def to_data(document: Any) -> dict[str, Any]:  # noqa: ANN401
    """JSON values of any document of this module. Not to be changed: generations are shared."""
    data: dict[str, Any] = (
        document.to_json() if isinstance(document, AgentDocument) else typed_json.write(document)
    )
    return data


def parse(cls: type[T], data: object) -> T:
    """``data`` as ``cls``. Raises ``DocumentError``."""
    document: T = typed_json.read(cls, data)
    if isinstance(document, (AgentDocument, JobOrder)) and document.version != VERSION:
        raise DocumentError(f"version {document.version}, not {VERSION}")
    if isinstance(document, JobOrder) and document.phase not in PHASES:
        raise DocumentError(f"phase {document.phase:.40} is none of {', '.join(PHASES)}")
    if isinstance(document, AgentDocument):
        for one in document.processes:
            if one.state not in PROCESS_STATES:
                raise DocumentError(f"{one.process:.80} has the unknown state {one.state:.40}")
            if one.still not in ("", STANDS, WAITS):
                raise DocumentError(
                    f"{one.process:.80}: still is {one.still:.40}, neither {STANDS} nor {WAITS}"
                )
    return document


__all__ = [
    "AgentDocument", "DocumentError", "JobGeneration", "JobOrder", "Member", "ProcessState",
    "parse", "to_data",
]  # fmt: skip
