"""One host in the mesh: from its paths and its neighbours' messages to fabric time. Pure.

Every host keeps *mesh time*, a line over its own clock. Ten times a second it looks what mesh time
its neighbours have now, each seen through the path to it, and goes a part of the way to their mean:
the damped steps of `clocksync.mesh.solver`, written for times instead of offsets. So all agree on a
time that is nobody's, and an error of one path stays near it. *Fabric time* is that of one host,
the reference (`clocksync.mesh.election`): it says how far its own time is ahead of mesh time, and
the others pass that on.

A host that hears nobody for a while begins a mesh. Where two meet, hosts of the younger one change
over (`clocksync.mesh.election.older_mesh`), which is another epoch of the clock page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from clocksync.mesh import neighbours
from clocksync.mesh.asymmetry import Evidence, judge
from clocksync.mesh.bound import BoundKeeper, Known
from clocksync.mesh.codec import encode
from clocksync.mesh.ecmp_rerouter import Change, EcmpRerouter, PortStatus
from clocksync.mesh.election import NEVER, Election, older_mesh
from clocksync.mesh.messages import (
    MOST_BOUND,
    MOST_DRIFT,
    AsymmetryReport,
    ClockMessage,
    Mesh,
    MeshId,
    Reference,
    Time,
    under,
)
from clocksync.mesh.model import HostRules, Status
from clocksync.mesh.neighbours import Edge, View, sights, views
from clocksync.mesh.solver import DAMPING, Pull, step
from clocksync.mesh.trace import Fabric
from clocksync.page.clock_page import NOTHING, Line, State
from clocksync.pair.linear import Linear, split
from clocksync.pair.model import SECOND, Pair

NO_DELAY_NS = 1.0
"""Root delay of the reference, as it is told."""
TELLING_NS = 12 * SECOND
"""An older line, of a path that is flooded, tells more of crystals than of its ways: 40 ns then."""


class MeshHost:
    """The core. Give it what came, ask for a step ten times a second."""

    def __init__(
        self, host: int, priority: int, began_ns: int, epoch: int, rules: HostRules | None = None,
        rate: float = 0.0,
    ) -> None:  # fmt: skip
        """A host that knows nothing yet.

        Args:
            host: its id, not 0; no two may have the same.
            priority: 0 to 254, the smaller the sooner it is reference; 255: never.
            began_ns: our clock.
            epoch: epochs of the page count from here on; greater than any of an earlier service.
            rules: parameters.
            rate: of fabric time over our clock, less one, as an earlier life had it: should we
                begin a mesh, time goes on at it.
        """
        self._rate = rate
        self.id, self.epoch = host, epoch
        self.rules = rules or HostRules()
        self.status = Status(epoch=epoch)
        self.election = Election(host, priority, self.rules.election)
        self.edges: dict[int, Edge] = {}
        """By path."""
        self.mesh_id: MeshId | None = None
        self.mesh: Linear | None = None
        """Mesh time over our clock."""
        self.mover = EcmpRerouter()
        self.taken: dict[int, PortStatus] = {}
        """By path: what the prober has done."""
        self._asymmetric: list[tuple[int, float]] = []
        self._turn = 0
        self._joined_ns = self._stepped_ns = began_ns
        self._alone_ns = self._listened_ns = began_ns
        """Since when it has had no mesh time; and has heard of no mesh, either."""
        self._locked_ns: int | None = None
        self._calm: float | None = None
        self._compare = False
        """Whether another reference is followed, or one that was lost is heard again, and its
        followers have not been looked at yet. Until then nobody is to follow us: among all who
        were cut off together each would take the others for such a follower."""
        self._bounds = BoundKeeper(self.rules.wander)
        self.stamps_off_ns = 0.0
        """Our own stamps may be off our clock by so much, all alike."""
        self._root_ns = 0.0
        """Root delay as it is told."""
        self._steps: dict[int, int] = {}
        """When (our clock) a path's clocks were seen to be further apart, by path."""

    # -- what came ----------------------------------------------------------------------------

    def edge(self, path: int, peer: int) -> Edge:
        """What is known of a path; made if there is none, or it led elsewhere."""
        edge = self.edges.get(path)
        if edge is None or edge.peer != peer:
            edge = self.edges[path] = Edge(peer, asymmetric=self.mover.asymmetric(path))
        return edge

    def hear(self, path: int, peer: int, now_ns: int, *messages: ClockMessage) -> None:
        """Messages of a neighbour's came over a path."""
        edge, gap_ns = self.edge(path, peer), self.rules.gap_ns
        for message in messages:
            edge.hear(message, now_ns, gap_ns)

    def estimate(self, path: int, peer: int, pair: Pair | None, mark: int = 0) -> None:
        """A path's newest line, or that there is none.

        Args:
            path: its number here.
            peer: where it leads.
            pair: the line.
            mark: the path's number at both ends (`ecmp_rerouter.path_mark`); 0: it is not judged.
        """
        edge = self.edge(path, peer)
        edge.line(pair)
        edge.mark = mark

    def drop(self, path: int) -> None:
        """A path is no more, or its peer began a new life: nothing that came over it holds."""
        self.edges.pop(path, None)

    def path_stepped(self, path: int, now_ns: int) -> bool:
        """A path's two clocks are further apart, all of a sudden: one of them is another now.

        Messages heard before are over the old one. If most of our paths say so at once it is ours.

        Returns:
            Whether it is ours: then this host has left its mesh, as after `stepped`.
        """
        # Whether it has a line or is in doubt of it: a step is of a line that there was.
        self.edges.pop(path, None)
        known = self._steps | {path: now_ns}
        self._steps = {key: at for key, at in known.items() if now_ns - at <= self.rules.message_ns}
        recent = self._steps.keys()
        steady = sum(edge.pair is not None for key, edge in self.edges.items() if key not in recent)
        if len(recent) < 2 or len(recent) <= steady:
            return False
        self.stepped(now_ns)
        return True

    def distrust(self) -> None:
        """The bound rests on what is not true: the next step makes it of what is seen now alone."""
        self._bounds.forget()

    def rerouted(self, path: int) -> None:
        """One of its ends sends from another port now."""
        if path in self.edges:
            self.edges[path].rerouted()

    def silent(self, host: int, heard_ns: int) -> None:
        """Nothing came from a host since ``heard_ns``: were it the reference, it is lost now."""
        if self.mesh is not None:
            self.election.silent(host, self.mesh.moved(heard_ns).ns)

    def went_back(self, now_ns: int) -> bool:
        """Whether our clock, now at ``now_ns``, was later before: then it was `stepped`."""
        return now_ns < self._stepped_ns

    def stepped(self, now_ns: int) -> None:
        """Our clock was stepped, or is another, at ``now_ns`` now: all lines over it are void."""
        self._leave()
        self._alone_ns = self._listened_ns = self._stepped_ns = now_ns
        self.mover.anew(now_ns)
        self.edges.clear()
        self._steps.clear()

    # -- a step -------------------------------------------------------------------------------

    def step(self, now_ns: int, wall_ns: int) -> Line:
        """Take one step.

        Args:
            now_ns: our clock.
            wall_ns: the wall clock, for a host that begins a mesh.

        Returns:
            What to publish on the clock page.
        """
        self._change_over(now_ns)
        waited = self._waited(now_ns)
        if self.mesh_id is None and waited and self.election.priority < NEVER:
            self.mesh_id = MeshId(self.id, wall_ns)
            self.mesh = Linear(now_ns, wall_ns, 0.0, self._rate)
            self._join(now_ns)
        tag = self.mesh_id.tag if self.mesh_id else 0
        seen = self._views(self.edges.values(), tag, now_ns)
        self._follow(seen, now_ns)
        self._mesh_step(seen, now_ns)
        self._stand(now_ns)
        line = self._line(seen, now_ns)
        self._stepped_ns = now_ns
        return line

    def judge(self, now_ns: int) -> list[Change]:
        """Look, once a second, for paths whose two ways differ.

        Returns:
            Which are in another state now, or to be probed from another source port
            (`clocksync.mesh.ecmp_rerouter`).
        """
        evidence = {
            path: Evidence(edge.surplus, edge.blame, edge.asymmetric)
            for path, edge in self.edges.items() if edge.mark
        }  # fmt: skip
        found = judge(evidence, now_ns, self.rules.asymmetry)
        for path in evidence:
            self.mover.watch(path, self.edges[path].mark)
        changes = self.mover.step(now_ns, found, self.taken)
        for path, edge in self.edges.items():
            edge.asymmetric = self.mover.asymmetric(path)
        self._asymmetric = [
            (self.edges[path].mark, finding.ns) for path, finding in found.items()
            if finding.suspected or self.edges[path].asymmetric
        ]  # fmt: skip
        return changes

    def messages(self) -> list[bytes]:
        """What to tell the neighbours, as of the last step."""
        if self.mesh_id is None or self.mesh is None:
            return []
        tag, mesh, held = self.mesh_id.tag, self.mesh, self.election.reference
        follows = held.id if held and not self._compare else 0
        mesh_id: MeshId | AsymmetryReport = self.mesh_id
        if self._asymmetric:
            # In turn: there is room for one.
            self._turn += 1
            mesh_id = AsymmetryReport(
                self.mesh_id, *self._asymmetric[self._turn % len(self._asymmetric)]
            )
        said: list[ClockMessage] = [
            Mesh(tag, mesh.at_ns, mesh.ns, mesh.part, mesh.slope, follows, self._root_ns), mesh_id,
        ]  # fmt: skip
        known, fabric = self._bounds.known, self.fabric(mesh.at_ns)
        if held is not None:
            said.append(held)
        if known is not None and fabric is not None:
            # The part of a nanosecond is left out.
            age = mesh.at_ns - known.at_ns
            bound = self._bounds.grown(known.bound_ns, known.drift, age) + 1
            drift = self._bounds.faster(known.drift, age)
            if bound < MOST_BOUND and drift < MOST_DRIFT:
                whose = known.reference, known.term
                said.append(Time(tag, *whose, mesh.at_ns, fabric.ns, bound, drift))
        return [encode(message) for message in said]

    def fabric(self, now_ns: int) -> Linear | None:
        """Fabric time over our clock, from ``now_ns`` on; None: unknown."""
        if self.election.own is not None:
            return self.election.own.moved(now_ns)
        ahead = self.election.reference
        if self.mesh is None or ahead is None:
            return None
        mesh = self.mesh.moved(now_ns)
        age = mesh.ns - ahead.mesh_ns
        ns, part = split(mesh.part + ahead.part + ahead.slope * age, mesh.ns + ahead.ahead_ns)
        return Linear(now_ns, ns, part, mesh.slope + ahead.slope)

    def seen(self, now_ns: int) -> Fabric | None:
        """Fabric time and its bound, from ``now_ns`` on; None: unknown, or of no bound yet."""
        known, time = self._bounds.known, self.fabric(now_ns)
        if known is None or time is None or self.mesh_id is None:
            return None
        if self.status.state is State.UNSYNCED:
            return None
        bound = self._bounds.grown(known.bound_ns, known.drift, now_ns - known.at_ns)
        drift = self._bounds.faster(known.drift, now_ns - known.at_ns)
        whose = under(known.reference, known.term)
        return Fabric(time, bound, drift, self.mesh_id.tag, whose)

    # -- which mesh, and whose time -----------------------------------------------------------

    def _views(self, edges: Iterable[Edge], tag: int, now_ns: int) -> list[View]:
        return views(edges, tag, now_ns, self.rules.message_ns, self.rules.pair_ns)

    def _fresh(self, edge: Edge, now_ns: int) -> bool:
        return edge.mesh is not None and now_ns - edge.heard_ns <= self.rules.message_ns

    def _waited(self, now_ns: int) -> bool:
        """Whether a host without a mesh has heard of none for so long that it may begin one.

        One that it heard of and never reached, as from a host that has died meanwhile, or that
        hears nobody itself, is none.
        """
        if self.mesh is None and self.mesh_id is not None:
            named = any(
                edge.mesh_id == self.mesh_id and self._fresh(edge, now_ns)
                for edge in self.edges.values()
            )
            if named and now_ns - self._alone_ns < self.rules.reach_ns:
                self._listened_ns = now_ns
            elif now_ns - self._listened_ns >= self.rules.listen_ns:
                self._leave()
        return now_ns - self._listened_ns >= self.rules.listen_ns

    def _change_over(self, now_ns: int) -> None:
        # Whoever has a mesh time knows the age of its own mesh by that.
        known = self.mesh_id if self.mesh is not None else None
        others = [
            (edge, edge.mesh_id, edge.mesh) for edge in self.edges.values()
            if edge.mesh_id is not None and edge.mesh_id != known
            and edge.mesh is not None and self._fresh(edge, now_ns)
            and edge.mesh_id.tag == edge.mesh.tag
        ]  # fmt: skip
        if not others:
            return
        # What is heard and cannot be seen (packets come one way only, or nothing stamps them) is no
        # reason to give up a time, nor to pass by one that is seen.
        near = [each for each in others if self._views(each[:1], each[2].tag, now_ns)]
        if self.mesh is None:
            near = near or others
        heard = [
            (mesh_id, mesh.mesh_ns + now_ns - edge.heard_ns - mesh_id.founded_ns)
            for edge, mesh_id, mesh in near
        ]
        age = None
        if self.mesh_id is not None and self.mesh is not None:
            age = self.mesh.moved(now_ns).ns - self.mesh_id.founded_ns
        best = older_mesh(self.mesh_id, age, heard)
        if best is not None and best != self.mesh_id:
            if self.mesh is not None:
                self._alone_ns = now_ns
            self._leave()
            self.mesh_id, self._listened_ns = best, now_ns

    def _leave(self) -> None:
        self.mesh_id = self.mesh = self._calm = self._locked_ns = None
        self.election.leave()
        self._bounds.forget()

    def _join(self, now_ns: int) -> None:
        self.epoch += 1
        self.status.joins += 1
        self._joined_ns = now_ns
        self._locked_ns = self._calm = None
        self._bounds.forget()

    def _follow(self, seen: list[View], now_ns: int) -> None:
        tag = self.mesh_id.tag if self.mesh_id else 0
        # What comes over all paths of a neighbour is one message, which one look is enough for.
        messages = {
            id(message): message for edge in self.edges.values()
            if (message := edge.reference) and message.tag == tag and self._fresh(edge, now_ns)
        }.values()  # fmt: skip
        was = self.election.reference
        mesh = self.mesh.moved(now_ns) if self.mesh else None
        # How old a message is a host that is about to join knows by its neighbours' mesh time.
        near = mesh or (seen[0].mesh if seen else None)
        lost = not self._heard_of(was, mesh)
        before = self.fabric(now_ns)
        new = self.election.choose(messages, near.ns if near else None)
        held, after = self.election.reference, self.fabric(now_ns)
        if was is not None and (new is not None or (lost and self._heard_of(held, mesh))):
            self._compare = True
            if before and after:
                off = after.ahead(now_ns, before.ns) - before.part
                if abs(off) > self.rules.apart_ns:
                    self._join(now_ns)  # another time, though its mesh may be ours

    def _heard_of(self, held: Reference | None, mesh: Linear | None) -> bool:
        return held is not None and mesh is not None and self.election.alive(held, mesh.ns)

    def _stand(self, now_ns: int) -> None:
        if self.mesh is None or self.mesh_id is None:
            return
        if self._bounds.known is None and self.election.expire(self.mesh.moved(now_ns).ns):
            # It said that it gives the time, and never what that is worth: a liar, or it died then.
            self._join(now_ns)
        fabric = self.fabric(now_ns)
        # Whoever began the mesh may have gone before it said that it gives the time.
        late = now_ns - self._joined_ns >= self.rules.settled_ns
        first = self.election.reference is None and (self.mesh_id.founder == self.id or late)
        if fabric is None or self._calm is None:
            fabric = fabric or self.mesh.moved(now_ns)
        else:
            fabric = fabric._replace(slope=self._calm)
        # Who hears nobody cannot tell a reference that is lost from being cut off by itself.
        newest = max((edge.heard_ns for edge in self.edges.values()), default=0)
        near = now_ns - newest <= self.rules.election.suspect_ns
        may = self._bounds.known is not None and near and not self._told_lately(now_ns)
        self.election.stand(
            fabric, self.mesh.moved(now_ns), self.mesh_id.tag, may=first or may,
            locked_ns=0 if self._locked_ns is None else now_ns - self._locked_ns,
        )  # fmt: skip
        if self.election.is_reference:
            # The time is ours: who follows us is to compare itself with us.
            self._compare = False

    def _told_lately(self, now_ns: int) -> bool:
        """Whether the reference that is lost by our clock lives by that of a neighbour.

        Then it is ours that was set, and nobody told.
        """
        held, mesh, suspect = self.election.reference, self.mesh, self.rules.election.suspect_ns
        if held is None or mesh is None or mesh.moved(now_ns).ns - held.mesh_ns <= suspect:
            return False
        fresh = (edge for edge in self.edges.values() if self._fresh(edge, now_ns))
        return neighbours.lives(fresh, held, now_ns, suspect)

    # -- the mesh step ------------------------------------------------------------------------

    def _mesh_step(self, seen: list[View], now_ns: int) -> None:
        held = self.election.reference
        mine = seen if held is None else neighbours.same_reference(seen, held.id)
        if held is not None and self.mesh and self._heard_of(held, self.mesh.moved(now_ns)):
            mine = neighbours.up_to_date(mine, held.id, self.rules.election.lost_ns)
        self.status.neighbours = len(mine)
        damping = DAMPING
        if self._compare and self.mesh is not None and mine:
            # We may have been without them for long, and they do not come to meet us.
            self._compare, damping = False, 1.0
            mesh = self.mesh.moved(now_ns)
            off = min(abs(view.mesh.ahead(now_ns, mesh.ns) - mesh.part) for view in mine)
            if off > self.rules.apart_ns:
                self.mesh = None
        if self.mesh is None:
            if mine:
                self.mesh = mine[0].mesh
                self._pull(mine, now_ns, 1.0)
                self._join(now_ns)
            return
        self.mesh = self.mesh.moved(now_ns)
        if mine:
            self._pull(mine, now_ns, damping)
        elif self._calm is not None and held is not None and not self.election.is_reference:
            self.mesh = self.mesh._replace(slope=self._calm - held.slope)

    def _pull(self, seen: list[View], now_ns: int, damping: float) -> None:
        assert self.mesh is not None
        pulls, (_, ns, part, slope) = [], self.mesh
        for edge, _, _, mesh, weight, _ in seen:
            off = mesh.ahead(now_ns, ns) - part
            pulls.append(Pull(off, mesh.slope - slope, weight))
            # A way that became longer while it was watched is known, and its line right again.
            pair = edge.pair
            if pair is not None and now_ns - pair.at_ns <= TELLING_NS:
                edge.surplus.look(off + pair.skew_ns, now_ns)
        move = step(pulls, damping)
        self.status.residual_ns, self.status.offset_ns = move.residual_ns, move.ns / damping
        self.mesh = self.mesh.moved(now_ns, move.ns, self.mesh.slope + move.faster)

    # -- the bound, and the page --------------------------------------------------------------

    def _known(self, fabric: Linear, held: Reference, seen: list[View]) -> Known | None:
        off = self.stamps_off_ns
        if self.election.is_reference:
            return self._bounds.of_reference(fabric, held, off)
        found = sights(seen, held, self._bounds, fabric.at_ns, off)
        return self._bounds.look(fabric, held, found)

    def _line(self, seen: list[View], now_ns: int) -> Line:
        status, rules, held = self.status, self.rules, self.election.reference
        fabric = self.fabric(now_ns)
        known = self._known(fabric, held, seen) if fabric and held else None
        status.is_reference, status.epoch = self.election.is_reference, self.epoch
        status.takeovers, status.lost = self.election.takeovers, self.election.lost
        if fabric is None or held is None or known is None:
            status.state, status.bound_ns, status.reference = State.UNSYNCED, math.inf, 0
            return NOTHING
        alive = self.mesh is not None and self.election.alive(held, self.mesh.moved(now_ns).ns)
        heard = status.is_reference or (bool(status.neighbours) and alive)
        current = (known.reference, known.term) == (held.id, held.term & 0xFF)
        if not status.is_reference and now_ns - self._joined_ns < rules.settled_ns:
            status.state = State.UNSYNCED
        else:
            status.state = State.LOCKED if heard and current else State.HOLDOVER
        if status.state is State.LOCKED:
            self._root_ns = (
                NO_DELAY_NS if self.election.is_reference else neighbours.root_delay(seen, held.id)
            )
            self._locked_ns = now_ns if self._locked_ns is None else self._locked_ns
            self._smooth(fabric.slope, now_ns)
        else:
            self._locked_ns = None
        status.bound_ns, status.reference = known.bound_ns, known.reference
        status.skew = known.drift
        status.root_delay_ns = 0.0 if status.is_reference else self._root_ns or None
        status.slope = fabric.slope if self._calm is None else self._calm
        # Parts of a nanosecond are left out twice, here and at the reference: line and reading.
        return Line(
            raw_ns=now_ns, fabric_ns=fabric.ns, slope=fabric.slope, bound_ns=known.bound_ns + 2.0,
            drift=known.drift, wander=rules.wander, fresh_ns=rules.fresh_ns, end_ns=rules.end_ns,
            state=status.state, reference=known.reference, epoch=self.epoch,
        )  # fmt: skip

    def _smooth(self, slope: float, now_ns: int) -> None:
        if self._calm is None:
            self._calm = slope
        share = min(1.0, (now_ns - self._stepped_ns) / self.rules.calm_ns)
        self._calm += share * (slope - self._calm)
