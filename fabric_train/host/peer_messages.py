"""What the agents of a job say to each other over TCP, as ``frames``.

The listener sends a challenge. The other side proves by an HMAC that it knows the listener's token,
which fabric-compute tells to the job's hosts alone, and gets such a proof back. The token itself is
never sent. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass

from fabric_train.messages import frames
from fabric_train.messages.keys import KeyAnswer, KeyRequest

VERSION = 3
MAX_GREETING = 4096  # bytes of a header, before the peer has proved who it is


@dataclass(frozen=True)
class Challenge:
    """First message of the side that listens."""

    nonce: str
    version: int = VERSION


@dataclass(frozen=True)
class PeerHello:
    """Answer of the side that connects: who it is, and ``proof`` by the listener's token."""

    job: str
    host: str
    incarnation: str
    nonce: str
    proof: str
    version: int = VERSION


@dataclass(frozen=True)
class PeerWelcome:
    """The listener takes the connection; ``proof`` shows that it has the token, too."""

    proof: str


@dataclass(frozen=True)
class PeerRefused:
    """The connection is not taken. ``reason`` is for people."""

    reason: str


@dataclass(frozen=True)
class Heartbeat:
    """The sender runs."""


@dataclass(frozen=True)
class StoreLocal:
    """Store the rank-local state of ``rank`` at the start of ``step``.

    ``number`` is that of the process's ``LocalState``; a later one replaces an earlier one.
    """

    generation: int
    rank: int
    step: int
    body: bytes = b""
    number: int = 0


@dataclass(frozen=True)
class StoredLocal:
    """The sender has stored it."""

    generation: int
    rank: int
    step: int
    number: int = 0


@dataclass(frozen=True)
class FindLocal:
    """Ask for the rank-local state of ``rank`` at the start of ``step``."""

    question: int
    rank: int
    step: int


@dataclass(frozen=True)
class FoundLocal:
    """Answer to ``FindLocal``; ``generation`` is 0 when the state is not here."""

    question: int
    generation: int
    body: bytes = b""


@dataclass(frozen=True)
class AskAccepted:
    """Ask for the newest generation that the receiver has accepted."""

    question: int


@dataclass(frozen=True)
class NewestAccepted:
    """Answer to ``AskAccepted``: its number and proposal; 0 and empty: none."""

    question: int
    generation: int
    proposal: str


PeerMessage = (
    Challenge
    | PeerHello
    | PeerWelcome
    | PeerRefused
    | Heartbeat
    | StoreLocal
    | StoredLocal
    | FindLocal
    | FoundLocal
    | AskAccepted
    | NewestAccepted
    | KeyRequest
    | KeyAnswer
)

CODEC: frames.Codec[PeerMessage] = frames.Codec(PeerMessage)


def decoder() -> frames.Decoder[PeerMessage]:
    """For a connection whose other end has yet to prove who it is."""
    return frames.Decoder(CODEC, MAX_GREETING, 0)


def trust(one: frames.Decoder[PeerMessage]) -> None:
    """The other end has proved who it is: frames of any allowed size may come."""
    one.max_header, one.max_body = frames.MAX_HEADER, frames.MAX_BODY


def new_challenge() -> Challenge:
    """With a nonce that was never used before."""
    return Challenge(secrets.token_hex(16))


def hello(challenge: Challenge, token: str, job: str, host: str, incarnation: str) -> PeerHello:
    """The answer to ``challenge``, with the token of who asks."""
    nonce = secrets.token_hex(16)
    proof = _proof(token, "connect", challenge.nonce, nonce, job, host, incarnation)
    return PeerHello(job, host, incarnation, nonce, proof)


def welcome(challenge: Challenge, greeting: PeerHello, token: str) -> PeerWelcome | None:
    """The answer to ``greeting``; None: it does not know ``token``, this agent's own."""
    expected = _proof(
        token,
        "connect",
        challenge.nonce,
        greeting.nonce,
        greeting.job,
        greeting.host,
        greeting.incarnation,
    )
    if not _is_same(expected, greeting.proof):
        return None
    return PeerWelcome(_proof(token, "accept", challenge.nonce, greeting.nonce))


def is_proven(challenge: Challenge, greeting: PeerHello, answer: PeerWelcome, token: str) -> bool:
    """Who gave ``answer`` knows ``token``, too."""
    expected = _proof(token, "accept", challenge.nonce, greeting.nonce)
    return _is_same(expected, answer.proof)


def _is_same(expected: str, said: str) -> bool:
    """In constant time. What was said may be any JSON text, half a surrogate pair, too."""
    return secrets.compare_digest(expected.encode(), said.encode(errors="replace"))


def _proof(token: str, *parts: str) -> str:
    text = json.dumps(["fabric-run peer", VERSION, *parts])
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()
