"""What one evaluation of the engine did."""

from __future__ import annotations

from dataclasses import dataclass, field

from fabricd.links.health import Transition


@dataclass(frozen=True, slots=True)
class Change:
    """One transition of one link (``peer`` empty) or path."""

    netdev: str
    rail: int
    peer: str
    address: str
    transition: Transition
    rdma: bool = False
    """Of RDMA there; else of the link or path itself."""


@dataclass(slots=True)
class Evaluation:
    """What one evaluation did."""

    changes: list[Change] = field(default_factory=list)
    silent_hosts: frozenset[str] = frozenset()
    refused: dict[str, str] = field(default_factory=dict)
    """Links (netdev → reason) that probes blame but whose loss would take too many rails."""
    operator: list[str] = field(default_factory=list)
    """Links that passed the second tier of damping just now."""
    due_at: int | None = None
    """When to evaluate again though nothing happens."""
