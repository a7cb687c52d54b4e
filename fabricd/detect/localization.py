"""Where faults are, what was never heard but should be, and which peers left by intent.

The neighbours' view is asked for only while something fails here, or some path was never heard;
otherwise nobody needs it, and it costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fabricd.config.loader import Config
from fabricd.detect import evidence, neighbours, observations
from fabricd.detect.bye import ByeTracker
from fabricd.detect.locate import Blame, Kind, port_name
from fabricd.detect.loss_rules import LossVerdict
from fabricd.detect.neighbours import PeerReport, Row
from fabricd.detect.silence import PathView
from fabricd.detect.unseen import Ends, Unseen
from fabricd.engine import Engine
from fabricd.links.lldp_source import LldpSource
from fabricd.probes import plan
from fabricd.probes.feed import ProberFeed
from fabricd.probes.peer_index import PeerIndex
from fabricd.timeline.rows import event, located
from telemetry.events import Event, EventKind

ASK_UNSEEN_NS = 2 * 10**9
"""How often the neighbours are asked while nothing fails, but a path was never heard."""
RECENT_NS = 5 * 10**9
"""Older reports count for nothing: each neighbour repeats all it sees about once a second."""
ANSWER_S = 0.1
"""The tick waits so long for the prober's answer: it is there in milliseconds, or the prober hangs,
and the tick also has to say that the steer page is alive."""
MOST_LOCATED = 16
"""Each is a series of the metrics."""
_NOWHERE = (Kind.UNKNOWN, Kind.NOTHING)


class Localization:
    """Looks once a tick, tells each thing once."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.names: Mapping[int, str] = {}
        """Host id → name, of all hosts in the configuration."""
        self.open_addresses: frozenset[str] = frozenset()
        """Addresses that several hosts name, and at which nobody has answered."""
        self.places = evidence.Places(host)
        self.reports: Sequence[PeerReport] = ()
        """The neighbours', as last asked for."""
        self._byes = ByeTracker()
        self._unseen = Unseen(host)
        self._asked_ns: int | None = None
        self._asking: asyncio.Task[None] | None = None
        self.losing: Mapping[int, Blame] = {}
        """Link index → where the packets are lost of a link that loses too much."""
        self.losing_elsewhere: Sequence[Blame] = ()
        """Where the packets are lost of paths that lose too much alone."""
        self._lldp: LldpSource | None = None
        self._config: Config | None = None
        self._peers = PeerIndex(())

    def configure(self, config: Config, peers: PeerIndex) -> None:
        """Other paths, other hosts, another map; ``peers``: of ``config``."""
        self._config, self._peers = config, peers
        self.names = plan.host_names(config, peers)
        self.map_changed()
        self.reports = ()
        self._byes.reset()
        self._unseen.reset()

    def map_changed(self) -> None:
        """The configuration or LLDP says something else about who is plugged in where."""
        if self._config is None:
            return
        plugs = self._lldp.neighbours() if self._lldp else {}
        switches = {netdev: neighbour.switch for netdev, neighbour in plugs.items()}
        self.places.topology = plan.topology(self._config, self._peers, switches)

    @property
    def lldp(self) -> LldpSource | None:
        """Which tells where the links are plugged in; None: the configuration alone does."""
        return self._lldp

    def use_lldp(self, source: LldpSource | None) -> None:
        """Ask another source; None: none any more."""
        self._lldp = source
        if source is None:
            self.map_changed()

    def wants_reports(self, engine: Engine, now: int) -> bool:
        """Whether the neighbours' view is of use now."""
        if self.places.trouble_ns is not None:
            return True
        return _never_heard(engine) and not self._asked_within(ASK_UNSEEN_NS, now)

    def _asked_within(self, length_ns: int, now: int) -> bool:
        return self._asked_ns is not None and now - self._asked_ns <= length_ns

    def hear(self, rows: Iterable[Row], now: int) -> None:
        """Take what the neighbours said."""
        self._asked_ns = now
        self.reports = neighbours.read((r for r in rows if now - r[2] <= RECENT_NS), self.names)

    def look(
        self, views: Sequence[PathView], engine: Engine, now: int, *, more: Iterable[Blame] = ()
    ) -> list[Event]:
        """What is new; ``more`` is what another test found."""
        self._expect(views, engine, now)
        reports = self.reports if self._asked_within(RECENT_NS, now) else ()
        found = [*self.places.look(views, engine, now, reports), *more]
        gone = self._byes.update(views)
        places = [located(blame, self.host, engine) for blame in found]
        return [*places, *(_bye(engine, peer, links) for peer, links in gone)]

    def lost(self, verdict: LossVerdict, engine: Engine) -> None:
        """Take where the loss test says that packets are lost, as it was asked last.

        A link of this host is named while it loses too much itself, not for its paths' losses.
        """
        own = {(Kind.LINK, port_name((self.host, link.rail))) for link in engine.links}
        self.losing = verdict.at
        self.losing_elsewhere = [b for b in verdict.elsewhere if (b.kind, b.element) not in own]

    def located(self) -> list[Blame]:
        """Where the faults are that last; those of which that is unknown are left out."""
        named = [*self.losing.values(), *self.losing_elsewhere, *self.places.now]
        found = {(blame.kind, blame.element): blame for blame in named}
        known = [b for (kind, _), b in found.items() if kind not in _NOWHERE]
        return sorted(known, key=lambda b: -b.confidence)[:MOST_LOCATED]

    async def ask(self, feed: ProberFeed, engine: Engine) -> None:
        """Each tick, where needed: what the peers say they see.

        An answer that takes longer than `ANSWER_S` is heard when it comes; nothing is asked until
        then.
        """
        if self._asking is None and self.wants_reports(engine, time.monotonic_ns()):
            self._asking = asyncio.create_task(self._hear_views(feed))
            self._asking.add_done_callback(self._answered)
            await asyncio.wait({self._asking}, timeout=ANSWER_S)

    async def _hear_views(self, feed: ProberFeed) -> None:
        self.hear(await feed.views(), time.monotonic_ns())

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled():
            task.result()  # A mistake of ours ends the daemon, as one in the tick itself does.

    async def observations(
        self, feed: ProberFeed, engine: Engine, views: Sequence[PathView]
    ) -> dict[str, Any]:
        """What this host and its neighbours see of the fabric now, for ``fabricctl locate``."""
        rows, now = await feed.views(), time.monotonic_ns()
        self.hear(rows, now)
        trouble = self.places.trouble_ns
        since = now - RECENT_NS if trouble is None else trouble + evidence.NOTICE_NS
        topology = self.places.topology
        return observations.collect(
            self.host, views, engine, self.reports, topology, well_since=since
        )

    def _expect(self, views: Sequence[PathView], engine: Engine, now: int) -> None:
        ends = [
            Ends(
                link.rail,
                p.spec.peer_rail,
                p.heard_ever,
                link.carrier is True,
                p.returned,
                p.spec.address in self.open_addresses,
            )
            for p in engine.paths
            for link in (engine.links[p.spec.link],)
        ]
        expected = self._unseen.judge(views, ends, self.reports, now)
        reports = self.reports if self._asked_within(RECENT_NS, now) else ()
        dark, _ = neighbours.ports(reports)
        far = {p.index for p in engine.paths if (p.spec.peer, p.spec.peer_rail) in dark}
        engine.report_peers(expected.links, expected.paths, far)


def _never_heard(engine: Engine) -> bool:
    return any(not path.heard_ever and not path.gone for path in engine.paths)


def _bye(engine: Engine, peer: str, links: frozenset[int]) -> Event:
    names = ", ".join(engine.links[link].netdev for link in sorted(links))
    said = f"bye on {names}: silence there is by intent" if links else "probes again"
    return event(EventKind.PROBER, peer=peer, reason=f"{peer}: {said}")
