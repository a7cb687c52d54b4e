"""From a path that may be asymmetric to one that has another way, or none better. Pure.

===========  ====================================================================================
WATCHING     nothing is known against it
SUSPECT      both its ends say that its two ways differ
NAMED        they have said so for long: it counts for next to nothing in the mesh
MOVED        its probes leave from another port, and it is waited for what that does
GAVE_UP      no port helped; the best one stays
===========  ====================================================================================

Each direction has its own source port, so the end moves whose way out is the longer one; only if
that brought nothing for long, the other one. A host moves one path at a time, waits longer after
each, and tries a few ports in an hour: ports do not change for ever.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from clocksync.mesh.asymmetry import Finding
from clocksync.page.ports import MOST
from clocksync.pair.model import SECOND


class PathState(StrEnum):
    """See the table above."""

    WATCHING = "watching"
    SUSPECT = "suspect"
    NAMED = "named"
    MOVED = "moved"
    GAVE_UP = "gave up"


class Event(StrEnum):
    """What happens to a path."""

    BLAMED = "blamed"
    CLEARED = "cleared"
    PERSISTED = "persisted"
    MOVE = "move"
    BETTER = "better"
    NO_BETTER = "no better"
    SPENT = "spent"


_S, _E = PathState, Event
TABLE: Final[dict[tuple[PathState, Event], PathState]] = {
    (_S.WATCHING, _E.BLAMED): _S.SUSPECT,
    (_S.SUSPECT, _E.CLEARED): _S.WATCHING,
    (_S.SUSPECT, _E.PERSISTED): _S.NAMED,
    (_S.NAMED, _E.CLEARED): _S.WATCHING,
    (_S.NAMED, _E.MOVE): _S.MOVED,
    (_S.MOVED, _E.BETTER): _S.WATCHING,
    (_S.MOVED, _E.NO_BETTER): _S.NAMED,
    (_S.NAMED, _E.SPENT): _S.GAVE_UP,
    (_S.GAVE_UP, _E.CLEARED): _S.WATCHING,
}
GUILTY: Final = frozenset({_S.NAMED, _S.MOVED, _S.GAVE_UP})
FIRST_PORT: Final = 61000
"""Up to 65535: what Linux gives to others ends at 60999 (net.ipv4.ip_local_port_range)."""


@dataclass(frozen=True, slots=True)
class MoveRules:
    """Parameters."""

    persist_ns: int = 30 * SECOND
    """Blamed so long without a break, a path is named."""
    clear: float = 0.5
    """Below so much of what would be too much it is well again,"""
    clear_ns: int = 15 * SECOND
    """if it is so for so long."""
    take_ns: int = 10 * SECOND
    """In which the prober has to have taken a port."""
    settle_ns: int = 30 * SECOND
    """Then so long until it is judged: a new line, and six times the memory of the mean."""
    tries: int = 6
    """Of two equal ways one in 64 paths finds none; of eight of which one is bad, none."""
    wait_ns: int = 10 * SECOND
    """After a port that did not help; twice as long after each,"""
    longest_ns: int = 600 * SECOND
    """but no longer than that."""
    turn_ns: int = 900 * SECOND
    """Named so long, the end whose way is the shorter one may move too."""
    forget_ns: int = 3600 * SECOND
    """Well for so long, what was tried is forgotten."""


class PortStatus(NamedTuple):
    """What the prober says of a path's source port."""

    port: int
    """0: the link's own."""
    refused: bool
    """Another one was asked for, and the peer does not hear it."""


@dataclass(slots=True)
class PathRecord:
    """One path."""

    mark: int
    """The same at both ends (`path_mark`)."""
    state: PathState = PathState.WATCHING
    since_ns: int = 0
    """In this state."""
    port: int = 0
    """Asked for."""
    moves: int = 0
    """Ports asked for so far."""
    tries: int = 0
    tried: dict[int, float] = field(default_factory=dict)
    """By port, what was left over, without sign."""
    named_ns: int = 0
    took_ns: int | None = None
    next_ns: int = 0
    clear_ns: int | None = None
    """Since when it is well."""

    def fire(self, event: Event, now_ns: int) -> None:
        """Raises KeyError for what cannot happen in this state."""
        self.state = TABLE[self.state, event]
        self.since_ns, self.clear_ns = now_ns, None

    def ask(self, port: int) -> None:
        """For another source port."""
        self.moves += port != self.port
        self.port, self.took_ns = port, None


class Change(NamedTuple):
    """For the log."""

    path: int
    state: PathState
    port: int
    surplus_ns: float | None


