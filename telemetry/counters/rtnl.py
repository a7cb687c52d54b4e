"""The kernel's link statistics over rtnetlink (RTM_GETSTATS): few, but every driver has them."""

from __future__ import annotations

import socket
import struct

from telemetry.counters.messages import link_stats_msg
from telemetry.counters.nlattr import decode, first, layout
from telemetry.counters.nlsocket import NETLINK_ROUTE, Netlink
from telemetry.counters.polled import PERIOD_NS, Polled, SourceOff
from telemetry.counters.tables.standard import LINK_STATS
from telemetry.counters.types import CounterError, Sample

RTM_GETSTATS = 94
_FILTER_LINK_64 = 1
_HEADER = struct.Struct("=BBHII")
_LAYOUT = layout(link_stats_msg)
FIELDS = (
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "multicast",
    "collisions",
    "rx_length_errors",
    "rx_over_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_window_errors",
    "rx_compressed",
    "tx_compressed",
)
"""struct rtnl_link_stats64, as all kernels have it; later ones append to it."""


def stats64(data: bytes) -> dict[str, int]:
    """Native name → value of an IFLA_STATS_LINK_64.

    Raises:
        CounterError: it is too short, or no array of u64.
    """
    if len(data) < 8 * len(FIELDS) or len(data) % 8:
        raise CounterError(f"link statistics of {len(data)} bytes")
    return dict(zip(FIELDS, struct.unpack_from(f"={len(FIELDS)}Q", data), strict=True))


class LinkStats(Polled):
    """One netdev's link statistics."""

    source = "link_stats"

    def __init__(
        self, netdev: str, link: Netlink | None = None, period_ns: int = PERIOD_NS
    ) -> None:
        super().__init__(netdev, period_ns)
        self._link = link or Netlink(NETLINK_ROUTE)

    @classmethod
    def open(
        cls, netdev: str, link: Netlink | None = None, period_ns: int = PERIOD_NS
    ) -> LinkStats:
        """A source for a netdev, there or not; sources of one thread may share the socket."""
        return cls(netdev, link, period_ns)

    def sample(self, now_ns: int) -> Sample:
        """See `Polled.sample`."""
        try:
            index = socket.if_nametoindex(self.device)
        except OSError as error:
            raise SourceOff("no such device") from error
        request = _HEADER.pack(0, 0, 0, index, _FILTER_LINK_64)
        for message in self._link.ask(RTM_GETSTATS, request):
            if len(message.payload) < _HEADER.size:
                raise CounterError("link statistics: no header")
            attributes = decode(message.payload[_HEADER.size :], _LAYOUT)
            found = first(attributes, "IFLA_STATS_LINK_64")
            if found is None:
                raise CounterError("link statistics: none in the reply")
            values, _ = LINK_STATS.canonical(stats64(found))
            return Sample(self.source, self.device, index, now_ns, values=values)
        raise CounterError("link statistics: no reply")

    def close(self) -> None:
        """Close the socket."""
        self._link.close()
