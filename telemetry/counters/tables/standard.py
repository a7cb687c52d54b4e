"""What the kernel counts under the same names for all drivers: ethtool groups, link statistics."""

from __future__ import annotations

from telemetry.counters.table import Row, Table

ETH_STANDARD = Table(
    "eth_standard",
    # IEEE 802.3 clause 30 (eth-phy, eth-mac), RFC 2819 (rmon).
    "net/ethtool/stats.c; include/uapi/linux/ethtool_netlink.h (ETHTOOL_A_STATS_ETH_*, _RMON_*)",
    (
        Row("SymbolErrorDuringCarrier", "symbol_errors"),
        Row("FrameCheckSequenceErrors", "crc_errors"),
        Row("AlignmentErrors", "alignment_errors"),
        Row("InRangeLengthErrors", "length_errors"),
        Row("OutOfRangeLengthField", "length_errors"),
        Row("FrameTooLongErrors", "length_errors"),
        Row("etherStatsUndersizePkts", "length_errors"),
        Row("etherStatsFragments", "length_errors"),
        Row("etherStatsJabbers", "length_errors"),
        Row("FramesLostDueToIntMACRcvError", "rcv_errors"),
        Row("FramesLostDueToIntMACXmitError", "tx_errors"),
        Row("CarrierSenseErrors", "carrier_errors"),
        Row("FramesReceivedOK", "rx_packets"),
        Row("OctetsReceivedOK", "rx_bytes"),
        Row("FramesTransmittedOK", "tx_packets"),
        Row("OctetsTransmittedOK", "tx_bytes"),
    ),
)

LINK_STATS = Table(
    "link_stats",
    "include/uapi/linux/if_link.h (struct rtnl_link_stats64)",
    (
        Row("rx_errors", "rcv_errors"),
        Row("tx_errors", "tx_errors"),
        Row("rx_missed_errors", "rcv_discards"),
        Row("tx_dropped", "xmit_discards"),
        Row("rx_length_errors", "length_errors"),
        Row("rx_crc_errors", "crc_errors"),
        Row("rx_frame_errors", "alignment_errors"),
        Row("tx_carrier_errors", "carrier_errors"),
        Row("rx_packets", "rx_packets"),
        Row("rx_bytes", "rx_bytes"),
        Row("tx_packets", "tx_packets"),
        Row("tx_bytes", "tx_bytes"),
    ),
)
"""rx_dropped is left out: the stack's own drops (no listener, wrong protocol) are in it."""
