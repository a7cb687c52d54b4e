"""From packets to lines, path by path: when each is fitted, to what, and what the mesh hears of it.

How often a path is fitted follows from how many there are: some two or three of them are each step,
which takes less than a hundredth of a core.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from clocksync.mesh.host import MeshHost
from clocksync.pair.crossing import PhcLine, carried
from clocksync.pair.estimator import feed
from clocksync.pair.model import SECOND, Pair
from clocksync.pair.trains import Ints, Trains
from fabricd.clock.clocks import Clocks
from fabricd.clock.paths import ClockPath
from fabricd.clock.phc import Phcs
from fabricd.clock.samples import trains

FIT_S = 0.25
"""Between two fits of a path, where there are few paths."""
FIT_SHARE_S = 0.04
"""And so much for each path where there are many."""
LATE = 8
"""None waits for others by more than this part of that."""
GOLDEN = (5**0.5 - 1) / 2
"""Its multiples' parts lie evenly, however many there are (Weyl, 1916)."""
DEAF_NS = 300_000_000
"""After a NIC's clock was set, or a path goes another way, older stamps may come for so long."""
_Ends = tuple[PhcLine | None, PhcLine | None]
BARE = (None, None)
"""Nothing is to be crossed: both ends stamp by their raw clocks."""


class FitScheduler:
    """Of one host's paths."""

    def __init__(self, core: MeshHost, phcs: Phcs, clocks: Clocks) -> None:
        self.core, self.phcs, self.clocks = core, phcs, clocks
        self.fits = 0
        """Made so far."""
        self._log = structlog.get_logger()

    def fit(self, paths: Collection[ClockPath], now: int) -> bool:
        """Fit those that are due, and tell the mesh.

        Args:
            paths: all that there are.
            now: our clock.

        Returns:
            Whether our own clock was stepped: then the mesh has been left, and no line holds.
        """
        period = round(max(FIT_S, FIT_SHARE_S * len(paths)) * SECOND)
        due: list[tuple[ClockPath, _Ends]] = []
        # Many at once take less than one after another, and of 80 paths some three are due a step.
        wait = min((path.fit_ns for path in paths), default=now) > now - period // LATE
        for path in paths:
            crossed = any(path.hardware) or path.generation != BARE
            ends = self._ends(path, now) if crossed else BARE
            if wait or now < path.fit_ns:
                continue
            # Each path at its own time: all at once would be a stop of all.
            path.fit_ns = now + (period if path.fit_ns else int(path.number * GOLDEN % 1 * period))
            if ends is not None:
                path.crossed_ns = now
                due.append((path, ends))
            elif now - path.crossed_ns > path.estimator.rules.longest_ns:
                path.reset()  # Nothing would drop what piles up.
                path.crossed_ns = now
        self.feed([path for path, _ in due])
        for path, (own, theirs) in due:
            steps, shorter = path.estimator.steps, path.estimator.shorter
            pair = path.estimator.estimate(now if own is None else own.phc(now)[0])
            self.fits += 1
            if path.estimator.shorter and not shorter:
                self._distrust(path)
            stepped = path.estimator.steps != steps
            if stepped and not any(path.hardware) and self.core.path_stepped(path.number, now):
                return True
            if pair is not None:
                pair = carried(pair, own, theirs)
            if pair is not None or path.estimator.doubt or stepped:
                self._tell(path, pair, has_trains=path.rdma or path.beside not in paths)
        return False

    def _tell(self, path: ClockPath, pair: Pair | None, *, has_trains: bool) -> None:
        """Tell the mesh a path's newest line, or that there is none.

        Of two paths beside each other, packets correct only the line of the one with the trains.
        The other path's line is used until the path with the trains has a line, or is in doubt.
        """
        beside = path.beside
        if beside is not None and not has_trains and self._has_line(beside):
            return
        self._estimate(path, pair)
        if beside is not None and has_trains:
            self._estimate(beside, None)

    def _estimate(self, path: ClockPath, pair: Pair | None) -> None:
        judged = not any(path.hardware) and not path.rdma
        self.core.estimate(path.number, path.key.host, pair, path.mark if judged else 0)

    def _has_line(self, path: ClockPath) -> bool:
        edge = self.core.edges.get(path.number)
        return edge is not None and edge.pair is not None

    def _distrust(self, path: ClockPath) -> None:
        """Bounds that rested on what an operator said of it are none; said once of each path."""
        self.core.distrust()
        if not path.told:
            path.told = True
            self._log.warning("a path is shorter than [clock] least_way_ns: not heeded there",
                              netdev=path.key.netdev, peer=path.key.address)  # fmt: skip

    def feed(self, paths: list[ClockPath]) -> None:
        """Give estimators what came, of all at once, and only before it is used.

        What takes time is the calls of NumPy and not the packets.
        """
        if not paths:
            return
        fed = []
        for path, (out, back, rest) in zip(paths, trains([p.came for p in paths]), strict=True):
            path.came = [rest]
            # A NIC's stamps are of its own clock, and go over to ours as a line.
            host, (ours, theirs) = path.key.host, path.hardware
            fed.append((
                path.estimator,
                Trains(self._own(out.sent_ns, ours), self._peers(host, out.heard_ns, theirs)),
                Trains(self._peers(host, back.sent_ns, theirs), self._own(back.heard_ns, ours)),
            ))  # fmt: skip
        feed(fed)

    def _own(self, stamps: Ints, hardware: bool) -> Ints:
        return stamps if hardware else self.clocks.own(stamps)

    def _peers(self, host: int, stamps: Ints, hardware: bool) -> Ints:
        return stamps if hardware else self.clocks.peers(host, stamps)

    def _ends(self, path: ClockPath, now: int) -> _Ends | None:
        """The crossings that a path's line goes through; None: one is not there."""
        source = self.phcs.source(path.phc) if path.hardware[0] else None
        theirs = path.theirs if path.hardware[1] else None
        generation = (
            source.crossing.generation if source else None, theirs.generation if theirs else None
        )  # fmt: skip
        if generation != path.generation:
            # Stamps of before are of no use; the line that the mesh has, between the raw clocks, is
            # as good as it was.
            path.generation = generation
            path.reset()
            path.deaf_ns = now + DEAF_NS
        own = source.crossing.at(now) if source else None
        other = theirs.line if theirs else None
        if (own is None) == path.hardware[0] or (other is None) == path.hardware[1]:
            return None
        return own, other
