"""The prober's paths with trains, and what came over them: the clock service's side of the ring."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

from clocksync.mesh.ecmp_rerouter import PortStatus, path_mark
from clocksync.mesh.election import fallen_silent
from clocksync.mesh.messages import Phc, link_id
from clocksync.page.ports import Ends
from clocksync.pair.estimator import PairEstimator
from clocksync.pair.model import SECOND, Rules
from fabricd.clock.samples import Exchanged, Packets, SampleReader
from fabricd.probes.records import PathRow
from fabricd.probes.ring import RingError, RingReader

ROWS_NS = SECOND
"""Between two looks at where the paths lead."""
RETURN_NS = 4 * SECOND
"""A path over RDMA is kept for so long after its trains went back to UDP: the path over UDP may
have no line yet, and its first one takes a second."""
MISSES = 3
NEXT_LOOK_NS = 45_000_000
LEAST_SILENCE_NS = 100_000_000
"""The reference is lost when nothing has come from it for three of its intervals (trains are far
more frequent), which is to be noticed by then: at the last look before, of three a step. Ten trains
that did not come are the least that says something."""


class PathKey(NamedTuple):
    """A path, whatever its index."""

    netdev: str
    address: str
    port: int
    host: int


@dataclass(slots=True, eq=False)
class ClockPath:
    """A path with trains, and what they say of its two clocks."""

    number: int
    """In the mesh; stays when the index changes."""
    key: PathKey
    incarnation: int = 0
    estimator: PairEstimator = field(default_factory=PairEstimator)
    came: list[Packets] = field(default_factory=list)
    """What it is still to be fed, the oldest first (`fabricd.clock.samples.trains`)."""
    hardware: tuple[bool, bool] = (False, False)
    """Whether stamps are the NIC's: ours, the peer's."""
    link: int = 0
    """In the ring, now."""
    address: str = ""
    """Ours."""
    phc: int | None = None
    """The clock of our NIC, /dev/ptp<n>."""
    theirs: Phc | None = None
    """What the peer told of its NIC's clock."""
    generation: tuple[int | None, int | None] = (None, None)
    """Of the two NICs' crossings, as of which the estimator was fed."""
    deaf_ns: int = 0
    """Until then what comes may be of before one of them was set, or another way; our clock."""
    fit_ns: int = 0
    """When it is due, our clock."""
    crossed_ns: int = 0
    """When what its stamps' line crosses (`clocksync.pair.crossing`) was last all there, our
    clock."""
    own: tuple[str, int] = ("", 0)
    """Address and port of our link."""
    taken: PortStatus = field(default_factory=lambda: PortStatus(0, refused=False))
    """From where the prober sends."""
    peer_moves: int = 0
    rdma: bool = False
    """Over RDMA: it has trains while UDP is broken beside it."""
    beside: ClockPath | None = None
    """The same path over the other transport. It lies between the same two clocks, so that a
    message over either holds for the lines of both."""
    trains_ns: int = 0
    """When it last was seen with trains, our clock."""
    told: bool = False
    """That it is shorter than it can be: logged once, however often that is found anew."""

    def reset(self) -> None:
        """One of the two clocks is another, or a way: nothing that came before is of use."""
        self.estimator.reset()
        self.came.clear()

    def anew(self) -> None:
        """This host's clock is another: what is due is due now."""
        self.reset()
        self.fit_ns = self.crossed_ns = self.deaf_ns = 0

    def outlasts_trains(self, incarnation: int, now_ns: int) -> bool:
        """Whether the path is kept although it carries no trains now.

        Args:
            incarnation: of the peer's prober now; 0: not known.
            now_ns: our clock.
        """
        same = incarnation in (0, self.incarnation)
        return self.rdma and same and 0 <= now_ns - self.trains_ns < RETURN_NS

    def hear(self, message: Phc) -> None:
        """The peer told of a NIC's clock: if it is that of this path."""
        if message.link == link_id(self.key.address):
            self.theirs = message

    @property
    def mark(self) -> int:
        """The same at both ends."""
        return path_mark(self.own, (self.key.address, self.key.port))

    @property
    def ends(self) -> Ends:
        """As the page of source ports has it."""
        return Ends(self.own[0], self.key.address, self.key.port, self.key.host)


