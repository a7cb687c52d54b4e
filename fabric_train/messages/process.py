"""What a process of a job and its agent say to each other over a Unix stream socket.

``frames`` says how. ``Hello`` carries ``VERSION``; both sides speak one version, for agent and
process come from the same installation.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabric_train.messages import frames
from fabric_train.messages.frames import MAX_BODY, MAX_HEADER, MessageError
from fabric_train.messages.keys import KeyAnswer, KeyRequest

__all__ = ["MAX_BODY", "MAX_HEADER", "VERSION", "Decoder", "Message", "MessageError", "encode"]

VERSION = 4


# A process to its agent.


@dataclass(frozen=True)
class Hello:
    """First message of a process. ``software`` names versions that have to agree in a job."""

    process: str
    token: str
    pid: int
    software: dict[str, str]
    version: int = VERSION


@dataclass(frozen=True)
class Protected:
    """The process has built its model.

    ``layout`` is a hash of names, shapes and types of its state.
    ``report`` is a statement of ``protection``: what is protected and what is not.
    """

    layout: str
    report: dict[str, str]


@dataclass(frozen=True)
class LocalState:
    """Rank-local state at the start of ``step``: random generators, position in the data.

    ``number`` counts the states that this process has sent; the last one of a step holds.
    """

    rank: int
    step: int
    body: bytes = b""
    number: int = 0


@dataclass(frozen=True)
class LocalStateRequest:
    """Ask for the ``LocalState`` of ``rank`` at the start of ``step``."""

    rank: int
    step: int


NEWEST_S = 10.0
"""An agent answers a `NewestRequest` after so long at the latest: for a majority of the job's hosts
to answer, and for a takeover under way."""


@dataclass(frozen=True)
class NewestRequest:
    """Ask whether this process still holds ``rank`` in the newest generation of the job.

    ``question`` is a number that this process has not used before.
    """

    question: int
    rank: int


@dataclass(frozen=True)
class ProtectionRequest:
    """Ask for the protection report of the job."""


@dataclass(frozen=True)
class Suspect:
    """A collective of ``generation`` failed; ``error`` is its text."""

    generation: int
    error: str


@dataclass(frozen=True)
class Acknowledged:
    """The process has heard of ``generation`` and begins to recover."""

    generation: int


@dataclass(frozen=True)
class Recovered:
    """The process has the state after ``step`` steps in ``generation``.

    ``role`` is keep, apply, copy or back; or leave: another process has taken its rank by plan.
    ``spans_ms`` are times of the recovery's parts by name. ``again``: applied steps that are run
    again.
    """

    generation: int
    step: int
    role: str
    spans_ms: dict[str, float]
    again: int = 0


@dataclass(frozen=True)
class Committed:
    """The process has applied ``step`` steps.

    Sent for the first step after a recovery, and then at most once a second.
    """

    generation: int
    step: int


@dataclass(frozen=True)
class Failed:
    """The process cannot go on, and nobody else can in its place. ``reason`` is for people."""

    reason: str


@dataclass(frozen=True)
class Ending:
    """The process ends before its job has, and counts as lost. ``reason`` is for people.

    It runs no more of its loop; what it does until it is gone concerns nobody.
    """

    reason: str


@dataclass(frozen=True)
class Finished:
    """The loop of this process has ended with ``step`` steps."""

    step: int


# The agent to a process.


@dataclass(frozen=True)
class Welcome:
    """Answer to ``Hello``: the job, its world size, and whether the process is a spare.

    ``rank``: of a spare, that for which it builds its model, and the only one that it can get.
    """

    job: str
    world: int
    spare: bool
    rank: int | None = None


@dataclass(frozen=True)
class Assignment:
    """A new generation. ``rank`` is the receiver's, or None for a spare that stays one.

    ``store`` is the host whose agent keeps the generation's key-value store, and ``prefix`` the
    start of its keys. ``address`` is the IP address from which this host connects to the others;
    empty: that of the machine's name. ``follows``: the generation after which this one was planned,
    and which goes on until all processes of this one are connected; 0: it has ended.
    ``local_rank`` is the receiver's place on its host; None: the one that it began with. ``master``
    is the ``ip:port`` of the agent that keeps the store; empty: on this machine alone.
    """

    generation: int
    rank: int | None
    world: int
    store: str
    prefix: str = ""
    address: str = ""
    follows: int = 0
    local_rank: int | None = None
    master: str = ""


@dataclass(frozen=True)
class Stored:
    """The ``LocalState`` of this step and number is off the process."""

    step: int
    number: int = 0


@dataclass(frozen=True)
class LocalStateAnswer:
    """Answer to ``LocalStateRequest``; ``known`` is False when nobody has it."""

    rank: int
    step: int
    known: bool
    body: bytes = b""


@dataclass(frozen=True)
class NewestAnswer:
    """Answer to ``NewestRequest``: it does in ``generation``; or ``problem`` says why not.

    What is true is so at some moment between question and answer.
    """

    question: int
    generation: int
    problem: str = ""


@dataclass(frozen=True)
class ProtectionAnswer:
    """Answer to ``ProtectionRequest``: an encoded ``Protection``."""

    body: bytes = b""


@dataclass(frozen=True)
class Refused:
    """The agent does not take this process. ``reason`` names what and where."""

    reason: str


@dataclass(frozen=True)
class Release:
    """All ranks have finished: the process may end. A spare ends now."""


Message = (
    Hello
    | Protected
    | LocalState
    | LocalStateRequest
    | NewestRequest
    | ProtectionRequest
    | Suspect
    | Acknowledged
    | Recovered
    | Committed
    | Failed
    | Ending
    | Finished
    | KeyRequest
    | Welcome
    | Assignment
    | Stored
    | LocalStateAnswer
    | NewestAnswer
    | ProtectionAnswer
    | KeyAnswer
    | Refused
    | Release
)

_CODEC: frames.Codec[Message] = frames.Codec(Message)
encode = _CODEC.encode


class Decoder(frames.Decoder[Message]):
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        super().__init__(_CODEC)
