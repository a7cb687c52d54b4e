"""Who gives fabric time, and which of two meshes their hosts end up in where they meet. Pure.

Of the hosts whose messages are young, the one with the smallest priority, then id. A message's age
is in mesh time, which all hosts have, so nobody takes an old message for a new one, however often
it was passed on. When the last message is old, every host that may be reference says that it is;
each goes on with the time that it has, so it is the same time, and the best of them stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from clocksync.mesh.messages import MeshId, Reference
from clocksync.pair.linear import Linear, split
from clocksync.pair.model import SECOND

NEVER = 255
"""Priority of a host that does not become reference."""
ALIKE_NS: Final = SECOND
"""Meshes that began so close to each other are told apart by their founders: what is heard of an
age is as old as the message that says it, a tenth of a second and what the packet took."""


def fallen_silent(
    own_ns: Sequence[int], others_ns: Sequence[int], now_ns: int, silence_ns: int
) -> bool:
    """Whether nothing came from the reference on any path, while something did from others.

    Args:
        own_ns: when something came last, of each path to the reference; 0: nothing yet.
        others_ns: the same of all other paths. Were they silent too, it is us who do not hear.
        now_ns: by the same clock.
        silence_ns: so long is silence.
    """
    if not own_ns or not others_ns or not max(own_ns):
        return False
    return now_ns - max(others_ns) < silence_ns / 2 and now_ns - max(own_ns) >= silence_ns


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """Parameters of an election."""

    lost_ns: int = SECOND
    """A reference whose newest message is so old is lost: with each host that passes it on a
    message grows a tenth of a second older."""
    suspect_ns: int = 400_000_000
    """So old it is lost if another host says that it took over, or all our paths to it failed."""
    expire_ns: int = 5 * SECOND
    """One whose newest message is so old, and whose time no bound is known of, is forgotten: nobody
    can go on with that time. Its successors, if there are any, have stood up long ago."""
    take_over_ns: int = 10 * SECOND
    """A better host takes over from a reference that lives once it has been locked for so long."""


@dataclass(slots=True)
class Election:
    """As one host sees it."""

    id: int
    priority: int
    rules: ElectionRules = field(default_factory=ElectionRules)
    reference: Reference | None = None
    """Whom we follow: its newest message."""
    own: Linear | None = None
    """Fabric time over our clock, of a host that is the reference."""
    takeovers: int = 0
    lost: int = 0
    """References that were given up."""
    _term: int = 0
    """The newest of this mesh. Whoever takes over counts on from it, not from the one it follows:
    a host that was reference of a part of the network, and is again, gives another time then."""
    _gone: tuple[int, int] | None = None
    """A host, and when in mesh time it was last heard before it fell silent: what it said until
    then is void, however late it is passed on. What it says later shows that it lives."""

    def leave(self) -> None:
        """Another mesh: none of this is true there."""
        self.reference = self.own = self._gone = None
        self._term = 0

    def _newest(self, term: int) -> None:
        if not self._term or (term - self._term) & 0xFFFF < 0x8000:
            self._term = term

    @property
    def is_reference(self) -> bool:
        """Whether fabric time is this host's own."""
        return self.own is not None

    def silent(self, host: int, mesh_ns: int) -> None:
        """Nothing came from a host since ``mesh_ns``: were it the reference, it is lost.

        Unless others pass on what it said later.
        """
        if self.reference is not None and self.reference.id == host and self.own is None:
            self._gone = host, mesh_ns

    def alive(self, said: Reference, mesh_ns: int | None) -> bool:
        """Whether a message is young; of a host that knows no mesh time yet every message is.

        Args:
            said: the message.
            mesh_ns: now.
        """
        if mesh_ns is None:
            return True
        if self._gone and said.id == self._gone[0] and said.mesh_ns <= self._gone[1]:
            return False
        return abs(mesh_ns - said.mesh_ns) <= self.rules.lost_ns

    def expire(self, mesh_ns: int) -> bool:
        """Forget a reference that is long dead; whether there was such a one.

        Only for a host that cannot go on with its time.
        """
        held = self.reference
        if held is None or self.own is not None:
            return False
        if abs(mesh_ns - held.mesh_ns) <= self.rules.expire_ns:
            return False
        self.reference = None
        self.lost += 1
        return True

    def choose(self, messages: Iterable[Reference], mesh_ns: int | None) -> Reference | None:
        """Take the neighbours' messages; returns the new one when another host is followed now."""
        before = self.reference
        for said in messages:
            self._newest(said.term)
            # Our own message of an earlier life is one to go on with.
            ours = said.id == self.id and self.own is not None
            if not ours and self.alive(said, mesh_ns) and self._prefers(said, mesh_ns):
                self.reference = said
        held = self.reference
        if held is None or held is before:
            return None
        if before is not None and before.id == held.id:
            return None
        if before is not None and not self.alive(before, mesh_ns):
            self.lost += 1
        self.own = None
        return held

    def _prefers(self, said: Reference, mesh_ns: int | None) -> bool:
        held = self.reference
        if held is None:
            return True
        if said.id == held.id and self.own is None:
            return _later(said, held) or not self.alive(held, mesh_ns)
        if (said.priority, said.id) < (held.priority, held.id):
            return True
        if self.own is not None:
            return False
        age = 0 if mesh_ns is None else abs(mesh_ns - held.mesh_ns)
        successor = 0 < (said.term - held.term) & 0xFFFF < 0x8000
        return not self.alive(held, mesh_ns) or (successor and age > self.rules.suspect_ns)

    def stand(self, fabric: Linear, mesh: Linear, tag: int, *, may: bool, locked_ns: int) -> None:
        """Say that we are the reference, if it is so or has to be.

        Args:
            fabric: fabric time over our clock, as we have it; from its origin on it is ours.
            mesh: mesh time from the same moment on.
            tag: of the mesh.
            may: whether we know fabric time, or have begun the mesh.
            locked_ns: for how long we have known it.
        """
        held = self.reference
        if self.own is not None and held is not None:
            self.reference = self._say(self.own.moved(mesh.at_ns), mesh, tag, held.term)
            return
        if self.priority >= NEVER or not may:
            return
        if held is not None and self.alive(held, mesh.ns):
            better = (self.priority, self.id) < (held.priority, held.id)
            again = held.id == self.id
            if not again and (not better or locked_ns < self.rules.take_over_ns):
                return
        elif held is not None:
            if abs(mesh.ns - held.mesh_ns) <= self.rules.suspect_ns:
                return  # others may still hear it; its time goes on here all the while
            self.lost += 1
        self.own = fabric
        self.takeovers += 1
        term = (self._term + 1) & 0xFFFF
        self._term = term
        self.reference = self._say(fabric, mesh, tag, term)

    def _say(self, own: Linear, mesh: Linear, tag: int, term: int) -> Reference:
        ahead, part = split(own.part - mesh.part, own.ns - mesh.ns)
        slope = own.slope - mesh.slope
        return Reference(tag, self.priority, self.id, term, mesh.ns, ahead, part, slope)