class EcmpRerouter:
    """The paths of one host."""

    def __init__(self, rules: MoveRules | None = None, *, may_move: bool = True) -> None:
        """Args: ``may_move``: else paths are named, and stay where they are."""
        self.rules = rules or MoveRules()
        self.may_move = may_move
        self.paths: dict[int, PathRecord] = {}
        self._moved = 0
        """Of paths that are no more."""

    @property
    def moves(self) -> int:
        """Ports asked for so far, also for paths that have gone meanwhile."""
        return self._moved + sum(watched.moves for watched in self.paths.values())

    def watch(self, path: int, mark: int, port: int = 0) -> PathRecord:
        """Of a path, which is made if there is none; ``port``: it has been moved there before."""
        watched = self.paths.get(path)
        if watched is None or watched.mark != mark:
            self.drop(path)
            watched = self.paths[path] = PathRecord(mark, port=port)
        return watched

    def drop(self, path: int) -> None:
        """It is no more."""
        if (gone := self.paths.pop(path, None)) is not None:
            self._moved += gone.moves

    def anew(self, now_ns: int) -> None:
        """Our clock is another, at ``now_ns`` now: what is waited for begins anew."""
        for watched in self.paths.values():
            watched.since_ns = watched.named_ns = watched.next_ns = now_ns
            watched.clear_ns = None
            watched.took_ns = None if watched.took_ns is None else now_ns

    def asymmetric(self, path: int) -> bool:
        """Whether it is known to be asymmetric."""
        watched = self.paths.get(path)
        return watched is not None and watched.state in GUILTY

    def step(
        self, now_ns: int, findings: Mapping[int, Finding], taken: Mapping[int, PortStatus]
    ) -> list[Change]:
        """About once a second.

        Args:
            now_ns: our clock.
            findings: of `clocksync.mesh.asymmetry.judge`.
            taken: what the prober has done; nothing of a path while there is none.

        Returns:
            Which paths are in another state, or to be probed from another port.
        """
        changes = []
        for path, watched in self.paths.items():
            before = watched.state, watched.port
            found, at = findings.get(path), taken.get(path)
            if watched.state is not PathState.MOVED and watched.port and at and at.refused:
                # It was good once. Now packets from there are missed, and the prober went back.
                watched.tried[watched.port] = math.inf
                watched.ask(0)
            match watched.state:
                case PathState.WATCHING | PathState.SUSPECT:
                    self._suspect(watched, found, now_ns)
                case PathState.MOVED:
                    self._await(watched, found, at, now_ns)
                case _:
                    self._named(path, watched, found, now_ns)
            if (watched.state, watched.port) != before:
                left = None if found is None else found.ns
                changes.append(Change(path, watched.state, watched.port, left))
        return changes

    def _suspect(self, watched: PathRecord, found: Finding | None, now_ns: int) -> None:
        rules, blamed = self.rules, found is not None and found.agreed
        age = now_ns - watched.since_ns
        if watched.state is PathState.WATCHING:
            if blamed:
                watched.fire(Event.BLAMED, now_ns)
            elif watched.tries and age > rules.forget_ns:
                watched.tries = 0
                watched.tried.clear()
        elif not blamed:
            watched.fire(Event.CLEARED, now_ns)
        elif found is not None and age >= rules.persist_ns:
            watched.fire(Event.PERSISTED, now_ns)
            watched.named_ns = now_ns
            watched.tried[watched.port] = abs(found.ns)

    def _named(self, path: int, watched: PathRecord, found: Finding | None, now_ns: int) -> None:
        if found is None:
            watched.clear_ns = None
            return
        rules = self.rules
        if abs(found.ns) < rules.clear * found.most_ns:
            if watched.clear_ns is None:
                watched.clear_ns = now_ns
            elif now_ns - watched.clear_ns >= rules.clear_ns:
                watched.fire(Event.CLEARED, now_ns)
            return
        watched.clear_ns = None
        if watched.state is PathState.GAVE_UP or not self.may_move:
            return
        if watched.tries >= rules.tries:
            best = min(watched.tried, key=lambda port: watched.tried[port])
            watched.fire(Event.SPENT, now_ns)
            watched.ask(best)
            return
        ours = found.ns > 0 or now_ns - watched.named_ns >= rules.turn_ns
        if ours and now_ns >= watched.next_ns and self._free(path):
            watched.fire(Event.MOVE, now_ns)
            watched.ask(self._another(watched))

    def _await(
        self, watched: PathRecord, found: Finding | None, taken: PortStatus | None, now_ns: int
    ) -> None:
        rules, waited = self.rules, now_ns - watched.since_ns
        here = taken is not None and taken.port == watched.port
        if watched.took_ns is None:
            if here:
                watched.took_ns = now_ns
            elif waited > rules.take_ns or (taken is not None and taken.refused):
                self._no_better(watched, math.inf, now_ns)
            return
        settled = now_ns - watched.took_ns
        if not here and taken is not None:
            self._no_better(watched, math.inf, now_ns)  # the prober went back: it was not heard
        elif settled >= rules.settle_ns and found is not None:
            if abs(found.ns) < rules.clear * found.most_ns:
                watched.tried[watched.port] = abs(found.ns)
                watched.fire(Event.BETTER, now_ns)
            else:
                self._no_better(watched, abs(found.ns), now_ns)
        elif settled >= 3 * rules.settle_ns:
            self._no_better(watched, math.inf, now_ns)  # nothing comes that could be judged

    def _no_better(self, watched: PathRecord, left_ns: float, now_ns: int) -> None:
        rules = self.rules
        watched.tried[watched.port] = left_ns
        watched.next_ns = now_ns + min(rules.wait_ns << watched.tries, rules.longest_ns)
        watched.tries += 1
        watched.fire(Event.NO_BETTER, now_ns)
        if math.isinf(left_ns):
            watched.ask(min(watched.tried, key=lambda port: watched.tried[port]))

    def _free(self, path: int) -> bool:
        """Whether this host moves nothing else, and there is room for one more port."""
        others = [watched for other, watched in self.paths.items() if other != path]
        moved = sum(watched.port != 0 for watched in others)
        return moved < MOST and all(w.state is not PathState.MOVED for w in others)

    def _another(self, watched: PathRecord) -> int:
        number = 0
        while True:
            text = struct.pack("<II", watched.mark, number)
            digest = hashlib.blake2s(text, digest_size=4).digest()
            port = FIRST_PORT + int.from_bytes(digest, "little") % (65536 - FIRST_PORT)
            if port not in watched.tried and port != watched.port:
                return port
            number += 1


def path_mark(one: tuple[str, int], other: tuple[str, int]) -> int:
    """A number for a path that both its ends have; not 0.

    Args:
        one: address and port of an end.
        other: and of the other one.
    """
    text = "|".join(f"{address} {port}" for address, port in sorted((one, other)))
    return int.from_bytes(hashlib.blake2s(text.encode(), digest_size=4).digest(), "little") or 1
