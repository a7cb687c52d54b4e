"""A prober's ring as a file's bytes, for tests and the fuzzer of its reader."""

from __future__ import annotations

import struct

from fabricd.probes import layout as lay

_MAPPED = bytes(10) + b"\xff\xff\x0a\0\0"


def put(data: bytearray, record: lay.Record, at: int, **values: object) -> None:
    """Write the named members of a record; the others stay."""
    fields = {field.name: field for field in record.fields}
    for name, value in values.items():
        raw = value if isinstance(value, tuple) else (value,)
        struct.pack_into("<" + fields[name].code, data, at + fields[name].offset, *raw)


def fresh_ring(events: int = 0, samples: int = 0, *, links: int = 1, paths: int = 1) -> bytearray:
    """A whole ring as a prober leaves it; of events and samples only the heads are written."""
    data = bytearray(lay.RING_FILE_SIZE)
    put(
        data, lay.RING_HEADER, 0,
        magic=lay.RING_MAGIC, version=lay.RING_VERSION, header_size=lay.HEADER_SIZE,
        file_size=lay.RING_FILE_SIZE, link_row_size=lay.LINK_ROW.size,
        path_row_size=lay.PATH_ROW.size, max_links=lay.MAX_LINKS, max_paths=lay.MAX_PATHS,
        event_slots=lay.EVENT_SLOTS, sample_slots=lay.SAMPLE_SLOTS, path_offset=lay.PATH_OFFSET,
        event_offset=lay.EVENT_OFFSET, sample_offset=lay.SAMPLE_OFFSET, pid=42, flags=3,
        incarnation=99, start_ns=5, heartbeat_ns=6, event_head=events, sample_head=samples,
        config_epoch=1, link_count=links, path_count=paths, misses=3,
        link_interval_ns=10_000_000, clock_train_hz=100, refused=(1, 2, 3, 4, 5, 6, 7),
    )  # fmt: skip
    for index in range(links):
        put(
            data, lay.LINK_ROW, lay.LINK_OFFSET + index * lay.LINK_ROW.size,
            seq=2, netdev=b"rail%d" % index, address=_MAPPED + bytes([1 + index]), port=9200,
            flags=0b111 | 1 << lay.LINK_SOURCE_SHIFT, ifindex=7 + index, carrier_down_count=3,
            downs=2,
        )  # fmt: skip
    for index in range(paths):
        put(
            data, lay.PATH_ROW, lay.PATH_OFFSET + index * lay.PATH_ROW.size,
            seq=4, address=b"\xfd" + bytes(14) + b"\2", port=9200, link=index % links, flags=3,
            host_id=8, interval_ns=10, rx_bitmap=2**64 - 1,
        )  # fmt: skip
    return data


def event_at(data: bytearray, number: int, **values: object) -> None:
    """Write the event of that number."""
    at = lay.EVENT_OFFSET + (number % lay.EVENT_SLOTS) * lay.EVENT_RECORD.size
    put(data, lay.EVENT_RECORD, at, index=number + 1, config=1, **values)


def sample_at(data: bytearray, number: int, **values: object) -> None:
    """Write the sample of that number."""
    at = lay.SAMPLE_OFFSET + (number % lay.SAMPLE_SLOTS) * lay.SAMPLE_RECORD.size
    put(data, lay.SAMPLE_RECORD, at, index=number + 1, **values)
