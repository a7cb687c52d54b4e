"""All counters of all links: what a daemon calls once a second, in a thread. Thin.

``Sweep.open`` makes the sources of each link; ``read`` reads those that are due and gives, per
link, what was counted since the last time, by canonical name. Sources are added from outside
(``extra``) for what is read elsewhere: optics, PCIe, devlink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from telemetry.counters.downs import Downs, PortDowns
from telemetry.counters.ethdriver import DriverStatistics, Ioctl
from telemetry.counters.ethnl import Fec, Pause, Standard
from telemetry.counters.ib import SYSFS, HwCounters, PortCounters
from telemetry.counters.merge import Merger
from telemetry.counters.nlsocket import NETLINK_GENERIC, NETLINK_RDMA, NETLINK_ROUTE, Netlink
from telemetry.counters.polled import PERIOD_NS
from telemetry.counters.rdma import RdmaStatistic
from telemetry.counters.rtnl import LinkStats
from telemetry.counters.tracker import Step, Tracker, Update
from telemetry.counters.types import Sample, Source, Status


@dataclass(frozen=True, slots=True)
class Reading:
    """One link, read once.

    Attributes:
        steps: canonical counter → what it did since the last reading, from its best source.
        updates: everything, by source.
        statuses: of all sources.
        downs: how often the port's link went down, from the counter and from port events.
    """

    steps: Mapping[str, Step]
    updates: Sequence[Update]
    statuses: Sequence[Status]
    downs: Downs


class Sockets:
    """What the sources of one thread share; in the caller's network namespace."""

    def __init__(self) -> None:
        self.generic = Netlink(NETLINK_GENERIC)
        self.rdma = Netlink(NETLINK_RDMA)
        self.route = Netlink(NETLINK_ROUTE)
        self.ioctl = Ioctl()

    def close(self) -> None:
        """Close them all."""
        for each in (self.generic, self.rdma, self.route, self.ioctl):
            each.close()


class Transport:
    """``rdma statistic``; ``hw_counters``, which are the same counters, only while it is off."""

    def __init__(self, best: Source, other: Source) -> None:
        self._best, self._other = best, other

    def read(self, now_ns: int) -> Sample | None:
        """Read the one that works."""
        sample = self._best.read(now_ns)
        return sample if self._best.status.on else self._other.read(now_ns)

    @property
    def statuses(self) -> list[Status]:
        """Of the one that works, or of both."""
        best = self._best.status
        return [best] if best.on else [best, self._other.status]


class Link:
    """One link's sources and what they counted."""

    def __init__(self, sources: Iterable[Source], transport: Transport | None = None) -> None:
        self._sources = list(sources)
        self._transport = transport
        self._tracker = Tracker()
        self._merger = Merger()
        self._downs = PortDowns()

    def port_down(self, downs: int = 1) -> None:
        """The port went down, by an event (verbs async event, carrier)."""
        self._downs.event(downs)

    def read(self, now_ns: int) -> Reading:
        """Read what is due."""
        samples = [source.read(now_ns) for source in self._sources]
        statuses = [source.status for source in self._sources]
        if self._transport is not None:
            samples.append(self._transport.read(now_ns))
            statuses += self._transport.statuses
        updates = [self._tracker.take(sample) for sample in samples if sample is not None]
        steps = self._merger.take(updates, {status.source for status in statuses if status.on})
        downed = steps.get("link_downed")
        downs = (
            self._downs.reading(downed.increase, downed.inexact)
            if downed is not None
            else self._downs.state
        )
        return Reading(steps, updates, statuses, downs)


class Sweep:
    """All links of a host."""

    def __init__(self, links: Mapping[str, Link], sockets: Sockets) -> None:
        self.links = dict(links)
        self._sockets = sockets

    @classmethod
    def open(
        cls,
        links: Mapping[str, tuple[str, int] | None],
        *,
        extra: Mapping[str, Sequence[Source]] | None = None,
        sysfs: Path = SYSFS,
        period_ns: int = PERIOD_NS,
    ) -> Sweep:
        """Make the sources.

        Args:
            links: netdev → its verbs port (device, number), or None.
            extra: netdev → sources made elsewhere.
            sysfs: the folder of the verbs devices.
            period_ns: how often to read.
        """
        sockets = Sockets()
        return cls(
            {
                netdev: link(
                    netdev,
                    port,
                    sockets,
                    (extra or {}).get(netdev, ()),
                    sysfs=sysfs,
                    period_ns=period_ns,
                )
                for netdev, port in links.items()
            },
            sockets,
        )

    def read(self, now_ns: int) -> dict[str, Reading]:
        """Read all links; CLOCK_MONOTONIC."""
        return {netdev: link.read(now_ns) for netdev, link in self.links.items()}

    def close(self) -> None:
        """Close all sockets."""
        self._sockets.close()


def link(
    netdev: str,
    port: tuple[str, int] | None,
    sockets: Sockets,
    extra: Sequence[Source] = (),
    *,
    sysfs: Path = SYSFS,
    period_ns: int = PERIOD_NS,
) -> Link:
    """All sources of one link; arguments as of `Sweep.open`."""
    sources: list[Source] = [
        Standard(netdev, sockets.generic, period_ns),
        Fec(netdev, sockets.generic, period_ns),
        Pause(netdev, sockets.generic, period_ns),
        DriverStatistics(netdev, sockets.ioctl, period_ns),
        LinkStats(netdev, sockets.route, period_ns),
        *extra,
    ]
    if port is None:
        return Link(sources)
    sources.append(PortCounters(*port, sysfs=sysfs, period_ns=period_ns))
    best = RdmaStatistic(*port, sockets.rdma, sysfs=sysfs, period_ns=period_ns)
    return Link(sources, Transport(best, HwCounters(*port, sysfs=sysfs, period_ns=period_ns)))
