"""Makes and reads probe packets, for tests and benchmarks; see `fabricd.probes.wire`."""

from __future__ import annotations

from fabricd.probes.layout import WIRE_MAGIC, WIRE_SIZE, WIRE_VERSION
from fabricd.probes.wire import BODY, FIELDS, Endpoint, tag


def encode(fields: dict[str, int], key: bytes, source: Endpoint, destination: Endpoint) -> bytes:
    """A whole packet; fields left out are 0, but magic, version and size are right ones."""
    values = {"magic": WIRE_MAGIC, "version": WIRE_VERSION, "size": WIRE_SIZE, **fields}
    body = BODY.pack(*(values.get(name, 0) for name, _ in FIELDS))
    return body + tag(key, body, source, destination)


def decode(packet: bytes) -> dict[str, int]:
    """All fields of a packet of the right length; says nothing about its tag. Else ValueError."""
    if len(packet) != WIRE_SIZE:
        raise ValueError(f"{len(packet)} bytes, not {WIRE_SIZE}")
    values = BODY.unpack_from(packet)
    return {name: value for (name, _), value in zip(FIELDS, values, strict=True)}
