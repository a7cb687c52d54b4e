"""Netlink messages that pyroute2 lacks, in its style: ethtool statistics, RDMA, link statistics.

Numbers and names: include/uapi/linux/ethtool_netlink.h and ethtool_netlink_generated.h,
include/uapi/rdma/rdma_netlink.h, include/uapi/linux/if_link.h.
"""

# ruff: noqa: N801 - names in pyroute2's style
# mypy: disable-error-code="misc"
from __future__ import annotations

import sys

from pyroute2.netlink import NLA_F_NESTED, genlmsg, nla, nla_base, nlmsg
from pyroute2.netlink.generic.ethtool import ethtoolbitset, ethtoolheader

ETHTOOL_MSG_LINKSTATE_GET = 6
ETHTOOL_MSG_PAUSE_GET = 21
ETHTOOL_MSG_FEC_GET = 29
ETHTOOL_MSG_STATS_GET = 32
ETHTOOL_FLAG_COMPACT_BITSETS = 1
ETHTOOL_FLAG_STATS = 4

STATS_GROUPS = 0b1111
"""eth-phy, eth-mac, eth-ctrl, rmon."""


class family_msg(genlmsg):
    """CTRL_CMD_GETFAMILY, as much of it as is needed (pyroute2's ctrlmsg has all)."""

    nla_map = (
        ("CTRL_ATTR_UNSPEC", "none"),
        ("CTRL_ATTR_FAMILY_ID", "uint16"),
        ("CTRL_ATTR_FAMILY_NAME", "asciiz"),
    )


class stat_value(nla):
    """One statistic: its type is its number within the group, from 0."""

    nla_flags = NLA_F_NESTED
    nla_map = tuple((number, str(number), "uint64") for number in range(64))


class stats_histogram(nla):
    """One bucket of frame lengths."""

    nla_flags = NLA_F_NESTED
    nla_map = (
        (7, "ETHTOOL_A_STATS_GRP_HIST_BKT_LOW", "uint32"),
        (8, "ETHTOOL_A_STATS_GRP_HIST_BKT_HI", "uint32"),
        (9, "ETHTOOL_A_STATS_GRP_HIST_VAL", "uint64"),
    )


class stats_group(nla):
    """One group of ETHTOOL_MSG_STATS_GET."""

    nla_flags = NLA_F_NESTED
    nla_map = (
        ("ETHTOOL_A_STATS_GRP_UNSPEC", "none"),
        ("ETHTOOL_A_STATS_GRP_PAD", "none"),
        ("ETHTOOL_A_STATS_GRP_ID", "uint32"),
        ("ETHTOOL_A_STATS_GRP_SS_ID", "uint32"),
        ("ETHTOOL_A_STATS_GRP_STAT", "stat_value"),
        ("ETHTOOL_A_STATS_GRP_HIST_RX", "stats_histogram"),
        ("ETHTOOL_A_STATS_GRP_HIST_TX", "stats_histogram"),
    )
    stat_value = stat_value
    stats_histogram = stats_histogram


class ethtool_stats_msg(genlmsg):
    """ETHTOOL_MSG_STATS_GET and its reply (net/ethtool/stats.c)."""

    nla_map = (
        ("ETHTOOL_A_STATS_UNSPEC", "none"),
        ("ETHTOOL_A_STATS_PAD", "none"),
        ("ETHTOOL_A_STATS_HEADER", "ethtoolheader"),
        ("ETHTOOL_A_STATS_GROUPS", "ethtoolbitset"),
        ("ETHTOOL_A_STATS_GRP", "stats_group"),
        ("ETHTOOL_A_STATS_SRC", "uint32"),
    )
    ethtoolheader = ethtoolheader
    ethtoolbitset = ethtoolbitset
    stats_group = stats_group


class uint(nla_base):
    """NLA_UINT: 4 bytes, or 8 when the number needs them."""

    def decode(self) -> None:
        """As pyroute2 calls it."""
        nla_base.decode(self)
        start = self.offset + 4
        self.value = int.from_bytes(self.data[start : self.offset + self.length], sys.byteorder)


class fec_histogram(nla):
    """One bin: codewords with so many corrected symbols (Linux 6.18)."""

    nla_flags = NLA_F_NESTED
    nla_map = (
        ("ETHTOOL_A_FEC_HIST_UNSPEC", "none"),
        ("ETHTOOL_A_FEC_HIST_PAD", "none"),
        ("ETHTOOL_A_FEC_HIST_BIN_LOW", "uint32"),
        ("ETHTOOL_A_FEC_HIST_BIN_HIGH", "uint32"),
        ("ETHTOOL_A_FEC_HIST_BIN_VAL", "uint"),
        ("ETHTOOL_A_FEC_HIST_BIN_VAL_PER_LANE", "cdata"),
    )
    uint = uint


