"""The prober's samples as trains of packets, path by path: what `clocksync` fits its lines to.

A sample holds the stamps of one packet of ours that the peer has told about, of one of the peer's
that it has told about, or of both. Each packet is told about once, in its order or nearly so. All
paths' samples are taken apart together: a host has some dozens of paths, and a call of NumPy for
each would take longer than the work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocksync.trains import Trains, whole
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
        "offsets": [*(f.offset for f in _FIELDS), lay.SAMPLE_RECORD.offset("word")],
        "itemsize": lay.SAMPLE_RECORD.size,
    }
)
"""As in the ring, and ``kind``: a word's first byte, 0 without one."""
HARDWARE = lay.SAMPLE_HW_LOCAL | lay.SAMPLE_HW_PEER
_Rows = NDArray[np.void]
_Places = NDArray[np.intp]


class Exchanged(NamedTuple):
    """Of one path, since the last call."""

    out: Trains
    """Ours; ``heard_ns`` is the peer's clock."""
    back: Trains
    """The peer's; ``sent_ns`` is the peer's clock."""
    hardware: tuple[bool, bool]
    """Whether stamps are the NIC's: ours, the peer's. Another pair of clocks when it changes."""
    words: list[bytes]
    """What the peer's clock service told (`clocksync.words`): the newest of each kind."""


class TrainReader:
    """Reads what came since the last call, starting with what comes after it was made."""

    def __init__(self, ring: RingReader) -> None:
        self.ring = ring
        self._next = ring.sample_head()
        self._config = -1
        self._wanted = np.zeros(1 << 16, bool)
        """By path: whether it is read."""
        self._waiting = b""
        """Records of second packets whose third is to come."""
        self._stamps = np.full(1 << 16, -1, np.int32)
        """By path: flags of its stamps' kind; -1: not known yet."""

    def want(self, config: int, paths: Iterable[int]) -> None:
        """Read these from now on.

        Args:
            config: configuration epoch of the records: others' path numbers are others'.
            paths: numbers, 0 to 65535.
        """
        if config != self._config:
            self._config, self._waiting = config, b""
            self._stamps[:] = -1
        self._wanted[:] = False
        self._wanted[list(paths)] = True

    def read(self) -> dict[int, Exchanged]:
        """New trains by path, of those paths of which anything came; trains are whole.

        Raises:
            RingError: the ring cannot be read.
        """
        head = self.ring.sample_head()
        first = min(max(self._next, head - BLOCK, 0), head)
        self._next = head
        if first == head:
            return {}
        data = self._waiting + self.ring.sample_bytes(first, head - first)
        rows = np.frombuffer(data, RECORD)
        early = len(rows) - (head - first)
        path = rows["path"]
        sound = self._wanted[path] & (rows["config"] == self._config)
        # Others were overwritten while they were read.
        sound[early:] &= rows["index"][early:] == np.arange(first + 1, head + 1)
        if early:
            came = np.zeros(len(self._wanted), bool)
            came[path[early:][sound[early:]]] = True
            still = ~came[path[:early]]
            sound[:early] &= ~still
            self._waiting = rows[:early][still].tobytes()
        chosen = np.flatnonzero(sound)
        return self._apart(rows, chosen, early) if len(chosen) else {}

    def _apart(self, rows: _Rows, chosen: _Places, early: int) -> dict[int, Exchanged]:
        """Those of the chosen rows by path; the first ``early`` rows were waiting."""
        path = rows["path"][chosen]
        order = path.argsort(kind="stable")
        chosen, path = chosen[order], path[order]
        begins = _begins(path)
        first = np.flatnonzero(begins)
        place = begins.cumsum() - 1
        flags = rows["flags"][chosen]
        fresh = chosen >= early
        stamps = self._whose(path[first], place[fresh], flags[fresh])
        sound = flags & HARDWARE == stamps[place]
        ways = []
        for has, shift, seq, sent, heard in _WAYS:
            position = flags >> shift & 3
            # Of single packets and of first ones nothing is made.
            at = np.flatnonzero(sound & (flags & has != 0) & (position >= 2))
            at, number = _in_order(at, place[at], rows[seq][chosen[at]])
            second = whole(number, position[at])
            pairs = np.stack((at[second], at[second + 1]), axis=1)
            ends = place[pairs[:, 0]].searchsorted(np.arange(len(first)), "right").tolist()
            trains = chosen[pairs]
            ways.append((rows[sent][trains], rows[heard][trains], ends))
            # The newest of a path, whose third may come with the next samples.
            last = at[np.roll(_begins(place[at]), -1)]
            if len(last := last[position[last] == 2]):
                waiting = rows[chosen[last]]
                waiting["flags"] &= has | 3 << shift | HARDWARE
                self._waiting += waiting.tobytes()
        paths = path[first].tolist()
        out, back = (
            [Trains(left[i:j], came[i:j]) for i, j in zip([0, *ends], ends, strict=False)]
            for left, came, ends in ways
        )
        kinds = [
            (bool(kind & lay.SAMPLE_HW_LOCAL), bool(kind & lay.SAMPLE_HW_PEER))
            for kind in stamps.tolist()
        ]
        words = _words(rows, chosen, place, early)
        return dict(zip(paths, map(Exchanged, out, back, kinds, words), strict=True))

    def _whose(
        self, paths: NDArray[np.uint16], place: _Places, flags: NDArray[np.uint16]
    ) -> NDArray[np.int32]:
        """Kind of the stamps of each path. A NIC may leave out one now and then: no change."""
        stamped = flags & (lay.SAMPLE_HAS_OUT | lay.SAMPLE_HAS_BACK) != 0
        place, kinds = place[stamped], flags[stamped] & HARDWARE
        known = self._stamps[paths]
        most = np.full(len(paths), -1, np.int32)
        np.maximum.at(most, place, kinds)
        still = most < 0
        still[place[kinds == known[place]]] = True
        kind = np.where(still, known, most)
        self._stamps[paths] = kind
        return np.maximum(kind, 0)


