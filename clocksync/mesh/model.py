"""Parameters and status of a host in the mesh (`clocksync.mesh.host`). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from clocksync.mesh.asymmetry import AsymmetryRules
from clocksync.mesh.election import ElectionRules
from clocksync.page.clock_page import State
from clocksync.pair.model import SECOND


@dataclass(frozen=True, slots=True)
class HostRules:
    """Parameters of a host in the mesh."""

    listen_ns: int = 3 * SECOND
    """So long a host that knows no mesh waits for one before it begins one."""
    reach_ns: int = 30 * SECOND
    """And so long for a line to one that it hears of: the first takes a second, and never comes
    where packets go one way only."""
    message_ns: int = SECOND
    """A neighbour's message is used for so long: ten of its steps."""
    gap_ns: int = 450_000_000
    """A neighbour that said nothing for so long may have begun anew, over another clock: that takes
    half a second at least (`clocksync.pair.model.Rules.first_ns`). Lines of before are not used
    then."""
    pair_ns: int = 64 * SECOND
    """A path's line is used for so long, ever less: while all its packets queue there is none."""
    settled_ns: int = 2 * SECOND
    """After it joined a mesh a host says so long that it is not synchronized."""
    apart_ns: float = 500.0
    """Hosts of two references (the network had been divided) do not meet half-way when they are
    this far apart: those of the worse reference take over the time of the others."""
    calm_ns: int = 5 * SECOND
    """Time constant of the rate that a host goes on with when it hears nobody."""
    fresh_ns: int = SECOND
    """Of the page: without another line it is holdover."""
    end_ns: int = 3600 * SECOND
    """And after an hour nothing."""
    wander: float = 1e-8 / SECOND
    """Most by which two clocks' rates part within a nanosecond: five times 1 ppb/√s of each."""
    election: ElectionRules = field(default_factory=ElectionRules)
    asymmetry: AsymmetryRules = field(default_factory=AsymmetryRules)


@dataclass(slots=True)
class Status:
    """What a host says of itself; see `fabricctl clock`."""

    state: State = State.UNSYNCED
    reference: int = 0
    """0: none."""
    is_reference: bool = False
    neighbours: int = 0
    """Paths whose messages and lines were used in the last step."""
    bound_ns: float = math.inf
    offset_ns: float = 0.0
    """Weighted mean of how far neighbours' mesh times were ahead of ours at the last step."""
    skew: float = 0.0
    """How fast the bound grows, ns/ns: what the rate may be wrong by."""
    root_delay_ns: float | None = None
    """The least round trip to the reference along the mesh, to a tenth; None: not known."""
    residual_ns: float = 0.0
    """Weighted mean of how far neighbours' mesh times were from ours, without sign."""
    slope: float = 0.0
    """Of fabric time over our clock, smoothed."""
    epoch: int = 0
    joins: int = 0
    takeovers: int = 0
    lost: int = 0
    """References that were given up."""
