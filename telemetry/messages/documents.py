"""The data of each message type. ``parse`` refuses what is not exactly of the described form.

Durations are milliseconds: no clock of one machine is compared with that of another.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from telemetry.messages.envelope import BadMessageError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")]
Text = Annotated[str, Field(max_length=2000)]
LONGEST_ID = 256
Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]
Incarnation = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Rank = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
LONGEST_PLACE = 300
Place = Annotated[str, Field(max_length=LONGEST_PLACE)]
"""What a job's own processes say of themselves: any text."""
MOST_SPARES = 1024
MOST_NAMES = 64
"""Hosts that one list of a `HostEvidence` names."""
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Document(BaseModel):
    """Unknown keys are refused: they are another version's."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class HostStatus(Document):
    """Birth (``online``) and last will of a host's fabricd, or of a fabric-compute."""

    online: bool
    intended: bool = False
    """It said goodbye: offline by a stop, not by a loss."""


class HostLink(Document):
    """One local link of a host."""

    netdev: Annotated[str, Field(min_length=1, max_length=15)]
    rail: Annotated[int, Field(ge=0, le=31)]
    addresses: Annotated[list[Id], Field(max_length=8)]
    leaf: Text = ""
    state: Text = ""


class HostDocument(Document):
    """Who a host is, and where its links are. Changes rarely; hosts find their peers by it."""

    name: Name
    links: Annotated[list[HostLink], Field(max_length=32)]
    probe_port: Annotated[int, Field(ge=1, le=65535)]
    rack: Text = ""
    mode: Text = "observe"
    versions: dict[str, Text] = {}


class SilentHost(Document):
    """A peer that is silent on ``rails`` of the ``rails_probed`` rails on which it is probed."""

    host: Name
    rails: Count
    rails_probed: Count


class HostObservations(Document):
    """What a host's probes say of its peers now, and which fences hold on it.

    ``abstains``: the host's own prober was paused within the last ``gap_ms`` limit, so its silence
    is no evidence. ``fences``: ids of the fences that this host has applied.
    """

    silent: Annotated[list[SilentHost], Field(max_length=4096)]
    heard: Annotated[list[Name], Field(max_length=4096)]
    abstains: bool = False
    gap_ms: Milliseconds = 0.0
    fences: Annotated[list[Id], Field(max_length=4096)] = []


class HostJob(Document):
    """What fabric-run on this host says of one job. ``document`` is ``fabric_train``'s.

    ``uid``: the user that runs it, as fabricd knows by itself; None: a fabricd that does not say.
    ``gone``: its fabric-run has ended, and so have all ranks that it had started.
    """

    job: Name
    incarnation: Incarnation
    uid: Annotated[int, Field(ge=0, lt=1 << 32)] | None = None
    gone: bool = False
    document: dict[str, Any] = {}


class HostEvent(Document):
    """A row of the host's timeline that fabric-compute records."""

    kind: Name
    text: Text = ""
    fields: dict[str, Any] = {}


def fence_id(job: str, host: str, incarnation: str) -> str:
    """The id of a fence, at most 256 characters: the same at each fabric-compute."""
    name = f"{job}/{host}/{incarnation}"
    if len(name) <= LONGEST_ID:
        return name
    return f"fence/{hashlib.sha256(name.encode()).hexdigest()}"


