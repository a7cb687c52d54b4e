"""Parameters of a host in the mesh (`clocksync.host`). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from clocksync.asymmetry import AsymmetryRules
from clocksync.election import ElectionRules
from clocksync.pair import SECOND


@dataclass(frozen=True, slots=True)
class HostRules:
    """Parameters of a host in the mesh."""

    listen_ns: int = 3 * SECOND
    """So long a host that knows no mesh waits for one before it begins one."""
    reach_ns: int = 30 * SECOND
    """And so long for a line to one that it hears of: the first takes a second, and never comes
    where packets go one way only."""
    word_ns: int = SECOND
    """A neighbour's word is used for so long: ten of its steps."""
    gap_ns: int = 450_000_000
    """A neighbour that said nothing for so long may have begun anew, over another clock: that takes
    half a second at least (`clocksync.pair.Rules.first_ns`). Lines of before are not used then."""
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
