"""The prober's samples as trains of packets, path by path: what `clocksync` fits its lines to.

A sample holds the stamps of one packet of ours that the peer has told about, of one of the peer's
that it has told about, or of both. Each packet is told about once, in its order or nearly so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocksync.trains import Packets
from fabricd.probes import layout as lay
from fabricd.probes.ring import RingReader

BLOCK = 8192
"""Records read at most; of more, the newest (2.5 s of 3,300 a second)."""
RECORD = np.dtype(
    [(f.name, "<" + {"Q": "u8", "q": "i8", "I": "u4", "H": "u2"}[f.code])
     for f in lay.SAMPLE_RECORD.fields]
)  # fmt: skip
HARDWARE = lay.SAMPLE_HW_LOCAL | lay.SAMPLE_HW_PEER
_Rows = NDArray[np.void]


class Exchanged(NamedTuple):
    """Of one path, since the last call."""

    out: Packets
    """Ours; ``heard_ns`` is the peer's clock."""
    back: Packets
    """The peer's; ``sent_ns`` is the peer's clock."""
    hardware: tuple[bool, bool]
    """Whether stamps are the NIC's: ours, the peer's. Another pair of clocks when it changes."""


@dataclass(slots=True)
class _Path:
    hardware: int = 0
    waiting: list[_Rows] = field(default_factory=list)
    """Of each direction: the beginning of a train whose end is to come."""


class TrainReader:
    """Reads what came since the last call, starting with what comes after it was made."""

    def __init__(self, ring: RingReader) -> None:
        self.ring = ring
        self._next = ring.sample_head()
        self._paths: dict[int, _Path] = {}
        self._config = -1

    def read(self, config: int) -> dict[int, Exchanged]:
        """New packets by path; trains are whole.

        Args:
            config: configuration epoch of the records wanted: others' path numbers are others'.

        Raises:
            RingError: the ring cannot be read.
        """
        if config != self._config:
            self._config = config
            self._paths.clear()
        head = self.ring.sample_head()
        first = min(max(self._next, head - BLOCK, 0), head)
        self._next = head
        if first == head:
            return {}
        rows = np.frombuffer(self.ring.sample_bytes(first, head - first), RECORD)
        # Others were overwritten while they were read, or are of another configuration.
        sound = (rows["index"] == np.arange(first + 1, head + 1)) & (rows["config"] == config)
        rows = rows[sound]
        out = {}
        for number in np.unique(rows["path"]).tolist():
            out[number] = self._exchanged(number, rows[rows["path"] == number])
        return out

    def _exchanged(self, number: int, rows: _Rows) -> Exchanged:
        path = self._paths.setdefault(number, _Path())
        hardware = int(rows["flags"][-1]) & HARDWARE
        rows = rows[(rows["flags"] & HARDWARE) == hardware]
        if hardware != path.hardware or not path.waiting:
            path.hardware, path.waiting = hardware, [rows[:0], rows[:0]]
        packets = []
        for way, (has, shift, seq, sent, heard) in enumerate(_WAYS):
            own = np.concatenate((path.waiting[way], rows[(rows["flags"] & has) != 0]))
            # By the distance from the first: the low 32 bits of a sequence may begin anew.
            own = own[np.argsort((own[seq] - own[seq][:1]).astype(np.int32), kind="stable")]
            position = own["flags"] >> shift & 3
            whole = len(own) - _unfinished(position)
            path.waiting[way] = own[whole:]
            own = own[:whole]
            packets.append(
                Packets(
                    own[seq].astype(np.int64), position[:whole].astype(np.int64),
                    own[sent].astype(np.int64), own[heard].astype(np.int64),
                )
            )  # fmt: skip
        kinds = (bool(hardware & lay.SAMPLE_HW_LOCAL), bool(hardware & lay.SAMPLE_HW_PEER))
        return Exchanged(packets[0], packets[1], kinds)


_WAYS = (
    (lay.SAMPLE_HAS_OUT, lay.SAMPLE_OUT_TRAIN_SHIFT, "local_seq", "t1", "t2"),
    (lay.SAMPLE_HAS_BACK, lay.SAMPLE_BACK_TRAIN_SHIFT, "peer_seq", "t3", "t4"),
)


def _unfinished(position: NDArray[np.integer[Any]]) -> int:
    """How many of the last packets begin a train that is not whole: at most two."""
    tail = position[-2:].tolist()
    if tail[-1:] == [1]:
        return 1
    if tail[-1:] == [2]:
        return 2 if tail[:1] == [1] else 1
    return 0
