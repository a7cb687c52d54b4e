"""What the engine judges: the links and the paths of one host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fabricd.detect.mesh import PathSpec
from fabricd.detect.rules import Finding
from fabricd.links.health import Health
from fabricd.predict.forecast import Forecast
from telemetry.events import LinkState

OUT = frozenset((LinkState.DOWN, LinkState.HOLD))
BYE = "bye: the peer no longer probes this path"


@dataclass(slots=True)
class Link:
    """One configured link."""

    index: int
    netdev: str
    rail: int
    health: Health
    admin_up: bool = True
    carrier: bool | None = None
    port_active: bool | None = None
    """Of the verbs port behind it; None: there is none, or it is not known."""
    pending_downs: int = 0
    worse: str = ""
    """By probes: loses too much."""
    unseen: str = ""
    """Never heard anything, though peers say that they probe it."""
    mtu: str = ""
    """Large packets do not arrive on it, small ones do."""
    counters: Sequence[Finding] = ()
    """What the rules say about the counters behind it."""
    speed_ratio: float | None = None
    """Negotiated speed by the speed that it had; None: not known."""
    forecast: Forecast | None = None
    named_ns: int = 0
    """Since when the forecast names it."""
    held: bool = False
    """Out after a hard fault, and by now probes alone keep it there."""
    pathless_ns: int | None = None
    """Since when none of the paths is left that could tell whether it is well."""

    @property
    def out(self) -> bool:
        """Whether it carries nothing."""
        return self.health.state in OUT

    @property
    def by_probes(self) -> bool:
        """Whether probes alone take traffic from it (or counters half of it)."""
        if self.out:
            return self.held or self.health.out_by_probes
        return self.health.state is LinkState.DEGRADED


@dataclass(slots=True)
class Path:
    """One probed path."""

    index: int
    spec: PathSpec
    netdev: str
    health: Health
    heard_ever: bool = False
    worse: str = ""
    unseen: str = ""
    """Never heard, though its peer says that it probes it."""
    peer_dark: bool = False
    """Its peer says that the port at the other end has no carrier."""
    mtu: str = ""
    """Large packets do not arrive on it, small ones do, and others of its link pass."""
    gone: bool = False
    """The peer sent a bye on it, and has not been heard since."""
    returned: bool = False
    """We gave it up, took it up again and have not heard it since. The prober shows it as gone
    until then, but that it is silent was nobody's wish."""

    @property
    def key(self) -> str:
        """Stable over restarts and reloads."""
        return f"{self.netdev} {self.spec.address}"
