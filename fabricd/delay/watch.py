"""The delay view at work in the daemon: stamps in, conditions and events out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fabricd.delay.condition import Condition, ConditionRules, LinkCondition, Seen, Told
from fabricd.delay.fabric import FabricTimes
from fabricd.delay.path import BaseChange
from fabricd.delay.rails import SlowClaim, SlowRails
from fabricd.delay.view import STEP_NS, DelayView, Figures, PathPlace
from fabricd.detect.rules import Class
from fabricd.engine import Engine
from fabricd.jobs.owners import Owners
from fabricd.probes.records import Direction, PathRow
from fabricd.probes.ring import RingError
from fabricd.probes.stamps import StampReader
from fabricd.state.model import Link
from fabricd.timeline.rows import event
from telemetry.events import Event, EventKind, JsonScalar
from telemetry.statsdir import ProcessPage

if TYPE_CHECKING:
    from fabricd.probes.feed import ProberFeed

NAME = "delay"
"""Of the detector that can be switched off."""
TOLD_BASE_NS = 20_000
TOLD_BASE_SHARE = 0.25
"""A base delay that moved by less than both is not told: hosts' stamps wander so much."""


class DelayWatch:
    """Delay, queueing and slow rails of one host."""

    def __init__(self, fabric: FabricTimes | None = None, owners: Owners | None = None) -> None:
        """Prepare.

        Args:
            fabric: what the host's clock service says; None: nothing.
            owners: of stats pages; None: those of this system.
        """
        self.fabric = fabric
        self.view = DelayView(fabric_time=fabric)
        self.rails = SlowRails()
        self._owners = owners or Owners.of()
        self._claims: dict[str, SlowClaim] = {}
        """What one user's job says of a link, and nothing confirms."""
        self._told_claims: dict[str, Told] = {}
        self._rules = ConditionRules()
        self._links: dict[str, LinkCondition] = {}
        self._told: dict[str, Told] = {}
        self._bases: dict[str, Told] = {}
        self._reader: StampReader | None = None
        self._stepped_ns = 0
        self._stall_ns = 0
        self._off = False

    def configure(self, engine: Engine) -> None:
        """The paths are other ones."""
        self.view.configure(
            [PathPlace(p.spec.link, p.netdev, p.spec.peer, p.spec.address) for p in engine.paths]
        )
        if self.fabric is not None:
            self.fabric.configure({(p.netdev, p.spec.address): p.spec.peer for p in engine.paths})
        names = [link.netdev for link in engine.links]
        self._links = {n: self._links.get(n) or LinkCondition(self._rules) for n in names}

    def jobs_seen(self, pages: Sequence[ProcessPage]) -> Iterator[None]:
        """The stats pages of one scan, one at a step."""
        return self.rails.steps(pages)

    def condition(self, netdev: str) -> LinkCondition:
        """What the link suffers from."""
        return self._links[netdev]

    def slow(self, netdev: str) -> bool | None:
        """Whether the rail is slow (not merely behind a queue); None: nothing to compare."""
        if self._off or netdev not in self.rails.compared:
            return None
        return self._links[netdev].now is Condition.SLOW

    def claim_uid(self, netdev: str) -> int | None:
        """The user whose job alone says that the rail is slow; None: there is none."""
        claim = self._claims.get(netdev)
        return claim.uid if claim else None

    def slow_texts(self, uids: Collection[int] = ()) -> dict[str, str]:
        """Rails that jobs call slow, with why; of mere claims those of these users."""
        return {
            netdev: _claim_text(claims[0]) if netdev in self._claims else claims[0].text
            for netdev, claims in self.rails.slow().items()
            if netdev not in self._claims or claims[0].uid in uids
        }

    def slow_claims(self) -> dict[str, dict[str, JsonScalar]]:
        """Rails that one user's job alone calls slow: whose, and why."""
        return {netdev: asdict(claim) for netdev, claim in self._claims.items()}

    def queued_ns(self) -> dict[int, int]:
        """Paths on which a queue stands, for the loss test: full queues drop packets, too."""
        return {} if self._off else self.view.queued_ns()

    def tick(
        self, feed: ProberFeed, rows: Sequence[PathRow], engine: Engine, now: int
    ) -> list[Event]:
        """Called twice a second; a step is made once a second.

        Args:
            feed: the prober.
            rows: its path table, or nothing when there is no prober.
            engine: links and paths, with the state that they are in.
            now: CLOCK_MONOTONIC ns.
        """
        if now - self._stepped_ns < STEP_NS * 3 // 4:
            return []
        self._stepped_ns = now
        self._off = NAME in engine.overrides.off
        if self.fabric is not None:
            self.fabric.look()
        found = self._stamps(feed)
        header = feed.header()
        stalls = header.stall_ns if header else self._stall_ns
        stalled, self._stall_ns = max(0, stalls - self._stall_ns), stalls
        lost = {row.index: row.rx_lost + row.tx_lost for row in rows}
        changes = self.view.feed(found, lost, stalled_ns=stalled)
        if self._off:
            self._links = {netdev: LinkCondition(self._rules) for netdev in self._links}
            self._claims = {}
            return []
        events = [e for place, change in changes for e in self._base_told(place, change, now)]
        slow = self.rails.slow()
        self._claims = {
            link.netdev: slow[link.netdev][0]
            for link in engine.links
            if link.netdev in slow and not self._confirmed(link, slow[link.netdev])
        }
        for link in engine.links:
            claims = () if link.netdev in self._claims else slow.get(link.netdev, ())
            seen = Seen(
                link.health.state,
                link.health.reason,
                self.view.standing(link.index, Direction.RX),
                self.view.standing(link.index, Direction.TX),
                claims[0].text if claims else "",
                link.netdev in self.rails.compared,
            )
            self._links[link.netdev].step(seen, now)
            events += self._told_now(link.netdev, link.rail, link.index, now)
            events += self._claim_told(link.netdev, link.rail, now)
        return events

    def _confirmed(self, link: Link, claims: Sequence[SlowClaim]) -> bool:
        """Whether it is more than one user's word; congestion may be the claimant's own doing."""
        own = any(finding.rule.cls is not Class.CONGESTION for finding in link.counters)
        return own or self._owners.confirm(claim.uid for claim in claims)

    def _claim_told(self, netdev: str, rail: int, now: int) -> list[Event]:
        claim = self._claims.get(netdev)
        told = self._told_claims.setdefault(netdev, Told(self._rules, ("",)))
        if not told.change((str(claim.uid) if claim else "",), now) or claim is None:
            return []
        data: dict[str, JsonScalar] = {
            "condition": "slow_claimed", "uid": claim.uid, "job": claim.job
        }  # fmt: skip
        return [
            event(EventKind.CONDITION, link=netdev, rail=rail, reason=_claim_text(claim), data=data)
        ]

    def _stamps(self, feed: ProberFeed) -> dict[int, Any]:
        ring = feed.reader
        if ring is None or not feed.epoch:
            self._reader = None
            return {}
        try:
            if self._reader is None or self._reader.ring is not ring:
                self._reader = StampReader(ring)
                return {}
            return self._reader.read(feed.epoch, self.view.share)
        except RingError:
            self._reader = None
            return {}

    def _told_now(self, netdev: str, rail: int, index: int, now: int) -> list[Event]:
        condition = self._links[netdev]
        told = self._told.setdefault(netdev, Told(self._rules, (Condition.FINE.value, "")))
        if condition.now in (Condition.UNKNOWN, Condition.BROKEN):
            return []  # rows of the link's state say that already
        before = told.last[0]
        if not told.change((condition.now.value, condition.direction), now):
            return []
        figures = self.view.link_figures(index)
        data: dict[str, JsonScalar] = {"condition": condition.now.value, "before": before}
        if condition.direction:
            data["direction"] = condition.direction
        if figures.base_rtt_ns is not None:
            data["base_rtt_us"] = _us(figures.base_rtt_ns)
        why = condition.why or f"no longer {before}"
        return [
            event(
                EventKind.CONDITION, link=netdev, rail=rail,
                reason=f"{condition.now.value}: {why}", data=data,
            )
        ]  # fmt: skip

    def _base_told(self, place: PathPlace, change: BaseChange, now: int) -> list[Event]:
        moved = abs(change.after_ns - change.before_ns)
        if moved < max(TOLD_BASE_NS, TOLD_BASE_SHARE * change.before_ns):
            return []
        told = self._bases.setdefault(place.netdev, Told(self._rules))
        if not told.change((str(now), place.address), now):
            return []
        text = f"{change.before_ns / 1e3:.0f} µs → {change.after_ns / 1e3:.0f} µs"
        return [
            event(
                EventKind.CONDITION, link=place.netdev, peer=place.peer,
                reason=f"base round trip {text}: another route, or another clock of the NIC",
                data={"condition": "route", "tx_us": _us(change.tx_ns), "rx_us": _us(change.rx_ns)},
            )
        ]  # fmt: skip


def _claim_text(claim: SlowClaim) -> str:
    return f"slow by the claim of job {claim.job} of uid {claim.uid} alone: {claim.text}"


def _us(ns: float | None) -> float | None:
    return None if ns is None else round(ns / 1e3, 1)


def document(figures: Figures) -> dict[str, Any]:
    """For JSON; microseconds."""
    (rx50, tx50), (rx99, tx99) = figures.queue_p50_ns, figures.queue_p99_ns
    return {
        "base_rtt_us": _us(figures.base_rtt_ns),
        "base_tx_us": _us(figures.base_tx_ns),
        "base_rx_us": _us(figures.base_rx_ns),
        "bound_us": _us(figures.bound_ns),
        "queue_rx_p50_us": _us(rx50),
        "queue_rx_p99_us": _us(rx99),
        "queue_tx_p50_us": _us(tx50),
        "queue_tx_p99_us": _us(tx99),
        "window_s": figures.window_s,
    }
