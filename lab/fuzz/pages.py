"""Damage in files of shared memory: the prober's ring, and the page that asks for source ports.

A ring's file is whole but for what a reader copies out of it; a `RingReader` opens it anew for each
input and reads all there is.
"""

from __future__ import annotations

import mmap
import random
import tempfile
from pathlib import Path

from clocksync.page import latch, ports
from fabricd.probes import layout as lay
from fabricd.probes.ring import RingError, RingReader
from lab.fuzz.parsers import Target, damaged
from lab.inputs.ring_file import event_at, fresh_ring, sample_at

EVENTS, SAMPLES = 6, 3
_REGIONS = (
    (0, lay.RING_HEADER.size),
    (lay.LINK_OFFSET, 2 * lay.LINK_ROW.size),
    (lay.PATH_OFFSET, 2 * lay.PATH_ROW.size),
    (lay.EVENT_OFFSET, EVENTS * lay.EVENT_RECORD.size),
    (lay.SAMPLE_OFFSET, SAMPLES * lay.SAMPLE_RECORD.size),
)
"""Where an input lies in the file, piece by piece."""
_LENGTH = sum(length for _, length in _REGIONS)


def whole() -> bytes:
    """A ring's pieces: two links, two paths, an event of each kind."""
    data = fresh_ring(EVENTS, SAMPLES, links=2, paths=2)
    kinds = (
        lay.KIND_CARRIER, lay.KIND_MISS, lay.KIND_HEARD, lay.KIND_STALL, lay.KIND_PEER_RESTART,
        lay.KIND_MISS,
    )  # fmt: skip
    for number, kind in enumerate(kinds):
        event_at(data, number, mono_ns=100 + number, kind=kind, flags=1, link=1, path=1, count=2)
    for number in range(SAMPLES):
        sample_at(data, number, mono_ns=100 + number, path=1, flags=3, config=1)
    return b"".join(data[at : at + length] for at, length in _REGIONS)


def ring() -> Target:
    """A ring file in memory, and a reader of it for each input."""
    # In memory where there is such a place.
    shm = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(
        prefix="fabric-fuzz-ring-", dir=shm if shm.is_dir() else None
    )
    path, sound = Path(folder.name) / "ring", whole()
    with path.open("w+b") as file:
        file.truncate(lay.RING_FILE_SIZE)
        written = mmap.mmap(file.fileno(), lay.RING_FILE_SIZE)

    def make(rng: random.Random) -> bytes:
        # Cut or grown it would only be a shift of everything; the size of the file is checked.
        return damaged(sound, sound, rng)[:_LENGTH].ljust(_LENGTH, b"\xff")

    def parse(data: bytes) -> bool:
        taken = 0
        for at, length in _REGIONS:
            written[at : at + length] = data[taken : taken + length]
            taken += length
        with RingReader(path, from_start=True) as reader:
            for row in reader.links():
                assert row.index < lay.MAX_LINKS
            for path_row in reader.paths():
                assert path_row.link < lay.MAX_LINKS
            reader.events(64)
            reader.samples(64)
            return reader.corrupt > 0

    def close() -> None:
        written.close()
        folder.cleanup()

    return Target(make, parse, (RingError,), close)


_ASKED = {ports.Ends("10.0.0.1", "10.0.0.2", 9200, 7): 61001,
          ports.Ends("fd00::1", "fd00::2", 9200, 8): 61002}  # fmt: skip


def clock_ports() -> Target:
    """Records of source ports; half of the damaged ones are sealed again."""
    whole = ports.encode(_ASKED)

    def parse(data: bytes) -> None:
        found = ports.decode(data)
        if ports.decode(ports.encode(found)) != found:
            raise AssertionError(found)

    def make(rng: random.Random) -> bytes:
        data = damaged(whole, whole[16:], rng)
        if rng.random() < 0.5:
            return data
        return latch.seal(data[: len(whole)].ljust(len(whole), b"\0"))

    return Target(make, parse, (ports.PortsError,))
