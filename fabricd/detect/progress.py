"""Does payload move on a link whose probes are silent? Pure; asked before silence is a verdict.

A queue that a job fills at once is tens of milliseconds deep: for so long no probe comes through,
and when the queue overflows, probes are dropped. To probes alone that is a black hole. The device's
own byte counters tell the two apart: behind a full queue bytes arrive at the link's full rate,
behind a black hole none do. So a verdict waits while the device moves payload in the direction that
is called silent, and stands when it does not, or when the silence has lasted for `LONGEST_NS`.

Received bytes prove that the link receives. Bytes sent prove less: into a black hole TCP sends what
its windows allow and no more. And what the peers do not hear of us they report through queues of
their own, so the bytes that explain it may have left a while ago. So the wait for those is shorter,
and goes on for `RECENT_NS` after the last of them.

A path alone waits no longer than that in either direction, where another peer is heard on the link
without a queue: what arrives may be of that peer, and the full queue at most one of the silent
peer's own port, whose host waits as long for its sent bytes.

Of a link that moves nothing, no verdict waits. RDMA payload is not in a netdev's byte counters:
there the queueing delay of the probes (`PathView.queue_ns`) is the evidence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fabricd.probes.records import Direction

RX, TX = Direction.RX, Direction.TX
LONGEST_NS: Mapping[Direction, int] = {RX: 1_000_000_000, TX: 200_000_000}
"""A silence that lasts longer is a verdict, whatever the device counts."""
ALONE_NS = LONGEST_NS[TX]
"""The same of a path where the link's own queue is known to be short."""
RECENT_NS: Mapping[Direction, int] = {RX: 0, TX: 100_000_000}
"""What moved so long ago explains a silence, too."""
LEAST_BYTES = 16 << 10
LEAST_RATE = 250_000
"""Bytes a second: a link's own probes are a third of that at most, and a filled link moves more."""
BASELINE_NS = 400_000_000
"""All links' bytes are noted so often at least: what a link moved before its silence is known."""
MOST_TEXT = 1 << 20
MOST_NOTES = 8
"""Of a link: two within each of the last four link intervals."""


class NetdevError(ValueError):
    """Not the contents of ``/proc/net/dev``."""


class ByteCounts(NamedTuple):
    """Cumulative bytes of one netdev."""

    rx: int
    tx: int


class Reading(NamedTuple):
    """All netdevs at one moment."""

    read_ns: int
    """CLOCK_MONOTONIC."""
    counts: Mapping[str, ByteCounts]


class Answer(NamedTuple):
    """Whether a verdict has to wait, and what is to be said of the payload; "": nothing."""

    wait: bool
    why: str = ""


def parse(data: bytes, names: Sequence[str]) -> dict[str, ByteCounts]:
    """The byte counters of some netdevs in ``/proc/net/dev`` (Linux net/core/net-procfs.c).

    Args:
        data: the whole file: two lines of header, then ``name: rx_bytes … (8) tx_bytes … (8)``.
        names: the netdevs to look for; one that is not there is left out.

    Raises:
        NetdevError: it is another file.
    """
    if not data.startswith(b"Inter-|") or len(data) > MOST_TEXT:
        raise NetdevError(f"/proc/net/dev: not understood: {data[:40]!r}")
    wanted = {name.encode(): name for name in names}
    out = {}
    for line in data.split(b"\n")[2:]:
        name, colon, numbers = line.partition(b": ")
        if not colon:
            name, colon, numbers = line.partition(b":")
        key = wanted.get(name.strip())
        if key is None or not colon:
            continue
        columns = numbers.split()
        if len(columns) < 9 or not (columns[0].isdigit() and columns[8].isdigit()):
            raise NetdevError(f"/proc/net/dev: not understood: {line[:40]!r}")
        out[key] = ByteCounts(int(columns[0]), int(columns[8]))
    return out


@dataclass(slots=True)
class _Wait:
    """One silence that is about to be a verdict, or is one."""

    since_ns: int
    over: bool = False
    why: str = ""


