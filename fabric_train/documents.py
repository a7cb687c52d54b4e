"""What fabric-run of one host and fabric-compute say to each other about a job.

fabricd carries both as they are: ``AgentDocument`` from host to fabric-compute, ``JobOrder`` back.
Each message is the whole present state, so a lost or repeated one does no harm.
``to_data`` gives JSON values; ``parse`` refuses what is not exactly of the described form.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from dataclasses import dataclass, field
from typing import Any, TypeVar

VERSION = 1


class DocumentError(Exception):
    """Data that is no document of this version. The text names the field."""


@dataclass(frozen=True)
class ProcessState:
    """One process of a job on one host.

    ``state``: starting (not yet in ``join``), joined, warm (has protected its state, may hold a
    rank), ended. ``standby``: started to replace a rank of this host. ``acknowledged``,
    ``recovered`` and ``committed`` are the newest generations in which it did so; ``step`` is the
    newest step that it has said to have applied; ``finished`` its last step, once its loop ended.
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


@dataclass(frozen=True)
class Member:
    """A host of a generation. ``address`` and ``store`` are ``ip:port``.

    ``token`` opens the agent's port: it is told to the job's own hosts only.
    """

    host: str
    incarnation: str
    address: str
    store: str
    token: str


@dataclass(frozen=True)
class JobGeneration:
    """Process ``slots[r]`` on host ``hosts[r]`` holds rank ``r``, from generation ``number`` on.

    ``electorate``: agents (``host/incarnation``) with ranks or spares of the job. The majority of
    that of generation ``base``, ``voters``, has to accept this one. An agent refuses a generation
    whose base is older than the one that it has accepted, or that gives a rank to whom it fences.
    ``formed`` is False for a start from the beginning. ``lost``: ranks that change hands.
    ``store`` is the address of the generation's key-value store.
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

    @functools.cached_property
    def proposal(self) -> str:
        """Names this content: two proposals of one number differ in it. Tokens do not count."""
        data = to_data(self)
        for member in data["members"]:
            del member["token"]
        del data["reason"]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    def rank_of(self, process: str) -> int | None:
        """The rank of ``process``; None when it has none."""
        return self.slots.index(process) if process in self.slots else None


@dataclass(frozen=True)
class AgentDocument:
    """All that fabric-run of one host says of its job.

    ``nodes``, ``spares`` and ``nproc`` are its command line, and have to agree in a job.
    ``node_rank``: the launcher's place of this host, when it has one. ``accepted`` is the newest
    generation that this agent has promised to follow: it never follows one with a lower number, nor
    another one of the same. ``running`` is the number of the newest one that it has started.
    ``hears`` and ``misses``: agents of the job with which it does and does not exchange heartbeats.
    ``suspects``: the newest generation in which a collective of a process here failed.
    ``failed``: a process says that nobody can go on.
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
    version: int = VERSION


@dataclass(frozen=True)
class JobOrder:
    """What fabric-compute wants of the agent ``incarnation`` of a job.

    ``phase``: waiting (for other hosts), proposed (accept ``generation``), running (start it),
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


def to_data(document: Any) -> dict[str, Any]:  # noqa: ANN401
    """JSON values of any document of this module."""
    data: dict[str, Any] = dataclasses.asdict(document)
    return data


def parse(cls: type[T], data: object) -> T:
    """``data`` as ``cls``. Raises ``DocumentError``."""
    document: T = _parse(cls, data, cls.__name__)
    if isinstance(document, (AgentDocument, JobOrder)) and document.version != VERSION:
        raise DocumentError(f"version {document.version}, not {VERSION}")
    if isinstance(document, JobOrder) and document.phase not in PHASES:
        raise DocumentError(f"phase {document.phase:.40} is none of {', '.join(PHASES)}")
    if isinstance(document, AgentDocument):
        for one in document.processes:
            if one.state not in PROCESS_STATES:
                raise DocumentError(f"{one.process:.80} has the unknown state {one.state:.40}")
    return document


def _parse(hint: Any, value: object, where: str) -> Any:  # noqa: ANN401
    # Plain values first: a document has a hundred of them, and comes from each host.
    if type(value) is hint and (
        hint is str or hint is bool or (isinstance(value, int) and abs(value) < 1 << 63)
    ):
        return value
    if dataclasses.is_dataclass(hint):
        return _parse_class(hint, value, where)
    origin, inner = _parts(hint)
    if origin is types.UnionType:
        if value is None and types.NoneType in inner:
            return None
        (other,) = (one for one in inner if one is not types.NoneType)
        return _parse(other, value, where)
    if origin is list and isinstance(value, list):
        return [_parse(inner[0], one, f"{where}[{i}]") for i, one in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {str(name): _parse(inner[1], one, f"{where}.{name}") for name, one in value.items()}
    raise DocumentError(f"{where} is {value!r:.80}, not {getattr(hint, '__name__', hint)}")


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:  # noqa: ANN401
    """``list`` and ``(str,)`` of ``list[str]``."""
    return typing.get_origin(hint), typing.get_args(hint)


@functools.cache
def _form(cls: Any) -> tuple[dict[str, Any], frozenset[str]]:  # noqa: ANN401
    """Types of all fields of a class by name, and the fields that have to be there."""
    needed = {
        one.name
        for one in dataclasses.fields(cls)
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    }
    return typing.get_type_hints(cls), frozenset(needed)


def _parse_class(cls: Any, value: object, where: str) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        raise DocumentError(f"{where} is no object: {value!r:.80}")
    hints, needed = _form(cls)
    unknown = value.keys() - hints.keys()
    missing = needed - value.keys()
    if unknown or missing:
        wrong = ", ".join(sorted([*map(str, unknown), *missing]))
        raise DocumentError(f"{where}: missing or unknown fields: {wrong:.200}")
    parsed = {name: _parse(hints[name], one, f"{where}.{name}") for name, one in value.items()}
    return cls(**parsed)
