"""Stats pages of any content, as bytes and as files."""

import struct

from telemetry import statslayout as sl

NOW = 10**15
SECOND = 10**9


def make(pid=100, start_ns=NOW - SECOND, rails=("rail0", "rail1"), events=(), **header):
    """A valid page of the given content, as bytes."""
    values = {
        "magic": sl.MAGIC,
        "version": sl.VERSION,
        "header_size": sl.HEADER_SIZE,
        "seq": 2,
        "page_size": sl.PAGE_SIZE,
        "pid": pid,
        "start_ns": start_ns,
        "heartbeat_ns": NOW,
        "rail_count": len(rails),
        "event_count": len(events),
        "failover": 1,
        "job": b"train",
    } | header
    page = bytearray(sl.PAGE_SIZE)
    put(page, 0, sl.HEADER_FIELDS, values)
    for i, rail in enumerate(rails):
        rail = {"netdev": rail} if isinstance(rail, str) else rail
        rail = rail | {"netdev": rail["netdev"].encode()}
        put(page, sl.RAILS_AT + i * sl.RAIL_SIZE, sl.RAIL_FIELDS, rail)
    for i, event in enumerate(events):
        event = {"index": i + 1, "kind": 1, "local_rail": 0, "remote_rail": 255} | event
        put(page, sl.EVENTS_AT + i % sl.MAX_EVENTS * sl.EVENT_SIZE, sl.EVENT_FIELDS, event)
    return bytes(page)


def put(page, at, fields, values):
    offsets = sl.offsets(fields)
    for name, code in fields:
        default = b"" if code.endswith("s") else 0
        struct.pack_into("<" + code, page, at + offsets[name], values.get(name, default))


def lay(directory, page, pid=100, start_ns=NOW - SECOND):
    directory.mkdir(exist_ok=True)
    path = directory / f"{pid}-{start_ns}.page"
    path.write_bytes(page)
    return path
