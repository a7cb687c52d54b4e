"""How well probes watch the links: read once a tick, told on the timeline."""

from __future__ import annotations

from collections.abc import Sequence

from fabricd.config import Config
from fabricd.engine import Engine
from fabricd.links.probe_state import ProbedLink, ProbeWatch
from fabricd.prober_feed import ProberFeed
from fabricd.probes.records import LinkRow, PathRow
from fabricd.publisher import event
from telemetry.events import Event, EventKind, ProbeState


class Probing:
    """The probe state of each link, and what changed."""

    def __init__(self) -> None:
        self._watch = ProbeWatch()

    def state(self, netdev: str) -> ProbeState | None:
        """The link's probe state; None: not known yet."""
        return self._watch.state(netdev)

    def unwatched(self, netdev: str, now: int) -> str:
        """Why probes say nothing about the link, as of ``now`` (ns); empty: they watch it."""
        return self._watch.unwatched(netdev, now)

    def tick(
        self,
        feed: ProberFeed,
        paths: Sequence[PathRow] | None,
        engine: Engine,
        config: Config,
        addresses: Sequence[str | None],
        now: int,
    ) -> list[Event]:
        """Look at all links.

        Args:
            feed: where the prober's link rows are read.
            paths: the prober's path rows; None: there is no prober.
            engine: its links and paths are those of ``config``.
            config: of the daemon.
            addresses: from which each configured link is probed; None: it has no address.
            now: CLOCK_MONOTONIC ns.

        Returns:
            One row for each link whose state changed.
        """
        rows = feed.links() if paths is not None else None
        links = probed_links(rows, paths or (), engine, addresses, config.probe.port)
        return [
            event(
                EventKind.PROBING,
                link=change.netdev,
                rail=change.rail,
                reason=change.reason,
                data={"state": change.state.value if change.state else "waiting"},
            )
            for change in self._watch.update(links, now, prober=rows is not None)
        ]


def probed_links(
    rows: Sequence[LinkRow] | None,
    paths: Sequence[PathRow],
    engine: Engine,
    addresses: Sequence[str | None],
    port: int,
) -> list[ProbedLink]:
    """All configured links with what the prober's tables say of them (``rows`` None: nothing)."""
    by_index = {row.index: row for row in rows or ()}
    out = []
    for link, address in zip(engine.links, addresses, strict=True):
        row = by_index.get(link.index)
        heard = (p.last_heard_ns for p in paths if p.link == link.index)
        out.append(
            ProbedLink(
                link.netdev,
                link.rail,
                address,
                port,
                sum(p.spec.link == link.index for p in engine.paths),
                usable=link.admin_up and link.carrier is not False,
                present=row is not None and row.present,
                bound=row is not None and row.bound,
                bind_errno=row.bind_errno if row else 0,
                heard_ns=max(heard, default=0),
            )
        )
    return out
