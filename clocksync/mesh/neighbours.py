"""Neighbours, as a host sees them through the paths to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clocksync.mesh.asymmetry import Blame, Surplus
from clocksync.mesh.bound import BoundKeeper, Observation
from clocksync.mesh.messages import AsymmetryReport, ClockMessage, Mesh, MeshId, Reference, Time
from clocksync.pair.linear import Linear, split
from clocksync.pair.model import SECOND, Pair

GUILTY_SHARE = 1e-3
"""Of its weight, of a path whose two ways are known to differ: it bends nobody any more, and counts
all the same where there is no other."""
OLDEST_NS = 5 * SECOND
"""By the neighbour's own clock; a message comes ten times a second, and is used for a second."""
CRYSTALS = 1e-4
"""Most by which the rates of two hosts' clocks differ: no oscillator is off by 50 ppm."""
MOST_DELAY_NS = 2.0 * SECOND
"""Of more it is not known: where a reference is gone and nobody took over yet, each step adds."""
TOGETHER_NS = SECOND // 2
"""A host says its mesh time and its bound ten times a second, one packet after the other; one that
says the former alone for so long has lost the latter."""


@dataclass(slots=True)
class Edge:
    """A path to a neighbour, and what came over it."""

    peer: int
    pair: Pair | None = None
    mesh: Mesh | None = None
    time: Time | None = None
    reference: Reference | None = None
    mesh_id: MeshId | None = None
    heard_ns: int = 0
    """Our clock, of the last message of its own (MESH)."""
    lined_ns: int = 0
    """Our clock, of the first line since there was none."""
    resumed_ns: int = 0
    """Our clock: since when it has said something without a gap."""
    surplus: Surplus = field(default_factory=Surplus)
    """One that stays belongs to a path whose two ways differ."""
    mark: int = 0
    """The same at both ends (`clocksync.mesh.ecmp_rerouter.path_mark`); 0: not known."""
    blame: Blame | None = None
    asymmetric: bool = False
    """The path is known to be asymmetric."""
    _turned: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """By how much the rates of ``mesh`` and of ``reference`` changed last."""

    def hear(self, message: ClockMessage, now_ns: int, gap_ns: int) -> None:
        """Take a message of the neighbour's.

        Args:
            message: what came; the same one as before, often.
            now_ns: our clock.
            gap_ns: after so long a silence its clock may be another one, which no line and no
                message of before is of.
        """
        match message:
            case Mesh():
                known = self.mesh
                if known is None or now_ns - self.heard_ns > gap_ns:
                    self.resumed_ns = now_ns
                    self.time = self.reference = None
                elif message != known:
                    self._turned[0] = abs(message.slope - known.slope)
                self.mesh, self.heard_ns = message, now_ns
            case Reference():
                held = self.reference
                if held is not None and message != held:
                    self._turned[1] = abs(message.slope - held.slope)
                self.reference = message
            case Time():
                self.time = message
            case MeshId():
                self.mesh_id = message
            case AsymmetryReport():
                self.mesh_id = message.mesh_id
                if message.mark == self.mark:
                    self.blame = Blame(message.surplus_ns, now_ns)

    def line(self, pair: Pair | None) -> None:
        """The path's newest line, or that there is none."""
        if self.pair is None and pair is not None:
            self.lined_ns = pair.seen_ns
        self.pair = pair

    def rate(self, held: Reference) -> tuple[float, float]:
        """How fast the neighbour's time runs over its clock, beyond 1, and how far off that may be.

        It is the sum of two rates that change together (a reference whose mesh is turned says the
        opposite of its own time's), and of the messages that came last one may be of before that.

        Args:
            held: whom we follow, should it not have said yet whom it does.
        """
        mesh = self.mesh.slope if self.mesh else 0.0
        if self.reference is None:
            return mesh + held.slope, CRYSTALS
        return mesh + self.reference.slope, sum(self._turned)

    @property
    def surplus_ns(self) -> float | None:
        """None: not known yet."""
        return self.surplus.mean_ns if self.surplus.looks else None

    def rerouted(self) -> None:
        """One of its ways is another: what was learnt of them is not true any more."""
        self.pair, self.surplus, self.blame = None, Surplus(), None


class View(NamedTuple):
    """A neighbour through one path, at one moment."""

    edge: Edge
    peer_ns: int
    """Its clock, whole nanoseconds,"""
    peer_part: float
    """and so much more."""
    mesh: Linear
    """Its mesh time over our clock."""
    weight: float
    follows: int
    """Id of its reference; 0: none."""