class PathTable:
    """Reads the ring, whatever becomes of it: a prober that comes, goes, or is configured anew."""

    def __init__(
        self, run_dir: Path, void: Callable[[ClockPath], None],
        rerouted: Callable[[ClockPath], None], rules: Rules | None = None,
    ) -> None:  # fmt: skip
        """A table without paths.

        Args:
            run_dir: the host's.
            void: told of a path that is another now, or whose peer began a new life.
            rerouted: told of one of whose ends another source port is used now.
            rules: of the paths' estimators.
        """
        self.by_index: dict[int, ClockPath] = {}
        """As the ring numbers them now."""
        self.silence_ns = SECOND
        """A peer of which nothing came for so long is silent."""
        self.lost_ns = SECOND
        """So long after it fell silent that is to be known."""
        self._file = run_dir / "prober" / "ring"
        self._void, self._rerouted = void, rerouted
        self._rules = rules or Rules()
        self._known: dict[PathKey, ClockPath] = {}
        self._numbers = itertools.count()
        self._ring: RingReader | None = None
        self._samples: SampleReader | None = None
        self._config = 0
        self._rdma: dict[int, list[int]] = {}
        """By host, its paths over RDMA in the ring: with trains or without, they say that it
        lives."""
        self._looked_ns: int | None = None
        self.clock_read_ns = 0
        """Of the prober (`fabricd.probes.records.RingHeader`), as it last said it: what it stamped
        before it restarted is used for a while."""
        self._bare: tuple[int, int] | None = None
        """A configuration without paths, and since when that is so; our clock."""
        self._log = structlog.get_logger()

    def all(self) -> list[ClockPath]:
        """Those of the present configuration, and of the last one while there is none."""
        return list(self._known.values())

    def read(self, now_ns: int) -> Mapping[int, Exchanged]:
        """What came since the last call, by index in the ring; ``now_ns``: our clock."""
        try:
            if self._ring is None or self._ring.replaced():
                self._open()
            if self._ring is None or self._samples is None:
                return {}
            header = self._ring.header()
            self.clock_read_ns = header.clock_read_ns or self.clock_read_ns
            due = self._looked_ns is None or abs(now_ns - self._looked_ns) >= ROWS_NS
            due = due or self._turned(self._ring)
            if header.config_epoch != self._config or due:
                self._looked_ns = now_ns
                self._look(self._ring, header.config_epoch, now_ns)
                self._samples.want(self._config, self.by_index)
            return self._samples.read()
        except RingError as error:
            self._log.warning("no ring", reason=str(error))
            self.close()
            return {}

    def silent(self, host: int, now_ns: int) -> int | None:
        """For how long nothing has come from a host on any path, while something did from others.

        Args:
            host: which.
            now_ns: CLOCK_MONOTONIC.

        Returns:
            None: it is not silent, or that is not known.
        """
        own = [index for index, path in self.by_index.items() if path.key.host == host]
        if not own or self._ring is None:
            return None
        own = list({*own, *self._rdma.get(host, ())})
        try:
            heard = []
            for index in own:
                heard.append(self._ring.last_heard_ns(index))
                if now_ns - heard[-1] < self.silence_ns:
                    return None  # the usual case
            # A path that never was heard (a rail that is dead) says nothing of the others.
            if not max(heard):
                return None
            others = [self._ring.last_heard_ns(i) for i in self.by_index if i not in own]
            if self._ring.header().config_epoch != self._config:
                return None  # these are rows of other paths
        except RingError:
            return None
        if not fallen_silent(heard, others, now_ns, self.silence_ns):
            return None
        return now_ns - max(heard)

    def _turned(self, ring: RingReader) -> bool:
        """Whether trains go over RDMA since the last look, or no longer."""
        rdma = itertools.chain.from_iterable(self._rdma.values())
        return any(ring.carries_trains(index) != (index in self.by_index) for index in rdma)

    def close(self) -> None:
        """Let go of the ring; `read` opens the next one."""
        if self._ring is not None:
            self._ring.close()
        self._ring = self._samples = None
        self.by_index, self._rdma, self._config, self._bare = {}, {}, 0, None

    def _open(self) -> None:
        self.close()
        try:
            self._ring = RingReader(self._file)
        except (RingError, OSError):
            return  # The prober will come.
        self._samples = SampleReader(self._ring)

    def _without(self, config: int, now_ns: int) -> bool:
        """Whether a configuration has no paths, rather than that they are still to be written.

        A prober that is being configured says its number first and the paths when their sockets are
        open; one that was not yet told anything has the number 0, and what was known holds.
        """
        if self._bare is None or self._bare[0] != config:
            self._bare = config, now_ns
        return config != 0 and abs(now_ns - self._bare[1]) >= ROWS_NS

    def _look(self, ring: RingReader, config: int, now_ns: int) -> None:
        """Where the paths lead, and who is at their ends."""
        links = {row.index: row for row in ring.links(rdma=True)}
        rows = ring.paths(rdma=True)
        header = ring.header()
        if header.config_epoch != config or (not rows and not self._without(config, now_ns)):
            return  # changed just now: at the next tick
        self._config = config
        self.by_index, self._rdma = {}, {}
        here: set[ClockPath] = set()
        if rows:
            self._bare = None
        peers = max(Counter(row.link for row in rows).values(), default=1)
        self.lost_ns = MISSES * peers * header.link_interval_ns
        self.silence_ns = max(LEAST_SILENCE_NS, self.lost_ns - NEXT_LOOK_NS)
        for row in rows:
            if row.rdma:
                self._rdma.setdefault(row.host_id, []).append(row.index)
            if not row.host_id or row.link not in links:
                continue
            link = links[row.link]
            key = PathKey(link.netdev, row.address, row.port, row.host_id)
            path = self._known.get(key)
            if not row.clock:
                if path is not None and path.outlasts_trains(row.peer_incarnation, now_ns):
                    here.add(path)
                continue
            if path is None:
                path = self._known[key] = ClockPath(
                    next(self._numbers), key, estimator=PairEstimator(self._rules)
                )
                path.taken, path.peer_moves = _taken(row), row.peer_moves
            path.link, path.address, path.phc = row.link, link.address, link.phc
            path.own, path.rdma = (link.address, link.port), row.rdma
            if row.peer_incarnation and path.incarnation != row.peer_incarnation:
                # Another life of its prober, and perhaps of its host: of another clock then, which
                # the estimator would see, but not before it has been fed for a while.
                if path.incarnation:
                    path.reset()
                    path.theirs = None
                    self._void(path)
                path.incarnation = row.peer_incarnation
            was, path.taken = path.taken, _taken(row)
            if path.taken.port != was.port or path.peer_moves != row.peer_moves:
                path.peer_moves = row.peer_moves
                path.reset()
                self._rerouted(path)
            path.trains_ns = now_ns
            self.by_index[row.index] = path
        here.update(self.by_index.values())
        for key, path in list(self._known.items()):
            if path not in here:
                del self._known[key]
                self._void(path)
        self._find_beside()

    def _find_beside(self) -> None:
        ways: dict[tuple[str, str, int], list[ClockPath]] = {}
        for path in self._known.values():
            path.beside = None
            ways.setdefault((path.key.netdev, path.key.address, path.key.host), []).append(path)
        for both in ways.values():
            # Unlike incarnations: one of the two paths has not heard of the peer's new life.
            alike = len({path.incarnation for path in both}) == 1
            if alike and sorted(path.rdma for path in both) == [False, True]:
                both[0].beside, both[1].beside = both[1], both[0]


def _taken(row: PathRow) -> PortStatus:
    return PortStatus(row.source_port, row.port_refused)
