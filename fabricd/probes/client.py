"""Asyncio client of the prober's control socket ($RUN/prober/ctl.sock, SEQPACKET, JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ProberError(Exception):
    """The prober refused a request, or is not there (``ProberGoneError``)."""


class ProberGoneError(ProberError):
    """No prober listens, or it closed the connection."""


@dataclass(frozen=True, slots=True)
class ProbeLink:
    """One link of a configuration."""

    index: int
    netdev: str
    address: str
    port: int = 9200
    hw_stamps: bool = False
    """Switch the NIC's hardware stamps on; they are used anyway when they already are on."""


@dataclass(frozen=True, slots=True)
class ProbePath:
    """One path of a configuration; ``address`` is of the same family as the link's."""

    index: int
    link: int
    address: str
    port: int
    host_id: int
    """``host_id(name)`` of the peer; 0: not checked."""
    clock: bool = False
    """Send trains of three at ``clock_train_hz`` on it."""


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """What ``configure`` replaces as a whole. Indices are 0..n-1, in order or not."""

    host_id: int
    links: Sequence[ProbeLink]
    paths: Sequence[ProbePath]
    link_interval_us: int = 10_000
    misses: int = 3
    clock_train_hz: int = 100
    dscp: int = 0


def host_id(name: str) -> int:
    """A host's number on the wire: 32 bits of BLAKE2s of its name, never 0."""
    raise NotImplementedError


class ProberClient:
    """One connection. Requests are answered in order; notifications set ``notified``."""

    @classmethod
    async def connect(cls, path: Path) -> ProberClient:
        """Connect to the socket; raises ProberGoneError."""
        raise NotImplementedError

    async def configure(self, config: ProbeConfig) -> int:
        """Replace the configuration; returns its epoch. Raises ProberError with the reason."""
        raise NotImplementedError

    async def status(self) -> dict[str, Any]:
        """Version, incarnation, counters, scheduling policy."""
        raise NotImplementedError

    async def subscribe(self) -> None:
        """From now on ``wait`` returns when new events are in the ring."""
        raise NotImplementedError

    async def wait(self, timeout_s: float) -> bool:
        """True when notified since the last call, False after ``timeout_s``; raises ProberGoneError."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the connection; idempotent."""
        raise NotImplementedError
