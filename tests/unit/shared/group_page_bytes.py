"""Stats pages of version 2 with one rail and comm groups, as bytes."""

import struct

from telemetry import statslayout as sl

RAIL = {"netdev": b"rail0", "tx_bytes": 5, "tx_messages": 4, "rx_messages": 3}


def put(page, at, fields, values):
    offsets = sl.offsets(fields)
    for name, code in fields:
        if name in values:
            value = values[name]
            value = value if isinstance(value, tuple) else (value,)
            struct.pack_into("<" + code, page, at + offsets[name], *value)


def latency(sum_ns, **buckets):
    counts = [buckets.get(f"b{i}", 0) for i in range(sl.LATENCY_BUCKETS)]
    return struct.pack(f"<Q{sl.LATENCY_BUCKETS}Q", sum_ns, *counts)


def make(groups=(), version=2, rail_latency=b"", **header):
    """A valid page with one rail."""
    page = bytearray(sl.PAGE_SIZE)
    values = {
        "magic": sl.MAGIC, "version": version, "header_size": sl.HEADER_SIZE, "seq": 2,
        "page_size": sl.PAGE_SIZE, "rail_count": 1, "group_count": len(groups),
    } | header  # fmt: skip
    put(page, 0, sl.HEADER_FIELDS, values)
    put(page, sl.RAILS_AT, sl.RAIL_FIELDS, RAIL)
    page[sl.LATENCY_AT : sl.LATENCY_AT + len(rail_latency)] = rail_latency
    for i, group in enumerate(groups):
        put(page, sl.GROUPS_AT + i * sl.GROUP_SIZE, sl.GROUP_FIELDS, group)
    return bytes(page)
