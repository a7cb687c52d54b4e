"""ethtool over generic netlink: standard statistics, FEC with its histogram, pause frames.

The same names for all drivers. What a driver does not have is left out of the answer; one that has
none of it is off.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from typing import Any

from telemetry.counters.linkstate import DownReason, down_reason
from telemetry.counters.messages import (
    ETHTOOL_FLAG_COMPACT_BITSETS,
    ETHTOOL_FLAG_STATS,
    ETHTOOL_MSG_FEC_GET,
    ETHTOOL_MSG_LINKSTATE_GET,
    ETHTOOL_MSG_PAUSE_GET,
    ETHTOOL_MSG_STATS_GET,
    STATS_GROUPS,
    ethtool_fec_msg,
    ethtool_linkstate_msg,
    ethtool_pause_msg,
    ethtool_stats_msg,
)
from telemetry.counters.nlattr import Attributes, Layout, decode, first, layout
from telemetry.counters.nlsocket import GENL_HEADER, NETLINK_GENERIC, Netlink, encoded
from telemetry.counters.polled import PERIOD_NS, Polled, SourceOff
from telemetry.counters.tables.standard import ETH_STANDARD
from telemetry.counters.types import Bin, CounterError, Sample

FAMILY = "ethtool"
_NAMES: dict[int, tuple[str, ...]] = {
    0: ("SymbolErrorDuringCarrier",),
    1: (
        "FramesTransmittedOK",
        "SingleCollisionFrames",
        "MultipleCollisionFrames",
        "FramesReceivedOK",
        "FrameCheckSequenceErrors",
        "AlignmentErrors",
        "OctetsTransmittedOK",
        "FramesWithDeferredXmissions",
        "LateCollisions",
        "FramesAbortedDueToXSColls",
        "FramesLostDueToIntMACXmitError",
        "CarrierSenseErrors",
        "OctetsReceivedOK",
        "FramesLostDueToIntMACRcvError",
        "MulticastFramesXmittedOK",
        "BroadcastFramesXmittedOK",
        "FramesWithExcessiveDeferral",
        "MulticastFramesReceivedOK",
        "BroadcastFramesReceivedOK",
        "InRangeLengthErrors",
        "OutOfRangeLengthField",
        "FrameTooLongErrors",
    ),
    2: (
        "MACControlFramesTransmitted",
        "MACControlFramesReceived",
        "UnsupportedOpcodesReceived",
    ),
    3: (
        "etherStatsUndersizePkts",
        "etherStatsOversizePkts",
        "etherStatsFragments",
        "etherStatsJabbers",
    ),
}
"""Group → names by number (net/ethtool/stats.c; IEEE 802.3 clause 30, RFC 2819)."""

FEC_MODES = {49: "off", 50: "RS", 51: "BASE-R", 74: "LLRS"}
"""Link mode bits of include/uapi/linux/ethtool.h."""
_LARGEST = 8 * (1 + 64)
_STATS = layout(
    ethtool_stats_msg, skip=("ETHTOOL_A_STATS_GRP_HIST_RX", "ETHTOOL_A_STATS_GRP_HIST_TX")
)
_FEC = layout(ethtool_fec_msg, skip=("ETHTOOL_A_FEC_MODES", "ETHTOOL_A_FEC_HIST_BIN_VAL_PER_LANE"))
_PAUSE = layout(ethtool_pause_msg)
_LINKSTATE = layout(ethtool_linkstate_msg)


def standard(attributes: Attributes) -> dict[str, int]:
    """IEEE name → value of a STATS_GET reply; statistics unknown here are left out."""
    out: dict[str, int] = {}
    for name, group in attributes:
        if name != "ETHTOOL_A_STATS_GRP":
            continue
        names = _NAMES.get(first(group, "ETHTOOL_A_STATS_GRP_ID"), ())
        for key, statistic in group:
            if key == "ETHTOOL_A_STATS_GRP_STAT":
                for number, value in statistic:
                    if int(number) < len(names):
                        out[names[int(number)]] = value
    return out


def total(name: str, data: bytes) -> int | None:
    """The total of an array of u64 (total, then lanes); None when the device gave none.

    Raises:
        CounterError: the size is none of such an array.
    """
    if len(data) % 8 or len(data) > _LARGEST:
        raise CounterError(f"{name}: {len(data)} bytes")
    if not data:
        return None
    values = struct.unpack(f"={len(data) // 8}Q", data)
    return int(values[0])


_FEC_COUNTERS = {
    "ETHTOOL_A_FEC_STAT_CORRECTED": "fec_corrected",
    "ETHTOOL_A_FEC_STAT_UNCORR": "fec_uncorrectable",
    "ETHTOOL_A_FEC_STAT_CORR_BITS": "fec_corrected_bits",
}


def fec(attributes: Attributes) -> tuple[dict[str, int], tuple[Bin, ...], str]:
    """Canonical counters, the histogram (may be empty) and the active mode of a FEC_GET reply.

    Raises:
        CounterError: sizes, or bins that overlap or are out of order.
    """
    values: dict[str, int] = {}
    bins: list[Bin] = []
    for name, value in first(attributes, "ETHTOOL_A_FEC_STATS") or ():
        if name == "ETHTOOL_A_FEC_STAT_HIST":
            bins.append(_bin(dict(value)))
        elif (count := total(name, value)) is not None:
            values[_FEC_COUNTERS[name]] = count
    for low, high in itertools.pairwise(bins):
        if high.low <= low.high:
            raise CounterError(f"FEC histogram: bin {high.low} after {low.low} to {low.high}")
    active = first(attributes, "ETHTOOL_A_FEC_ACTIVE")
    return values, tuple(bins), FEC_MODES.get(active, "" if active is None else str(active))


def _bin(fields: dict[str, Any]) -> Bin:
    try:
        low, high, count = (
            fields[f"ETHTOOL_A_FEC_HIST_BIN_{part}"] for part in ("LOW", "HIGH", "VAL")
        )
    except KeyError as error:
        raise CounterError(f"FEC histogram: a bin without {error.args[0]}") from error
    if high < low:
        raise CounterError(f"FEC histogram: bin from {low} to {high}")
    return Bin(low, high, count)


def pause(attributes: Attributes) -> dict[str, int]:
    """Canonical counters of a PAUSE_GET reply."""
    stats = dict(first(attributes, "ETHTOOL_A_PAUSE_STATS") or ())
    names = {"pause_rx": "RX", "pause_tx": "TX"}
    return {
        canonical: stats[key]
        for canonical, way in names.items()
        if (key := f"ETHTOOL_A_PAUSE_STAT_{way}_FRAMES") in stats
    }


def ifindex(attributes: Attributes) -> int:
    """The device that answered: a reply's first attribute is its header.

    Raises:
        CounterError: it has none.
    """
    for name, value in attributes:
        if name.endswith("_HEADER"):
            found = first(value, "ETHTOOL_A_HEADER_DEV_INDEX")
            if isinstance(found, int):
                return found
    raise CounterError("ethtool netlink: a reply without a device")


class _Ethtool(Polled):
    """One ethtool request about one netdev, encoded once."""

    fields: Layout

    def __init__(
        self, netdev: str, link: Netlink | None = None, period_ns: int = PERIOD_NS
    ) -> None:
        super().__init__(netdev, period_ns)
        self._link = link or Netlink(NETLINK_GENERIC)
        self._request = encoded(self.request(netdev))

    @classmethod
    def open(cls, netdev: str, link: Netlink | None = None, period_ns: int = PERIOD_NS) -> _Ethtool:
        """A source for a netdev, there or not; sources of one thread may share the socket."""
        return cls(netdev, link, period_ns)

    def request(self, netdev: str) -> Any:  # noqa: ANN401 - a pyroute2 message
        """The pyroute2 message that asks."""
        raise NotImplementedError

    def answer(self) -> Attributes:
        """Ask and decode."""
        for message in self._link.generic(FAMILY, self._request):
            if len(message.payload) < GENL_HEADER.size:
                raise CounterError("generic netlink: no header")
            return decode(message.payload[GENL_HEADER.size :], self.fields)
        raise CounterError("ethtool netlink: no reply")

    def close(self) -> None:
        """Close the socket."""
        self._link.close()


def _asked(message: Any, command: int, prefix: str, netdev: str, flags: int) -> Any:  # noqa: ANN401
    message["cmd"], message["version"] = command, 1
    header = [["ETHTOOL_A_HEADER_DEV_NAME", netdev], ["ETHTOOL_A_HEADER_FLAGS", flags]]
    message["attrs"].append([f"{prefix}_HEADER", {"attrs": header}])
    return message


class Standard(_Ethtool):
    """IEEE 802.3 and RMON statistics (ETHTOOL_MSG_STATS_GET)."""

    source = "ethtool_standard"
    fields = _STATS

    def request(self, netdev: str) -> Any:  # noqa: ANN401
        """All four groups, as a bitset of numbers."""
        message = _asked(
            ethtool_stats_msg(),
            ETHTOOL_MSG_STATS_GET,
            "ETHTOOL_A_STATS",
            netdev,
            ETHTOOL_FLAG_COMPACT_BITSETS,
        )
        groups = struct.pack("=I", STATS_GROUPS)
        bitset = [
            ["ETHTOOL_A_BITSET_NOMASK", True],
            ["ETHTOOL_A_BITSET_SIZE", 4],
            ["ETHTOOL_A_BITSET_VALUE", groups],
        ]
        message["attrs"].append(["ETHTOOL_A_STATS_GROUPS", {"attrs": bitset}])
        return message

    def sample(self, now_ns: int) -> Sample:
        """See `Polled.sample`."""
        attributes = self.answer()
        values, _ = ETH_STANDARD.canonical(standard(attributes))
        _some(values, "the driver has none of the standard statistics")
        return Sample(self.source, self.device, ifindex(attributes), now_ns, values=values)


class Fec(_Ethtool):
    """Forward error correction (ETHTOOL_MSG_FEC_GET): codewords, bits and their histogram."""

    source = "ethtool_fec"
    fields = _FEC

    def request(self, netdev: str) -> Any:  # noqa: ANN401
        """With statistics."""
        flags = ETHTOOL_FLAG_STATS | ETHTOOL_FLAG_COMPACT_BITSETS
        return _asked(ethtool_fec_msg(), ETHTOOL_MSG_FEC_GET, "ETHTOOL_A_FEC", netdev, flags)

    def sample(self, now_ns: int) -> Sample:
        """See `Polled.sample`."""
        attributes = self.answer()
        values, bins, mode = fec(attributes)
        _some(values or bins, "the driver counts nothing of FEC")
        return Sample(
            self.source,
            self.device,
            ifindex(attributes),
            now_ns,
            values=values,
            histograms={"fec_errors": bins} if bins else {},
            info={"fec": mode} if mode else {},
        )


class Pause(_Ethtool):
    """802.3x pause frames (ETHTOOL_MSG_PAUSE_GET)."""

    source = "ethtool_pause"
    fields = _PAUSE

    def request(self, netdev: str) -> Any:  # noqa: ANN401
        """With statistics."""
        flags = ETHTOOL_FLAG_STATS
        return _asked(ethtool_pause_msg(), ETHTOOL_MSG_PAUSE_GET, "ETHTOOL_A_PAUSE", netdev, flags)

    def sample(self, now_ns: int) -> Sample:
        """See `Polled.sample`."""
        attributes = self.answer()
        values = pause(attributes)
        _some(values, "the driver counts no pause frames")
        return Sample(self.source, self.device, ifindex(attributes), now_ns, values=values)


class LinkState:
    """Why a port has no carrier; asked while it has none. Its errors are no errors of a link."""

    def __init__(self, netdev: str, link: Netlink | None = None) -> None:
        """``link``: a socket of one thread; default: one of its own."""
        self._link = link or Netlink(NETLINK_GENERIC)
        message = _asked(
            ethtool_linkstate_msg(), ETHTOOL_MSG_LINKSTATE_GET, "ETHTOOL_A_LINKSTATE", netdev, 0
        )
        self._request = encoded(message)

    def reason(self) -> DownReason | None:
        """Of this moment; None: it has carrier, or driver or kernel do not say why not."""
        try:
            for reply in self._link.generic(FAMILY, self._request):
                return down_reason(decode(reply.payload[GENL_HEADER.size :], _LINKSTATE))
        except (CounterError, OSError):
            return None
        return None

    def close(self) -> None:
        """Close the socket."""
        self._link.close()


def _some(values: Iterable[object], reason: str) -> None:
    if not values:
        raise SourceOff(reason)
