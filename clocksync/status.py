"""Status of a host in the mesh, as `clocksync.host` keeps it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clocksync.page import State


@dataclass(slots=True)
class Status:
    """What a host says of itself; see `fabricctl clock`."""

    state: State = State.UNSYNCED
    reference: int = 0
    """0: none."""
    is_reference: bool = False
    neighbours: int = 0
    """Paths whose words and lines were used in the last step."""
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
