"""Where what lies in a stats page: ``nccl_plugin/pages/stats_page.h`` in Python.

``tests/unit/telemetry/test_stats_layout.py`` compares the two. Little-endian, struct(3) codes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

MAGIC = 0x41545346
VERSION = 2
OLDEST_VERSION = 1
"""Version 1 has neither messages, latencies nor groups."""
PAGE_SIZE = 65536
MAX_RAILS = 32
MAX_EVENTS = 512
MAX_GROUPS = 65
LATENCY_BUCKETS = 28
HEADER_SIZE = 256
RAIL_SIZE = 240
EVENT_SIZE = 32
RAILS_AT = HEADER_SIZE
EVENTS_AT = 8192
LATENCY_AT = 24576
LATENCY_SIZE = 232
GROUPS_AT = 32768
GROUP_SIZE = 352
NO_RAIL = 255

Field = tuple[str, str]
HEADER_FIELDS: tuple[Field, ...] = (
    ("magic", "I"),
    ("version", "H"),
    ("header_size", "H"),
    ("seq", "Q"),
    ("page_size", "I"),
    ("pid", "I"),
    ("start_ns", "Q"),
    ("heartbeat_ns", "Q"),
    ("rail_count", "I"),
    ("send_comms", "I"),
    ("recv_comms", "I"),
    ("reserved0", "I"),
    ("errors", "Q"),
    ("refused_peers", "Q"),
    ("steer_rejected", "Q"),
    ("event_count", "Q"),
    ("steer_present", "I"),
    ("failover", "I"),
    ("job", "64s"),
    ("group_count", "I"),
    ("pid_namespace", "I"),
    ("refused_fenced", "Q"),
    ("reserved", "80s"),
)
RAIL_FIELDS: tuple[Field, ...] = (
    ("netdev", "16s"),
    ("tx_bytes", "Q"),
    ("rx_bytes", "Q"),
    ("tx_chunks", "Q"),
    ("rx_chunks", "Q"),
    ("retransmit_bytes", "Q"),
    ("retransmit_chunks", "Q"),
    ("duplicate_bytes", "Q"),
    ("failovers", "Q"),
    ("rejoins", "Q"),
    ("stalls", "Q"),
    ("stall_ns", "Q"),
    ("in_flight_bytes", "Q"),
    ("live_paths", "I"),
    ("dead_paths", "I"),
    ("tx_messages", "Q"),
    ("rx_messages", "Q"),
    ("reserved", "104s"),
)
LATENCY_FIELDS: tuple[Field, ...] = (("sum_ns", "Q"), ("bucket", f"{LATENCY_BUCKETS}Q"))
GROUP_FIELDS: tuple[Field, ...] = (
    ("address", "16s"),
    ("incarnation", "Q"),
    ("direction", "B"),
    ("reserved0", "3s"),
    ("comms", "I"),
    ("bytes", "Q"),
    ("messages", "Q"),
    ("retransmit_bytes", "Q"),
    ("retransmit_chunks", "Q"),
    ("failovers", "Q"),
    ("stalls", "Q"),
    ("stall_ns", "Q"),
    ("in_flight_bytes", "Q"),
    ("latency", f"{LATENCY_SIZE}s"),
    ("reserved", "24s"),
)
EVENT_FIELDS: tuple[Field, ...] = (
    ("index", "Q"),
    ("time_ns", "Q"),
    ("comm", "Q"),
    ("kind", "H"),
    ("local_rail", "B"),
    ("remote_rail", "B"),
    ("detail", "I"),
)


def codec(fields: Iterable[Field]) -> struct.Struct:
    """What packs and unpacks one struct."""
    return struct.Struct("<" + "".join(code for _, code in fields))


def offsets(fields: tuple[Field, ...]) -> dict[str, int]:
    """Byte offset of each field, for the layout test."""
    return {name: codec(fields[:i]).size for i, (name, _) in enumerate(fields)}