_WAYS = (
    (lay.SAMPLE_HAS_OUT, lay.SAMPLE_OUT_TRAIN_SHIFT, "local_seq", "t1", "t2"),
    (lay.SAMPLE_HAS_BACK, lay.SAMPLE_BACK_TRAIN_SHIFT, "peer_seq", "t3", "t4"),
)


def _words(rows: _Rows, chosen: _Places, place: _Places, early: int) -> list[list[bytes]]:
    """Of each path the newest of each kind; what was waiting has been heard."""
    kinds = np.where(chosen < early, 0, rows["kind"][chosen])
    newest = np.full((place[-1] + 1, 256), -1)
    newest[place, kinds] = chosen  # of like ones the last stays
    newest[:, 0] = -1
    of, kind = np.nonzero(newest >= 0)
    out: list[list[bytes]] = [[] for _ in newest]
    for at, word in zip(of.tolist(), rows["word"][newest[of, kind]].tolist(), strict=True):
        out[at].append(word)
    return out


def _in_order(chosen: _Places, place: _Places, seq: NDArray[np.uint32]) -> tuple[_Places, _Places]:
    """Packets of each path by their sequence, and what to tell by which of them are neighbours.

    Args:
        chosen: which packets, path after path.
        place: of the path of each.
        seq: the low 32 bits of the sequence of each.

    Returns:
        ``chosen`` in order, and for each a number: that of the next in sequence is one more.
    """
    begins = _begins(place)
    base = seq[begins][begins.cumsum() - 1]
    # By the distance from the first: the low 32 bits may begin anew.
    order = (place << 33) + (seq - base).astype(np.int32)
    if np.count_nonzero(order[1:] < order[:-1]):
        by = order.argsort(kind="stable")
        chosen, order = chosen[by], order[by]
    return chosen, order


def _begins(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Where another number begins."""
    out = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=out[1:])
    return out