class Fence(Document):
    """Nothing of ``incarnation`` of ``job`` on ``host`` may take part in anything any more.

    ``uid``: the user of that job, as hosts say it: nobody else's run of this name is told of the
    fence. None: nobody has said it, or the receiver is of the version before, which refuses it.
    """

    id: Id
    job: Name
    host: Name
    incarnation: Id
    reason: Text = ""
    uid: Annotated[int, Field(ge=0, lt=1 << 32)] | None = None

    def is_of(self, uid: int | None) -> bool:
        """Whether its job may be that user's."""
        return None in (self.uid, uid) or self.uid == uid

    @model_serializer(mode="wrap")
    def _without_nobody(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The version before refuses a fence with ``uid``."""
        data: dict[str, Any] = write(self)
        if self.uid is None:
            del data["uid"]
        return data


FENCES_WITH_USERS = "fences"
"""In ``HostDocument.versions``: "2" of a fabricd that knows what ``Fence.uid`` is."""


def reads_users(document: HostDocument | None) -> bool:
    """Whether a host knows what ``Fence.uid`` is, by its document."""
    return document is not None and document.versions.get(FENCES_WITH_USERS) == "2"


class ComputeOrder(Document):
    """What a fabric-compute wants one host to do: all of it, in each message.

    ``jobs`` by name: ``fabric_train.messages.documents.JobOrder``; fabricd passes it on as it is.
    """

    fences: Annotated[list[Fence], Field(max_length=4096)] = []
    jobs: dict[str, dict[str, Any]] = {}


class HostEvidence(Document):
    """What speaks for and against the loss of one host of a job, and what was done.

    Lists of hosts are sorted and have the first ``MOST_NAMES``; ``counts`` has all, by the list's
    name. ``silent``, ``heard`` and ``abstained`` are hosts that probe it; ``missed_by`` and
    ``heard_by`` are hosts whose agents of the job exchange heartbeats with its agent. ``fence``:
    id of the fence, "" while there is none; ``acknowledged``: hosts that have applied it.
    """

    host: Name
    lost: bool
    rule: Text
    reason: Text
    silent: list[Name] = []
    heard: list[Name] = []
    abstained: list[Name] = []
    last_will: bool = False
    missed_by: list[Name] = []
    heard_by: list[Name] = []
    counts: dict[str, Count] = {}
    fence: Annotated[str, Field(max_length=LONGEST_ID)] = ""
    acknowledged: list[Name] = []


class Recovery(Document):
    """A takeover that has ended, or the failure that ended the job.

    ``failure_class`` and ``outcome`` are as in the ledger. Rank ``ranks[i]`` was on host
    ``origins[i]`` and is on ``targets[i]``. Times are from the first evidence; None: not reached.
    ``committed_ms``: all ranks have committed a step again.
    """

    generation: Count
    proposal: Text = ""
    failure_class: Text
    outcome: Text
    reason: Text = ""
    ranks: list[Count] = []
    origins: list[Place] = []
    targets: list[Place] = []
    step: Count = 0
    steps_lost: Count = 0
    fenced_ms: Milliseconds | None = None
    proposed_ms: Milliseconds | None = None
    running_ms: Milliseconds | None = None
    recovered_ms: Milliseconds | None = None
    committed_ms: Milliseconds | None = None


class RankSlowness(Document):
    """A rank whose own time in a step is ``ratio`` times the median of its job's ranks."""

    rank: Count
    host: Place
    ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    text: Text


class ComputeJob(Document):
    """The state of a job, for people and for ``fabricctl jobs``.

    ``ranks`` and ``spares`` name places as ``host process``. ``proposal`` names the content of
    the generation. ``hosts``: those with a part in the job; each of them gets this document.
    ``evidence``: hosts under suspicion, and fenced ones. ``recoveries``: the newest, newest first.
    ``slow_ranks``: the slowest first.
    """

    job: Name
    phase: Text
    reason: Text = ""
    generation: Count = 0
    proposal: Text = ""
    ranks: dict[Rank, Place] = {}
    spares: Annotated[list[Place], Field(max_length=MOST_SPARES)] = []
    hosts: list[Name] = []
    evidence: Annotated[list[HostEvidence], Field(max_length=64)] = []
    recoveries: Annotated[list[Recovery], Field(max_length=16)] = []
    slow_ranks: Annotated[list[RankSlowness], Field(max_length=64)] = []

    @model_serializer(mode="wrap")
    def _without_news(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The version before refuses a document with ``slow_ranks``."""
        data: dict[str, Any] = write(self)
        if not self.slow_ranks:
            del data["slow_ranks"]
        return data


class ComputeView(Document):
    """What a fabric-compute tells one host: the jobs in which that host has a part."""

    jobs: Annotated[list[ComputeJob], Field(max_length=256)] = []


class LedgerHead(Document):
    """Signed: entry ``number`` of the ledger of fabric-compute ``owner`` has this SHA-256.

    ``time``: seconds since 1970. ``signature``: Ed25519, hexadecimal; ``key_id`` names the key.
    """

    owner: Name
    number: Count
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    time: Annotated[float, Field(allow_inf_nan=False)]
    key_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class Stop(Document):
    """While ``stopped``, no fabric-compute acts. Retained until an operator takes it back."""

    stopped: bool
    reason: Text = ""


D = TypeVar("D", bound=Document)


def parse(document: type[D], data: dict[str, Any]) -> D:
    """``data`` as ``document``. Raises ``BadMessageError`` with the first thing that is wrong."""
    try:
        return document.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or document.__name__
        raise BadMessageError(f"{where}: {first['msg']} (is {first['input']!r:.80})") from None
