"""What escalation needs of this host's daemon: `fabricd.runtime.host.Host` has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fabricd.config.loader import Config
from fabricd.config.tables import PeerTable
from fabricd.detect.localization import Localization
from fabricd.detect.silence import PathView
from fabricd.engine import Engine
from fabricd.links.inventory import Inventory
from fabricd.probes.feed import ProberFeed
from fabricd.steer.modes import Modes
from telemetry.events import EventKind


class LocalHost(Protocol):
    """The host whose links, probes and timeline rows are published.

    Attributes:
        follow: called with each row of the timeline as JSON.
        silence_changed: called when another set of hosts is silent.
    """

    config: Config
    engine: Engine
    feed: ProberFeed
    inventory: Inventory
    localization: Localization
    modes: Modes
    follow: Callable[[dict[str, Any]], None]
    silence_changed: Callable[[], None]

    @property
    def discovers(self) -> bool:
        """Whether hosts to probe are found over the broker."""
        ...

    def discover(self, peers: tuple[PeerTable, ...]) -> None:
        """Probe these hosts from now on."""
        ...

    def record(self, kind: EventKind, reason: str, **data: Any) -> None:  # noqa: ANN401
        """Write one row of the timeline."""
        ...

    def views(self) -> list[PathView] | None:
        """All UDP paths as the prober sees them now; None: there is no prober."""
        ...
