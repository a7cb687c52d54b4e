"""What may fail, how likely that is, and what fails with it. Pure.

`fabricd.detect.locate` chooses from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Port = tuple[str, int]
"""(host, rail)."""


class Kind(StrEnum):
    """What kind of element fails."""

    LINK = "link"
    """A NIC, its cable or its port of the leaf."""
    HOST = "host"
    """Dead, or too busy."""
    LEAF = "leaf"
    SPINE = "spine"
    """Between two leaves: a spine, its links, an ECMP member."""
    PATH = "path"
    """One pair of ports alone."""
    UNKNOWN = "unknown"
    NOTHING = "nothing"


class Way(StrEnum):
    """Which direction of a port or host, as seen from it."""

    OUT = "tx"
    IN = "rx"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters: chances per month, and how much one flow may say."""

    link: float = 5.7e-4
    leaf: float = 5.1e-4
    spine: float = 5.1e-4
    host: float = 1e-2
    path: float = 5e-5
    """Rarer than any: one pair alone needs a broken table entry or a broken ECMP member."""
    unknown: float = 1e-6
    own_cause: float = 4.0
    """Nats that each bad flow costs when nothing joins them."""
    shows: float = 0.98
    """Chance that a fault shows on a flow that uses the element."""
    most: float = 6.0
    """Nats that one flow may say either way: rows of one prober are not independent."""
    confidence: float = 0.8
    bad: float = 2.0
    """Nats from which a flow is worth an explanation."""
    dark: float = 0.8
    """Chance that a dead leaf, or a dead link, takes the carrier of a port."""
    dark_alone: float = 1e-5
    """Chance that a port is without carrier for another reason."""
    answers: int = 6


@dataclass(frozen=True, slots=True)
class Cause:
    """An element in one direction or both, and the flows that it fails."""

    kind: Kind
    element: str
    way: Way
    prior: float
    flows: tuple[int, ...]
    partial: bool = False
    """Shows on an unknown share of its flows."""
    ports: frozenset[Port] = frozenset()
    """Ports that it may leave without carrier."""