def views(
    edges: Iterable[Edge], tag: int, now_ns: int, message_ns: int, pair_ns: int
) -> list[View]:
    """Neighbours of one mesh.

    Args:
        edges: all paths.
        tag: of the mesh.
        now_ns: our clock.
        message_ns: most age of a neighbour's message.
        pair_ns: most age of a path's line.
    """
    out = []
    for edge in edges:
        pair, said = edge.pair, edge.mesh
        if pair is None or said is None or said.tag != tag or now_ns - edge.heard_ns > message_ns:
            continue
        if now_ns - pair.seen_ns > pair_ns or pair.seen_ns < edge.resumed_ns:
            continue
        # The first line may be over a clock that was set, and older messages of a host that did not
        # know. It knows before anybody has such a line, and then says no more.
        if edge.heard_ns <= edge.lined_ns:
            continue
        peer_ns, peer_part = now_ns + pair.base_ns, pair.apart(now_ns)
        _, raw_ns, mesh_ns, part, rate, reference, _ = said
        age = peer_ns - raw_ns
        if abs(age + peer_part) > OLDEST_NS:
            continue  # of a clock that was another then, or of nonsense
        ns, part = split(part + peer_part + rate * (age + peer_part), mesh_ns + age)
        mesh = Linear(now_ns, ns, part, rate + pair.slope * (1 + rate))
        weight = pair.weight(now_ns)
        if edge.asymmetric:
            weight *= GUILTY_SHARE
        out.append(View(edge, peer_ns, peer_part, mesh, weight, reference))
    return out


def sights(
    seen: Iterable[View], held: Reference, bounds: BoundKeeper, now_ns: int, off_ns: float = 0.0
) -> list[Observation]:
    """Fabric time by neighbours that say it, of the mesh of ``held``.

    Args:
        seen: neighbours.
        held: whom we follow.
        bounds: how they grow.
        now_ns: our clock.
        off_ns: our own stamps may be off our clock by so much.
    """
    out = []
    for view in seen:
        edge, peer_ns, peer_part, *_ = view
        said, pair, mesh = edge.time, edge.pair, edge.mesh
        if said is None or pair is None or mesh is None or said.tag != held.tag:
            continue
        if abs(mesh.raw_ns - said.raw_ns) > TOGETHER_NS:
            continue  # it says no time any more
        whole = peer_ns - said.raw_ns
        rate, wrong = edge.rate(held)
        age, drift = abs(whole + peer_part), said.drift + wrong
        ns, part = split(peer_part + rate * (whole + peer_part), said.fabric_ns + whole)
        bound = bounds.grown(said.bound_ns, drift, age) + pair.bound_ns(now_ns) + off_ns
        drift = bounds.faster(drift, age) + pair.drift(now_ns)
        theirs = Linear(now_ns, ns, part, rate + pair.slope)
        out.append(Observation(theirs, bound, drift, said.reference, said.term))
    return out


def same_reference(seen: Iterable[View], reference: int) -> list[View]:
    """Neighbours that follow this reference."""
    return [view for view in seen if view.follows == reference]


def up_to_date(mine: Iterable[View], reference: int, lost_ns: int) -> list[View]:
    """Of neighbours with our reference, those that have heard of it of late, where we have.

    One that has not for long was cut off with what it has of that time; while nobody has, all are.
    """
    return [
        view for view in mine
        if (said := view.edge.reference) and (mesh := view.edge.mesh)
        and said.id == reference and mesh.mesh_ns - said.mesh_ns <= lost_ns
    ]  # fmt: skip


def lives(edges: Iterable[Edge], held: Reference, now_ns: int, suspect_ns: int) -> bool:
    """Whether a reference lives by the clock of any neighbour.

    Args:
        edges: those that are heard now.
        held: the reference, as we know it.
        now_ns: our clock.
        suspect_ns: the most age of a message of a reference that lives.
    """
    return any(
        edge.mesh is not None and edge.reference is not None
        and edge.mesh.tag == edge.reference.tag == held.tag
        and (edge.reference.id, edge.reference.term) == (held.id, held.term)
        and edge.mesh.mesh_ns + now_ns - edge.heard_ns - edge.reference.mesh_ns <= suspect_ns
        for edge in edges
    )  # fmt: skip


def root_delay(seen: Sequence[View], reference: int) -> float:
    """The least round trip to it along the mesh, ns; 0: no neighbour that follows it knows one."""
    ways = [
        said.root_ns + 2 * pair.half_rtt_ns for view in seen
        if (said := view.edge.mesh) and (pair := view.edge.pair)
        and said.reference == reference and said.root_ns
    ]  # fmt: skip
    least = min(ways, default=0.0)
    return least if least <= MOST_DELAY_NS else 0.0
