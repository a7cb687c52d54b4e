"""Kernel replies packed byte by byte, without pyroute2: what parsers are tested and measured with.

Layouts: net/ethtool/{stats,fec,pause}.c, net/core/net-procfs.c, drivers/infiniband/core/nldev.c,
include/uapi/linux.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

NESTED = 0x8000


def attribute(kind: int, payload: bytes, flags: int = 0) -> bytes:
    """One netlink attribute, padded to 4 bytes."""
    data = struct.pack("=HH", 4 + len(payload), kind | flags) + payload
    return data + b"\0" * (-len(data) % 4)


def nest(kind: int, *inner: bytes) -> bytes:
    """An attribute of attributes."""
    return attribute(kind, b"".join(inner), NESTED)


def u32(kind: int, value: int) -> bytes:
    """A number of 32 bits."""
    return attribute(kind, struct.pack("=I", value))


def u64(kind: int, *values: int) -> bytes:
    """Numbers of 64 bits."""
    return attribute(kind, struct.pack(f"={len(values)}Q", *values))


def header(kind: int, ifindex: int = 7, name: bytes = b"rail0\0") -> bytes:
    """An ethtool header: DEV_INDEX 1, DEV_NAME 2."""
    return nest(kind, u32(1, ifindex), attribute(2, name))


def standard_reply(groups: Mapping[int, Mapping[int, int]], buckets: int = 1) -> bytes:
    """ETHTOOL_MSG_STATS_GET_REPLY: header 2, source 5, groups 4 (id 2, stat 4, histograms 5, 6).

    Args:
        groups: number of the group → number of the statistic → value.
        buckets: of frame lengths, each way, in the rmon group.
    """
    packed = []
    for number, statistics in groups.items():
        histograms = [
            nest(way, u32(7, 64 * n), u32(8, 64 * n + 63), u64(9, 1000))
            for way in (5, 6)
            for n in range(buckets if number == 3 else 0)
        ]
        stats = [nest(4, u64(kind, value)) for kind, value in statistics.items()]
        packed.append(nest(4, u32(2, number), u32(3, 17 + number), *histograms, *stats))
    return b"".join([header(2), u32(5, 0), *packed])


def fec_bin(low: int, high: int, value: int, *lanes: int) -> bytes:
    """One bin; the value is a ``uint``: 4 bytes when it fits (nla_put_uint)."""
    count = u32(4, value) if value < 1 << 32 else u64(4, value)
    return nest(5, u32(2, low), u32(3, high), count, u64(5, *lanes))


def fec_reply(
    corrected: Iterable[int], uncorrectable: Iterable[int], bits: Iterable[int], *bins: bytes
) -> bytes:
    """ETHTOOL_MSG_FEC_GET_REPLY: header 1, modes 2, auto 3, active 4 (RS), stats 5.

    Args:
        corrected: codewords, the total, then lanes; empty: the device does not know.
        uncorrectable: codewords, in the same way.
        bits: corrected bits, in the same way.
        bins: of the histogram.
    """
    modes = nest(2, attribute(1, b""), u32(2, 121), attribute(4, bytes(16)))
    arrays = [u64(2, *corrected), u64(3, *uncorrectable), u64(4, *bits)]
    return b"".join([header(1), modes, attribute(3, b"\1"), u32(4, 50), nest(5, *arrays, *bins)])


def pause_reply(tx: int, rx: int) -> bytes:
    """ETHTOOL_MSG_PAUSE_GET_REPLY: header 1, autoneg 2, rx 3, tx 4, stats 5 (tx 2, rx 3)."""
    on = [attribute(kind, b"\1") for kind in (2, 3, 4)]
    return b"".join([header(1), *on, nest(5, u64(2, tx), u64(3, rx))])


def linkstate_reply(link: int, state: int | None = None, substate: int | None = None) -> bytes:
    """ETHTOOL_MSG_LINKSTATE_GET_REPLY: header 1, link 2, extended state 5, its substate 6."""
    values = ((2, link), (5, state), (6, substate))
    said = [attribute(kind, bytes([value])) for kind, value in values if value is not None]
    return b"".join([header(1), *said])


def rdma_reply(counters: Mapping[str, int], name: bytes = b"mlx5_0\0", index: int = 0) -> bytes:
    """RDMA_NLDEV_CMD_STAT_GET: index 1, name 2, port 3, table 80 of entries 81 (82, 83)."""
    entries = [
        nest(81, attribute(82, key.encode() + b"\0"), u64(83, value))
        for key, value in counters.items()
    ]
    return u32(1, index) + attribute(2, name) + u32(3, 1) + nest(80, *entries)


def gstrings(names: Iterable[str]) -> bytes:
    """What follows the header of a struct ethtool_gstrings."""
    return b"".join(name.encode().ljust(32, b"\0")[:32] for name in names)


def gstats(values: Iterable[int]) -> bytes:
    """What follows the header of a struct ethtool_stats."""
    numbers = list(values)
    return struct.pack(f"={len(numbers)}Q", *numbers)


def _message(kind: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, 0, 0, 0) + payload


def link_news(index: int, name: str, *, carrier: int, kind: int = 16, family: int = 0) -> bytes:
    """An RTM_NEWLINK (17: RTM_DELLINK) as it is multicast; other attributes between those read."""
    body = struct.pack("=BxHiII", family, 1, index, 0x1003, 0xFFFFFFFF)
    body += attribute(3, name.encode() + b"\0") + u32(13, 1000) + attribute(1, bytes(range(6)))
    body += u32(4, 9000) + attribute(33, bytes([carrier])) + u32(35, 7) + u32(47, 3) + u32(48, 4)
    return _message(kind, body + nest(26, nest(2, nest(1, u32(1, 0), u32(2, 1)))))


def address_news(index: int, address: bytes = b"\x0a\0\0\1", *, kind: int = 20) -> bytes:
    """An RTM_NEWADDR (21: RTM_DELADDR)."""
    family = 2 if len(address) == 4 else 10
    body = struct.pack("=BBBBi", family, 24, 0x80, 0, index) + attribute(1, address)
    return _message(kind, body + (attribute(2, address) if family == 2 else b"") + u32(8, 0x80))


def softnet_stat(*queues: tuple[int, int], columns: int = 15) -> bytes:
    """``/proc/net/softnet_stat``; of CPU 0, 1 and so on: packets processed, and waiting."""
    lines = []
    for cpu, (processed, waiting) in enumerate(queues):
        row = [processed, *[0] * 10, waiting, cpu, waiting, 0]
        lines.append(" ".join(f"{number:08x}" for number in row[:columns]) + "\n")
    return "".join(lines).encode()
