"""Fixtures read, and kernel replies packed byte by byte, without pyroute2."""

import struct
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"
NESTED = 0x8000


def fixture(name):
    """Native name → number."""
    lines = (FIXTURES / name).read_text().splitlines()
    rows = [line.rsplit(": ", 1) for line in lines if not line.startswith("#")]
    assert len({row[0] for row in rows}) == len(rows)
    return {name: int(value) for name, value in rows}


def files(name):
    """The same as file contents."""
    return {key: f"{value}\n".encode() for key, value in fixture(name).items()}


def folder(path, name, **changed):
    """The same as a folder of a port."""
    path.mkdir(parents=True, exist_ok=True)
    for key, value in {**fixture(name), **changed}.items():
        (path / key).write_text(f"{value}\n")


def attribute(kind, payload, flags=0):
    data = struct.pack("=HH", 4 + len(payload), kind | flags) + payload
    return data + b"\0" * (-len(data) % 4)


def nest(kind, *inner):
    return attribute(kind, b"".join(inner), NESTED)


def u32(kind, value):
    return attribute(kind, struct.pack("=I", value))


def u64(kind, *values):
    return attribute(kind, struct.pack(f"={len(values)}Q", *values))


def header(kind, ifindex=7, name=b"rail0\0"):
    """An ethtool header: DEV_INDEX 1, DEV_NAME 2."""
    return nest(kind, u32(1, ifindex), attribute(2, name))


def standard_reply():
    """ETHTOOL_MSG_STATS_GET_REPLY: header 2, source 5, groups 4 (id 2, stat 4, histogram 5)."""

    def group(number, *stats):
        return nest(4, u32(2, number), u32(3, 17 + number), *stats)

    def stat(number, value):
        return nest(4, u64(number, value))

    histogram = nest(5, u32(7, 64), u32(8, 127), u64(9, 1000))
    return b"".join(
        [
            header(2),
            u32(5, 0),
            group(0, stat(0, 11)),
            group(1, stat(0, 500), stat(4, 3), stat(5, 2), stat(6, 9000), stat(21, 4)),
            group(2, stat(0, 1)),
            group(3, histogram, stat(0, 5), stat(1, 6), stat(2, 7), stat(3, 8)),
        ]
    )


def fec_reply(bins=True):
    """ETHTOOL_MSG_FEC_GET_REPLY: header 1, modes 2, auto 3, active 4, stats 5 (histogram 5)."""

    def one(low, high, value, *lanes):
        # nla_put_uint: 4 bytes when the number fits.
        count = u32(4, value) if value < 1 << 32 else u64(4, value)
        return nest(5, u32(2, low), u32(3, high), count, u64(5, *lanes))

    histogram = [one(0, 0, 9 << 32, 9 << 31, 9 << 31), one(1, 3, 120, 70, 50), one(4, 15, 2, 2, 0)]
    modes = nest(2, attribute(1, b""), u32(2, 121), attribute(4, bytes(16)))
    return b"".join(
        [
            header(1),
            modes,
            attribute(3, b"\1"),
            u32(4, 50),
            nest(5, u64(2, 122, 72, 50), u64(3, 1), u64(4), *(histogram if bins else [])),
        ]
    )


def pause_reply():
    """ETHTOOL_MSG_PAUSE_GET_REPLY: header 1, autoneg 2, rx 3, tx 4, stats 5 (tx 2, rx 3)."""
    on = [attribute(kind, b"\1") for kind in (2, 3, 4)]
    return b"".join([header(1), *on, nest(5, u64(2, 14), u64(3, 15234))])


def rdma_reply(counters, name=b"mlx5_0\0"):
    """RDMA_NLDEV_CMD_STAT_GET: index 1, name 2, port 3, table 80, entries 81 (82, 83)."""
    entries = [
        nest(81, attribute(82, key.encode() + b"\0"), u64(83, value))
        for key, value in counters.items()
    ]
    return u32(1, 0) + attribute(2, name) + u32(3, 1) + nest(80, *entries)


def gstrings(names):
    return b"".join(name.encode().ljust(32, b"\0")[:32] for name in names)


def gstats(values):
    return struct.pack(f"={len(values)}Q", *values)