class fec_stats(nla):
    """Arrays of u64: the total, then one per lane where the device knows them."""

    nla_flags = NLA_F_NESTED
    nla_map = (
        ("ETHTOOL_A_FEC_STAT_UNSPEC", "none"),
        ("ETHTOOL_A_FEC_STAT_PAD", "none"),
        ("ETHTOOL_A_FEC_STAT_CORRECTED", "cdata"),
        ("ETHTOOL_A_FEC_STAT_UNCORR", "cdata"),
        ("ETHTOOL_A_FEC_STAT_CORR_BITS", "cdata"),
        ("ETHTOOL_A_FEC_STAT_HIST", "fec_histogram"),
    )
    fec_histogram = fec_histogram


class ethtool_fec_msg(genlmsg):
    """ETHTOOL_MSG_FEC_GET and its reply (net/ethtool/fec.c)."""

    nla_map = (
        ("ETHTOOL_A_FEC_UNSPEC", "none"),
        ("ETHTOOL_A_FEC_HEADER", "ethtoolheader"),
        ("ETHTOOL_A_FEC_MODES", "ethtoolbitset"),
        ("ETHTOOL_A_FEC_AUTO", "uint8"),
        ("ETHTOOL_A_FEC_ACTIVE", "uint32"),
        ("ETHTOOL_A_FEC_STATS", "fec_stats"),
    )
    ethtoolheader = ethtoolheader
    ethtoolbitset = ethtoolbitset
    fec_stats = fec_stats


class pause_stats(nla):
    """Pause frames."""

    nla_flags = NLA_F_NESTED
    nla_map = (
        ("ETHTOOL_A_PAUSE_STAT_UNSPEC", "none"),
        ("ETHTOOL_A_PAUSE_STAT_PAD", "none"),
        ("ETHTOOL_A_PAUSE_STAT_TX_FRAMES", "uint64"),
        ("ETHTOOL_A_PAUSE_STAT_RX_FRAMES", "uint64"),
    )


class ethtool_pause_msg(genlmsg):
    """ETHTOOL_MSG_PAUSE_GET and its reply (net/ethtool/pause.c)."""

    nla_map = (
        ("ETHTOOL_A_PAUSE_UNSPEC", "none"),
        ("ETHTOOL_A_PAUSE_HEADER", "ethtoolheader"),
        ("ETHTOOL_A_PAUSE_AUTONEG", "uint8"),
        ("ETHTOOL_A_PAUSE_RX", "uint8"),
        ("ETHTOOL_A_PAUSE_TX", "uint8"),
        ("ETHTOOL_A_PAUSE_STATS", "pause_stats"),
    )
    ethtoolheader = ethtoolheader
    pause_stats = pause_stats


class ethtool_linkstate_msg(genlmsg):
    """ETHTOOL_MSG_LINKSTATE_GET and its reply (net/ethtool/linkstate.c)."""

    nla_map = (
        ("ETHTOOL_A_LINKSTATE_UNSPEC", "none"),
        ("ETHTOOL_A_LINKSTATE_HEADER", "ethtoolheader"),
        ("ETHTOOL_A_LINKSTATE_LINK", "uint8"),
        ("ETHTOOL_A_LINKSTATE_SQI", "uint32"),
        ("ETHTOOL_A_LINKSTATE_SQI_MAX", "uint32"),
        ("ETHTOOL_A_LINKSTATE_EXT_STATE", "uint8"),
        ("ETHTOOL_A_LINKSTATE_EXT_SUBSTATE", "uint8"),
    )
    ethtoolheader = ethtoolheader


RDMA_NL_NLDEV = 5
RDMA_NLDEV_CMD_GET = 1
RDMA_NLDEV_CMD_STAT_GET = 17


class hwcounter(nla):
    """One counter: its driver's name and its value."""

    nla_flags = NLA_F_NESTED
    nla_map = (
        (82, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME", "asciiz"),
        (83, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE", "uint64"),
    )


class hwcounters(nla):
    """All counters of a port."""

    nla_flags = NLA_F_NESTED
    nla_map = ((81, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY", "hwcounter"),)
    hwcounter = hwcounter


class rdma_nldev_msg(nlmsg):
    """RDMA_NLDEV_CMD_GET and _STAT_GET: no generic netlink, so no header of its own.

    drivers/infiniband/core/nldev.c; the type is ``RDMA_NL_NLDEV << 10 | command``.
    """

    nla_map = (
        (1, "RDMA_NLDEV_ATTR_DEV_INDEX", "uint32"),
        (2, "RDMA_NLDEV_ATTR_DEV_NAME", "asciiz"),
        (3, "RDMA_NLDEV_ATTR_PORT_INDEX", "uint32"),
        (5, "RDMA_NLDEV_ATTR_FW_VERSION", "asciiz"),
        (80, "RDMA_NLDEV_ATTR_STAT_HWCOUNTERS", "hwcounters"),
    )
    hwcounters = hwcounters


class link_stats_msg(nlmsg):
    """RTM_GETSTATS with IFLA_STATS_LINK_64, and its reply (net/core/rtnetlink.c)."""

    fields = (
        ("family", "B"),
        ("pad1", "B"),
        ("pad2", "H"),
        ("ifindex", "I"),
        ("filter_mask", "I"),
    )
    nla_map = ((1, "IFLA_STATS_LINK_64", "cdata"),)
