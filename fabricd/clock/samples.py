"""The prober's samples as trains of packets, path by path: what `clocksync` fits its lines to.

A sample holds the stamps of one packet of ours that the peer has told about, of one of the peer's
that it has told about, or of both. Each packet is told about once, in its order or nearly so. All
paths' samples are taken apart together: a host has some dozens of paths, and a call of NumPy for
each would take longer than the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocksync.pair.trains import Trains, whole
from fabricd.probes import layout as lay
from fabricd.probes.ring import RingReader

BLOCK = 8192
"""Records read at most; of more, the newest (a third of a second of 24,000 a second, which are 80
paths with 100 trains)."""
_CODES = {"Q": "<u8", "q": "<i8", "I": "<u4", "H": "<u2", "4Q": "V32"}
_FIELDS = lay.SAMPLE_RECORD.fields
RECORD = np.dtype(
    {
        "names": [*(f.name for f in _FIELDS), "kind"],
        "formats": [*(_CODES[f.code] for f in _FIELDS), "u1"],
        "offsets": [*(f.offset for f in _FIELDS), lay.SAMPLE_RECORD.offset("clock_message")],
        "itemsize": lay.SAMPLE_RECORD.size,
    }
)
"""As in the ring, and ``kind``: a message's first byte, 0 without one."""
KINDS = 32
"""Of messages; those from the last of them on, which there are not, pass for one."""
REACH = 256
"""So many packets later one may be told that left earlier."""
HARDWARE = lay.SAMPLE_HW_LOCAL | lay.SAMPLE_HW_PEER
_KINDS = {
    kind: (bool(kind & lay.SAMPLE_HW_LOCAL), bool(kind & lay.SAMPLE_HW_PEER))
    for kind in (0, lay.SAMPLE_HW_LOCAL, lay.SAMPLE_HW_PEER, HARDWARE)
}
_EITHER = lay.SAMPLE_HAS_OUT | lay.SAMPLE_HAS_BACK
_LATER = 2 << lay.SAMPLE_OUT_TRAIN_SHIFT | 2 << lay.SAMPLE_BACK_TRAIN_SHIFT
"""Set of a second or third packet of a train, of one direction or the other."""
_COLUMNS = ("flags", "local_seq", "peer_seq", "t1", "t2", "t3", "t4")
_WAYS = (
    (lay.SAMPLE_HAS_OUT, lay.SAMPLE_OUT_TRAIN_SHIFT, 1, 3, 4),
    (lay.SAMPLE_HAS_BACK, lay.SAMPLE_BACK_TRAIN_SHIFT, 2, 5, 6),
)
"""What says that a packet has this direction's stamps, where its position in the train is, and
which columns are its sequence, sent and heard."""
Packets = NDArray[np.int64]
"""Shape (7, n): packets as ``_COLUMNS`` has them."""
_Rows = NDArray[np.void]
_Places = NDArray[np.intp]


class Exchanged(NamedTuple):
    """Of one path, since the last call."""

    packets: Packets
    """Those that trains are made of (`trains`)."""
    hardware: tuple[bool, bool]
    """Whether stamps are the NIC's: ours, the peer's. Another pair of clocks when it changes."""
    messages: list[bytes]
    """What the peer's clock service told (`clocksync.mesh.messages`): the newest of each kind."""


class SampleReader:
    """Reads what came since the last call, starting with what comes after it was made."""

    def __init__(self, ring: RingReader) -> None:
        self.ring = ring
        self._next = ring.sample_head()
        self._config = -1
        self._wanted = np.zeros(1 << 16, bool)
        """By path: whether it is read."""
        self._stamps = np.full(1 << 16, -1, np.int32)
        """By path: flags of its stamps' kind; -1: not known yet."""

    def want(self, config: int, paths: Iterable[int]) -> None:
        """Read these from now on.

        Args:
            config: configuration epoch of the records: others' path numbers are others'.
            paths: numbers, 0 to 65535.
        """
        if config != self._config:
            self._config = config
            self._stamps[:] = -1
        self._wanted[:] = False
        self._wanted[list(paths)] = True

    def read(self) -> dict[int, Exchanged]:
        """What came by path, of those paths of which anything did.

        Raises:
            RingError: the ring cannot be read.
        """
        head = self.ring.sample_head()
        first = min(max(self._next, head - BLOCK, 0), head)
        self._next = head
        rows = np.frombuffer(self.ring.sample_bytes(first, head - first), RECORD)
        sound = self._wanted[rows["path"]] & (rows["config"] == self._config)
        # Others were overwritten while they were read.
        sound &= rows["index"] == np.arange(first + 1, head + 1)
        chosen = np.flatnonzero(sound)
        return self._apart(rows, chosen) if len(chosen) else {}

    def _apart(self, rows: _Rows, chosen: _Places) -> dict[int, Exchanged]:
        """The chosen rows by path."""
        path = rows["path"][chosen]
        order = path.argsort(kind="stable")
        chosen, path = chosen[order], path[order]
        begins = _begins(path)
        first, place = np.flatnonzero(begins), begins.cumsum() - 1
        flags = rows["flags"][chosen]
        stamps = self._whose(path[first], place, flags)
        # Of single packets and of first ones nothing is made.
        useful = np.flatnonzero((flags & _LATER != 0) & (flags & HARDWARE == stamps[place]))
        at = chosen[useful]
        packets = np.empty((len(_COLUMNS), len(at)), np.int64)
        for name, column in zip(_COLUMNS, packets, strict=True):
            column[:] = rows[name][at]
        ends = place[useful].searchsorted(np.arange(len(first)), "right").tolist()
        kinds = [_KINDS[kind] for kind in stamps.tolist()]
        messages = _messages(rows, chosen, place)
        return {
            number: Exchanged(packets[:, begin:end], kind, said)
            for number, (begin, end), kind, said in zip(
                path[first].tolist(), pairwise((0, *ends)), kinds, messages, strict=True
            )
        }

    def _whose(
        self, paths: NDArray[np.uint16], place: _Places, flags: NDArray[np.uint16]
    ) -> NDArray[np.int32]:
        """Kind of the stamps of each path. A NIC may leave out one now and then: no change."""
        known = self._stamps[paths]
        if not np.count_nonzero(flags & HARDWARE != known[place]):
            return known  # the usual case
        stamped = flags & _EITHER != 0
        place, kinds = place[stamped], flags[stamped] & HARDWARE
        most = np.full(len(paths), -1, np.int32)
        np.maximum.at(most, place, kinds)
        still = most < 0
        still[place[kinds == known[place]]] = True
        kind = np.where(still, known, most)
        self._stamps[paths] = kind
        return np.maximum(kind, 0)