def _later(said: Reference, held: Reference) -> bool:
    """Whether of one host's messages this is the later one."""
    if said.term != held.term:
        return (said.term - held.term) & 0xFFFF < 0x8000
    return said.mesh_ns > held.mesh_ns


def older_mesh(
    own: MeshId | None, own_age_ns: int | None, heard: Iterable[tuple[MeshId, int]]
) -> MeshId | None:
    """The mesh to be in where two meet: the one that has lasted longer.

    Age is counted in mesh time, so no wall clock has a say: a host whose date is wrong may begin a
    mesh of its own, but one of yesterday's wins.

    Args:
        own: that of this host.
        own_age_ns: its mesh time since the mesh began; None: it has none yet, and goes by what is
            heard.
        heard: meshes of the neighbours that are heard now, and how old they are by their messages.

    Returns:
        ``own`` if no other is older; None if there is none.
    """
    ages: dict[MeshId, int] = {}
    for mesh, age in heard:
        # Of two neighbours that do not agree the one that says less.
        ages[mesh] = min(age, ages.get(mesh, age))
    if own is not None and own_age_ns is not None:
        ages[own] = own_age_ns
    if not ages:
        return own
    oldest = max(ages.values())
    alike = (mesh for mesh, age in ages.items() if oldest - age <= ALIKE_NS)
    return min(alike, key=lambda mesh: (mesh.founder, mesh.founded_ns))