@dataclass(slots=True)
class ByteProgress:
    """What verdicts of silence wait for on a filled link.

    Attributes:
        read: reads the counters; gives None where there is no source, and then nothing waits.
        names: netdevs by link index.
        held: verdicts that had to wait, since the start.
        again_ns: when those that wait now want to be asked again; None: none does.
    """

    read: Callable[[], Reading | None] = lambda: None
    names: Sequence[str] = ()
    held: int = 0
    again_ns: int | None = None
    _reading: Reading | None = None
    _fresh: bool = False
    _notes: dict[str, deque[tuple[int, ByteCounts]]] = field(default_factory=dict)
    _moved_ns: dict[tuple[str, Direction], int] = field(default_factory=dict)
    """When a link was last found to have moved payload."""
    _waits: dict[Hashable, _Wait] = field(default_factory=dict)
    _asked: set[Hashable] = field(default_factory=set)

    def configure(self, names: Sequence[str]) -> None:
        """The links by index; what waits begins anew."""
        self.names = tuple(names)
        self._notes = {n: s for n, s in self._notes.items() if n in self.names}
        self.reset()

    def reset(self) -> None:
        """The silences have other names from now on."""
        self._waits.clear()

    def begin(self, now: int) -> None:
        """All silences are looked at; until `end` each one that is there is asked about.

        Args:
            now: CLOCK_MONOTONIC ns.
        """
        self._asked.clear()
        self._fresh, self.again_ns = False, None
        if self._reading is None or now - self._reading.read_ns >= BASELINE_NS:
            self._take(0)

    def note(self, interval_ns: int) -> None:
        """Packets are missing somewhere: what each link has moved by now is noted.

        Args:
            interval_ns: the link interval.
        """
        if not self._fresh:
            self._take(interval_ns // 2)

    def end(self) -> None:
        """Forget the silences that are none any more."""
        for key in self._waits.keys() - self._asked:
            del self._waits[key]

    def keep(self, silence: Hashable, way: Direction) -> None:
        """A silence that is there though nothing asks about it now: its wait goes on."""
        self._asked.add((silence, way))

    def flowing(self, link: int, way: Direction, interval_ns: int) -> bool | None:
        """Whether the link moves payload now; None: a link interval later it will be known."""
        self.note(interval_ns)
        reading = self._reading
        name = self.names[link] if link < len(self.names) else ""
        if reading is None or name not in reading.counts:
            return False
        now, count = reading.read_ns, reading.counts[name][way]
        moved_ns = self._moved_ns.get((name, way))
        if moved_ns is not None and now - moved_ns < RECENT_NS[way]:
            return True
        before: bool | None = None
        """By the newest note that is too old to tell of now alone."""
        for at, counts in self._notes.get(name, ()):
            age = now - at
            if interval_ns <= age <= 3 * interval_ns:
                return _enough(count - counts[way], age)
            if age > 3 * interval_ns:
                before = _enough(count - counts[way], age)
        # Not noted at the right moment. What moved nothing for longer does not move now.
        return None if before else False

    def ask(
        self,
        silence: Hashable,
        link: int,
        way: Direction,
        interval_ns: int,
        longest_ns: int | None = None,
    ) -> Answer:
        """Whether a silence that would be a verdict now has to wait.

        Args:
            silence: which.
            link: index of the link that it is on.
            way: RX: we hear nothing; TX: we are not heard.
            interval_ns: the link interval.
            longest_ns: a silence that waited for so long is a verdict; None: as `LONGEST_NS` says.
        """
        key = (silence, way)
        longest = LONGEST_NS[way] if longest_ns is None else longest_ns
        self._asked.add(key)
        wait = self._waits.get(key)
        if wait is not None and wait.over:
            return Answer(wait=False, why=wait.why)
        flows = self.flowing(link, way, interval_ns)
        now = self._reading.read_ns if self._reading is not None else 0
        if wait is None:
            wait = self._waits[key] = _Wait(now)
            self.held += flows is not False
        lasted = now - wait.since_ns >= longest
        if flows is False or lasted:
            wait.over = True
            if flows:
                moves = "arrive" if way is RX else "leave"
                wait.why = f"though bytes {moves} for {longest / 1e9:g} s"
            return Answer(wait=False, why=wait.why)
        again = now + interval_ns // 2
        self.again_ns = again if self.again_ns is None else min(again, self.again_ns)
        return Answer(wait=True, why="payload arrives" if way is RX else "payload leaves")

    def _take(self, spacing_ns: int) -> None:
        self._fresh = True
        self._reading = reading = self.read()
        if reading is None:
            return
        for name in self.names:
            counts = reading.counts.get(name)
            if counts is None:
                self._notes.pop(name, None)
                continue
            notes = self._notes.setdefault(name, deque(maxlen=MOST_NOTES))
            if notes and (counts.rx < notes[-1][1].rx or counts.tx < notes[-1][1].tx):
                notes.clear()  # another device of that name
            if notes and reading.read_ns - notes[-1][0] < spacing_ns:
                continue
            # The note before the last one: payload may come in few, large packets.
            for at, before in list(notes)[-2:-1] or list(notes):
                for way in Direction:
                    if _enough(counts[way] - before[way], reading.read_ns - at):
                        self._moved_ns[name, way] = reading.read_ns
            notes.append((reading.read_ns, counts))


def _enough(moved: int, age_ns: int) -> bool:
    """Whether so many bytes in so much time are payload, and not a link's own probes."""
    return moved >= max(LEAST_BYTES, LEAST_RATE * age_ns // 10**9)