def trains(came: Sequence[Sequence[Packets]]) -> list[tuple[Trains, Trains, Packets]]:
    """The trains of some paths, and what waits for the rest of one.

    Args:
        came: of each path the packets of one reading or of several, the oldest first.

    Returns:
        Of each path: ours (``heard_ns`` is the peer's clock), the peer's (``sent_ns`` is the
        peer's clock), and the newest second packet of each way, if its third may come with the
        next ones: to be handed in with these.
    """
    counts = [sum(part.shape[1] for part in parts) for parts in came]
    none = np.empty((len(_COLUMNS), 0), np.int64)
    packets = np.concatenate([none, *(part for parts in came for part in parts)], axis=1)
    place, flags = np.repeat(np.arange(len(came)), counts), packets[0]
    ways, waiting = [], []
    for has, shift, seq, sent, heard in _WAYS:
        position = flags >> shift & 3
        at = np.flatnonzero((flags & has != 0) & (position >= 2))
        at, number = _in_order(at, place[at], packets[seq, at])
        second = whole(number, position[at])
        pairs = np.stack((at[second], at[second + 1]), axis=1)
        ends = place[pairs[:, 0]].searchsorted(np.arange(len(came)), "right").tolist()
        ways.append([
            Trains(packets[sent, pairs[i:j]], packets[heard, pairs[i:j]])
            for i, j in pairwise((0, *ends))
        ])  # fmt: skip
        last = at[np.roll(_begins(place[at]), -1)]
        last = last[position[last] == 2]
        left = packets[:, last]
        left[0] &= has | 3 << shift
        waiting.append((left, place[last]))
    left, whose = (np.concatenate(each, axis=-1) for each in zip(*waiting, strict=True))
    return [
        (out, back, left[:, whose == number])
        for number, (out, back) in enumerate(zip(*ways, strict=True))
    ]


def _messages(rows: _Rows, chosen: _Places, place: _Places) -> list[list[bytes]]:
    """Of each path the newest of each kind."""
    newest = np.full((place[-1] + 1, KINDS), -1)
    kinds = np.minimum(rows["kind"][chosen], KINDS - 1)
    newest[place, kinds] = chosen  # of like ones the last stays
    newest[:, 0] = -1
    told = newest >= 0
    messages = rows["clock_message"][newest[told]].tolist()
    ends = np.count_nonzero(told, axis=1).cumsum().tolist()
    return [messages[begin:end] for begin, end in pairwise((0, *ends))]


def _in_order(chosen: _Places, place: _Places, seq: Packets) -> tuple[_Places, _Places]:
    """Packets of each path by their sequence, and what to tell by which of them are neighbours.

    Those that were told in another order are near to each other; where a sequence goes back far,
    its prober began anew, and what comes then is later.

    Args:
        chosen: which packets, path after path.
        place: of the path of each.
        seq: the low 32 bits of the sequence of each.

    Returns:
        ``chosen`` in order, and for each a number: that of the next in sequence is one more.
    """
    begins = _begins(place)
    begins[1:] |= (seq[1:] - seq[:-1]).astype(np.int32) < -REACH
    run = begins.cumsum() - 1
    # By the distance from the first: the low 32 bits may begin anew.
    order = (run << 33) + (seq - seq[begins][run]).astype(np.int32)
    if np.count_nonzero(order[1:] < order[:-1]):
        by = order.argsort(kind="stable")
        chosen, order = chosen[by], order[by]
    return chosen, order


def _begins(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Where another number begins."""
    out = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=out[1:])
    return out
