"""How well probes watch the links, and what large probes say: read once a tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set

from fabricd.config.loader import Config
from fabricd.detect.mtu import KEPT_NS, MtuPath, MtuTest
from fabricd.engine import Engine
from fabricd.links.probe_state import ProbedLink, ProbeWatch
from fabricd.probes.feed import ProberFeed
from fabricd.probes.records import LinkRow, MtuRow, PathRow
from fabricd.timeline.rows import event
from telemetry.events import Event, EventKind, ProbeState

ASK_NS = 2 * 10**9
"""A round of large packets is sent once a second at most."""


class ProbeMonitor:
    """The probe state of each link, and MTU black holes."""

    def __init__(self) -> None:
        self._watch = ProbeWatch()
        self._mtu = MtuTest()
        self._rows: list[MtuRow] | None = None
        """Of the paths as they are configured now; None: there was no answer yet."""
        self._rows_ns: int | None = None
        """When the newest answer was asked for; None: there is none, or the prober has none."""
        self._said: dict[int, str] = {}
        self._asking: asyncio.Task[bool] | None = None
        self._ask_at = 0

    def configure(self) -> None:
        """Paths have other indices from now on; what was found stays until the next answer."""
        self._rows = None
        self._ask_at = 0

    def ask(self, feed: ProberFeed, now: int, answered: Callable[[], None]) -> None:
        """Have the prober asked for its large packets, if it is time; nobody waits for that.

        Args:
            feed: the prober.
            now: CLOCK_MONOTONIC ns.
            answered: called when there is an answer.
        """
        if self._asking is not None or now < self._ask_at:
            return

        def done(task: asyncio.Task[bool]) -> None:
            self._asking = None
            # A mistake of ours ends the daemon, as one in the tick itself does.
            if not task.cancelled() and task.result():
                self._ask_at = now + ASK_NS
                answered()

        self._asking = asyncio.create_task(self._ask(feed, now))
        self._asking.add_done_callback(done)

    async def _ask(self, feed: ProberFeed, now: int) -> bool:
        rows = await feed.mtu()
        if rows is not None:
            self._rows, self._rows_ns = rows, now
        elif feed.without_mtu:
            self._rows_ns = None
        return rows is not None

    def judge_mtu(self, engine: Engine, now: int) -> bool:
        """Report to the engine what large packets say; True: something is other than before."""
        if self._rows_ns is None or now - self._rows_ns >= KEPT_NS:
            self._mtu, self._rows, self._said = MtuTest(), None, {}
            return engine.report_mtu({}, {})
        if self._rows is None or len(self._rows) != len(engine.paths):
            return False
        paths = [
            MtuPath(p.netdev, p.spec.peer, p.spec.address, row)
            for p, row in zip(engine.paths, self._rows, strict=True)
        ]
        self._said = {
            x.index: mtu_text([p for p in paths if p.netdev == x.netdev]) for x in engine.links
        }
        verdict = self._mtu.judge(paths, now)
        return engine.report_mtu(verdict.links, verdict.paths)

    def mtu_summary(self, link: int) -> str:
        """What large packets say of a link that is not at fault."""
        return self._said.get(link, "no large packet was sent yet")

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
        *,
        peer_rails: Set[int],
        notes: Mapping[str, str] | None = None,
    ) -> list[Event]:
        """Look at all links.

        Args:
            feed: where the prober's link rows are read.
            paths: the prober's path rows; None: there is no prober.
            engine: its links and paths are those of ``config``.
            config: of the daemon.
            addresses: from which each configured link is probed; None: it has no address.
            now: CLOCK_MONOTONIC ns.
            peer_rails: on which some peer has an address.
            notes: netdev → what there is to say of the choice of its address.

        Returns:
            One row for each link whose state changed.
        """
        rows = feed.links() if paths is not None else None
        links = probed_links(rows, paths or (), engine, addresses, config, peer_rails, notes)
        return [
            event(
                EventKind.PROBING,
                link=change.netdev,
                rail=change.rail,
                reason=change.reason,
                data={"state": change.state.value if change.state else "waiting"},
            )
            for change in self._watch.update(
                links, now, prober=rows is not None, refusal=feed.refusal
            )
        ]


def mtu_text(paths: Sequence[MtuPath]) -> str:
    """What large packets say of one link's paths, in words."""
    tested = [p for p in paths if p.row.tx_size]
    if not tested:
        return "no large packet was sent yet"
    passed = sum(bool(p.row.tx_passed_ns) and not p.row.tx_missing for p in tested)
    size = max(p.length(p.row.tx_size) for p in tested)
    return f"{size}-byte packets arrive on {passed} of {len(tested)} tested paths"


def probed_links(
    rows: Sequence[LinkRow] | None,
    paths: Sequence[PathRow],
    engine: Engine,
    addresses: Sequence[str | None],
    config: Config,
    peer_rails: Set[int],
    notes: Mapping[str, str] | None = None,
) -> list[ProbedLink]:
    """All configured links with what the prober's tables say of them.

    Args:
        rows: the prober's link rows; None: there are none.
        paths: its path rows.
        engine: its links and paths are those of ``config``.
        addresses: from which each configured link is probed.
        config: of the daemon.
        peer_rails: on which some peer has an address.
        notes: netdev → what there is to say of the choice of its address.
    """
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
                config.probe.port,
                sum(p.spec.link == link.index for p in engine.paths),
                usable=link.admin_up and link.carrier is not False,
                present=row is not None and row.present,
                bound=row is not None and row.bound,
                bind_errno=row.bind_errno if row else 0,
                heard_ns=max(heard, default=0),
                peers=link.rail in peer_rails,
                address_note=(notes or {}).get(link.netdev, ""),
            )
        )
    return out
