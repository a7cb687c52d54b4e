"""Layout of the ring file, the twin of ``prober/include/fabric/ring.h``; little-endian.

``tests/unit/fabricd/probes/test_ring_layout.py`` compares every size, offset and constant with what
the C++ side prints. The rules of the shared memory are in the header's first lines.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

RING_MAGIC: Final = 0x474E5246
RING_VERSION: Final = 4
HEADER_SIZE: Final = 4096
MAX_LINKS: Final = 64
MAX_PATHS: Final = 1024
EVENT_SLOTS: Final = 8192
SAMPLE_SLOTS: Final = 16384
NONE: Final = 0xFFFF

KIND_CARRIER: Final = 1
KIND_MISS: Final = 2
KIND_HEARD: Final = 3
KIND_STALL: Final = 4
KIND_PEER_RESTART: Final = 5
KIND_RDMA_PORT: Final = 6

FLAG_INCONCLUSIVE: Final = 1 << 0
FLAG_TX: Final = 1 << 1
FLAG_FIRST: Final = 1 << 2
FLAG_PEER_STALLED: Final = 1 << 3
FLAG_CARRIER: Final = 1 << 4
FLAG_INITIAL: Final = 1 << 5
FLAG_GONE: Final = 1 << 6
FLAG_RETURNED: Final = 1 << 7

SAMPLE_HAS_OUT: Final = 1 << 0
SAMPLE_HAS_BACK: Final = 1 << 1
SAMPLE_HW_LOCAL: Final = 1 << 2
SAMPLE_HW_PEER: Final = 1 << 3
SAMPLE_OUT_TRAIN_SHIFT: Final = 8
SAMPLE_BACK_TRAIN_SHIFT: Final = 10

REFUSALS: Final = 7

HEADER_RUNNING: Final = 1 << 0
HEADER_REALTIME: Final = 1 << 1
HEADER_LOCKED: Final = 1 << 2
HEADER_SYNCHRONIZED: Final = 1 << 3

LINK_PRESENT: Final = 1 << 0
LINK_BOUND: Final = 1 << 1
LINK_CARRIER: Final = 1 << 2
LINK_HW_STAMPS: Final = 1 << 3
LINK_RDMA: Final = 1 << 4
LINK_SOURCE_SHIFT: Final = 8

PATH_CLOCK: Final = 1 << 0
PATH_ESTABLISHED: Final = 1 << 1
PATH_GONE: Final = 1 << 2
PATH_BY_DUE_TIME: Final = 1 << 3
PATH_PORT_REFUSED: Final = 1 << 4
PATH_RDMA: Final = 1 << 5
PATH_PEER_RDMA: Final = 1 << 6
PATH_PEER_MOVES_SHIFT: Final = 8
PATH_PORT_SHIFT: Final = 16

WIRE_MAGIC: Final = 0x42525046
WIRE_VERSION: Final = 1
WIRE_SIZE: Final = 192


@dataclass(frozen=True, slots=True)
class Field:
    """One member: ``code`` is that of ``struct``."""

    name: str
    offset: int
    code: str

    @property
    def size(self) -> int:
        """Bytes."""
        return struct.calcsize("<" + self.code)


class Record:
    """A C struct without padding: fields in order, each at the end of the one before."""

    def __init__(self, name: str, members: str) -> None:
        """``members`` is a list like ``"magic:I version:H value:4Q"``."""
        self.name = name
        self.fields: list[Field] = []
        offset = 0
        for member in members.split():
            label, code = member.split(":")
            field = Field(label, offset, code)
            self.fields.append(field)
            offset += field.size
        self.size = offset
        self.struct = struct.Struct("<" + "".join(f.code for f in self.fields))
        self._offsets = {f.name: f.offset for f in self.fields}

    def offset(self, name: str) -> int:
        """Where a member lies."""
        return self._offsets[name]

    def only(self, *names: str) -> struct.Struct:
        """What unpacks these members, in the order of the record, and skips the rest."""
        codes = (f.code if f.name in names else f"{f.size}x" for f in self.fields)
        return struct.Struct("<" + "".join(codes))


RING_HEADER: Final = Record(
    "RingHeader",
    "magic:I version:H header_size:H file_size:Q link_row_size:I path_row_size:I max_links:I "
    "max_paths:I event_slots:I sample_slots:I path_offset:Q event_offset:Q sample_offset:Q pid:I "
    "flags:I incarnation:Q start_ns:Q heartbeat_ns:Q event_head:Q sample_head:Q config_epoch:I "
    "link_count:I path_count:I misses:I link_interval_ns:Q clock_train_hz:I due_times_refused:I "
    "sent:Q received:Q stalls:Q stall_ns:Q stall_max_ns:Q control_errors:Q refused:7Q "
    "clock_read_ns:Q rdma_link_count:I rdma_path_count:I",
)
LINK_ROW: Final = Record(
    "LinkRow",
    "seq:Q netdev:16s address:16s port:H bind_errno:H flags:I ifindex:I phc:I "
    "carrier_down_count:Q carrier_up_count:Q last_change_ns:Q downs:Q read_ns:Q last_heard_ns:Q "
    "sent:Q received:Q send_errors:Q",
)
PATH_ROW: Final = Record(
    "PathRow",
    "seq:Q address:16s port:H link:H flags:I host_id:I awake_us:I interval_ns:Q "
    "peer_interval_ns:Q sent:Q received:Q rx_lost:Q tx_lost:Q duplicates:Q restarts:Q rx_missed:I "
    "tx_missed:I rtt_last_ns:Q rtt_min_ns:Q rtt_smoothed_ns:Q last_heard_ns:Q peer_incarnation:Q "
    "rx_bitmap:Q tx_bitmap:Q acked_ns:Q said_ns:Q due_ns:Q late_ns:Q",
)
EVENT_RECORD: Final = Record(
    "EventRecord",
    "index:Q mono_ns:Q kind:H flags:H link:H path:H count:I config:I value:4Q",
)
SAMPLE_RECORD: Final = Record(
    "SampleRecord",
    "index:Q mono_ns:Q path:H flags:H config:I local_seq:I peer_seq:I t1:q t2:q t3:q t4:q "
    "clock_message:4Q",
)

LINK_OFFSET: Final = HEADER_SIZE
PATH_OFFSET: Final = LINK_OFFSET + MAX_LINKS * LINK_ROW.size
EVENT_OFFSET: Final = PATH_OFFSET + MAX_PATHS * PATH_ROW.size
SAMPLE_OFFSET: Final = EVENT_OFFSET + EVENT_SLOTS * EVENT_RECORD.size
RING_FILE_SIZE: Final = SAMPLE_OFFSET + SAMPLE_SLOTS * SAMPLE_RECORD.size
