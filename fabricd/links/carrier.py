"""Carrier readings in, FLAP and CARRIER_UP rows out. Pure but for the events' wall clock.

Every reading, from the prober's records, its link table or netlink, goes through the `FlapLedger`,
so it does not matter which comes first or twice: each carrier loss is one count, once.
"""

from __future__ import annotations

from fabricd.engine import Engine
from fabricd.links.flaps import FlapLedger
from fabricd.state.model import Link
from telemetry.events import Event, EventKind


class CarrierTracker:
    """Turns readings into counts, facts for the engine and events.

    Attributes:
        totals: carrier losses by netdev, those of earlier daemons included.
    """

    def __init__(self, engine: Engine, ledger: FlapLedger, totals: dict[str, int]) -> None:
        self.engine = engine
        self.ledger = ledger
        self.totals = totals

    def reading(
        self,
        link: Link,
        *,
        ifindex: int,
        down_count: int,
        carrier: bool,
        mono_ns: int,
        wall_ns: int,
        source: str,
        current: bool = False,
    ) -> list[Event]:
        """One reading of a present device; returns its events, oldest first.

        ``current``: it was read in this daemon's life, not told of an earlier moment.
        """
        mark = self.ledger.mark(link.netdev)
        stale = mark is not None and mark.ifindex == ifindex and down_count < mark.down_count
        if stale and current and self.ledger.unseen(link.netdev):
            # A kernel's count never falls: an earlier daemon served another network namespace,
            # and this is another device that has the same number there.
            self.ledger.forget(link.netdev)
            mark = None
        elif stale:
            return []
        known = link.carrier
        if known is None and mark is not None:
            known = mark.carrier
        downs = self.ledger.observe(link.netdev, ifindex, down_count, carrier=carrier)
        events = []
        if downs:
            events.append(
                self._flap(link, downs, ifindex, down_count, carrier, mono_ns, wall_ns, source)
            )
        if carrier and (downs or known is False):
            events.append(
                Event(
                    EventKind.CARRIER_UP, wall_ns, mono_ns, link=link.netdev, rail=link.rail,
                    data={"ifindex": ifindex},
                )
            )  # fmt: skip
        self.engine.report_carrier(link, carrier=carrier, downs=downs)
        return events

    def gone(self, link: Link, *, mono_ns: int, wall_ns: int, source: str) -> list[Event]:
        """The device does not exist; a carrier that went with it is one flap."""
        downs = self.ledger.vanished(link.netdev)
        self.engine.report_carrier(link, carrier=False, downs=downs)
        mark = self.ledger.mark(link.netdev)
        if not downs or mark is None:
            return []
        return [
            self._flap(
                link, downs, mark.ifindex, mark.down_count, False, mono_ns, wall_ns,
                f"{source}: device gone",
            )
        ]  # fmt: skip

    def _flap(
        self,
        link: Link,
        downs: int,
        ifindex: int,
        down_count: int,
        carrier: bool,
        mono_ns: int,
        wall_ns: int,
        source: str,
    ) -> Event:
        self.totals[link.netdev] = self.totals.get(link.netdev, 0) + downs
        return Event(
            EventKind.FLAP, wall_ns, mono_ns, link=link.netdev, rail=link.rail, count=downs,
            reason=source,
            data={
                "ifindex": ifindex, "down_count": down_count, "carrier": carrier,
                "told": self.ledger.told(link.netdev),
            },
        )  # fmt: skip
