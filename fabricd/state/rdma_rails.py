"""RDMA on each link and path: state machines of their own, beside those of links and paths. Pure.

What is hard (no carrier, a verbs port that is not active, an operator) is of the link, and holds
for both transports. What probes say is of the transport that they came over:

* UDP probes missing and RDMA probes heard: IP is broken. The link is DOWN, RDMA keeps its weight.
* RDMA probes missing and UDP probes heard: RDMA is broken. The link stays UP, RDMA has no weight.

Until RDMA was heard on a link or path nothing is known of it there, and its weight is that of IP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fabricd.detect.mesh import PathSpec
from fabricd.detect.silence import PathView
from fabricd.detect.verdict import Verdict, healthy, live_peers
from fabricd.links.damping import DampingRules
from fabricd.links.health import Facts, Health, HoldRules
from fabricd.links.machine import CARRYING
from fabricd.operate.effective import EffectiveOverrides
from fabricd.probes.records import EventRecord, HeardRecord, MissRecord
from fabricd.state.evaluation import Change
from fabricd.state.model import BYE, OUT, Link, Path
from telemetry.events import LinkState

GIVEN_UP_NS = 10 * 10**9
"""A prober that restarts, or is configured anew, is back much sooner."""


class RdmaRails:
    """RDMA of one host's links and paths.

    Attributes:
        links: one for each link where RDMA is probed, in the prober's order; ``index`` counts on
            after the links.
        paths: likewise after the paths; ``spec`` is that of the UDP path beside it, with ``link``
            the index of the RDMA link.
    """

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.paths: list[Path] = []
        self.refused: dict[str, str] = {}
        """Netdev → what probes say against its RDMA, though they may not take it."""
        self._beside: list[Link] = []
        """By the position in `links`: the link itself."""
        self._first_link = 0
        self._first_path = 0
        self._blamed: frozenset[int] = frozenset()
        self._off = False
        """An operator switched the detector off."""
        self._lost_ns: int | None = None
        """Since when nobody probes RDMA."""
        self._of_path: dict[int, Path] = {}

    def configure(
        self,
        links: Sequence[Link],
        specs: Sequence[PathSpec],
        probed: Sequence[int],
        rules: tuple[DampingRules, HoldRules],
    ) -> None:
        """Take a configuration; what stays keeps state, penalty and timers.

        Args:
            links: the host's.
            specs: its paths.
            probed: indices of the links where RDMA is probed, in the prober's order.
            rules: of damping and of the way back.
        """
        damping, hold = rules
        old_links = {x.netdev: x for x in self.links}
        old_paths = {p.key: p for p in self.paths}
        self._first_link, self._first_path = len(links), len(specs)
        self._beside = [links[index] for index in probed]
        self.links, self.paths, self._of_path = [], [], {}
        for index, beside in enumerate(self._beside, self._first_link):
            link = old_links.get(beside.netdev) or Link(
                index, beside.netdev, beside.rail, Health(damping, hold)
            )
            link.index, link.rail = index, beside.rail
            self.links.append(link)
            for number, spec in enumerate(specs):
                if spec.link == beside.index:
                    self._add_path(number, spec, link, old_paths, rules)
        for health in [x.health for x in self.links] + [p.health for p in self.paths]:
            health.hold, health.damping.rules = hold, damping
        self._blamed = frozenset()

    def _add_path(
        self,
        number: int,
        spec: PathSpec,
        link: Link,
        old: Mapping[str, Path],
        rules: tuple[DampingRules, HoldRules],
    ) -> None:
        index = self._first_path + len(self.paths)
        own = PathSpec(link.index, spec.peer, spec.peer_rail, spec.address, spec.others)
        path = Path(index, own, link.netdev, Health(*rules))
        if (known := old.get(path.key)) is not None:
            path.health, path.heard_ever, path.gone = known.health, known.heard_ever, known.gone
        self.paths.append(path)
        self._of_path[number] = path

    def link(self, netdev: str) -> Link | None:
        """RDMA of one link; None: it is not probed there."""
        return next((x for x in self.links if x.netdev == netdev), None)

    def link_state(self, link: Link) -> LinkState | None:
        """State of RDMA on a link; None: nothing is known of it."""
        rdma = self.link(link.netdev)
        if rdma is None or self._off or rdma.health.state is LinkState.UNKNOWN:
            return None
        return rdma.health.state

    def path_state(self, path: Path) -> LinkState | None:
        """State of RDMA on a UDP path's way; None: nothing is known of it."""
        rdma = self._of_path.get(path.index)
        if rdma is None or rdma.gone or self._off or rdma.health.state is LinkState.UNKNOWN:
            return None
        return rdma.health.state

    def alone(self, link: Link) -> bool:
        """Whether a link is out by what UDP probes say alone, and RDMA probes are heard on it."""
        state = self.link_state(link)
        hard = link.carrier is False or link.port_active is False or link.mtu or link.unseen
        return link.out and link.by_probes and not hard and state in CARRYING

    def beside(self, index: int) -> Link | None:
        """The link beside which an RDMA link stands, by the index of that."""
        position = index - self._first_link
        return self._beside[position] if 0 <= position < len(self._beside) else None

    def matters(self, record: EventRecord) -> bool:
        """Whether a record of an RDMA link may take RDMA from a link or path that has it."""
        if isinstance(record, HeardRecord):
            return False
        if not isinstance(record, MissRecord):
            return True
        states = [x.health.state for x in self.links if x.index == record.link]
        states += [p.health.state for p in self.paths if p.index == record.path]
        return not any(state in OUT for state in states)

    def in_outage(self, path: Path) -> bool:
        """Whether an RDMA path, RDMA on its link, or the link itself is out."""
        position = path.spec.link - self._first_link
        link, beside = self.links[position], self._beside[position]
        healths = (path.health, link.health, beside.health)
        return any(x.state in OUT for x in healths) or beside.carrier is False

    def evaluate(
        self,
        verdict: Verdict,
        views: Sequence[PathView],
        rdma: Sequence[PathView],
        overrides: EffectiveOverrides,
        now: int,
        share: float,
    ) -> list[Change]:
        """Judge RDMA; returns the transitions.

        Args:
            verdict: of all paths, RDMA paths by their own indices.
            views: of the UDP paths; empty: there is no prober.
            rdma: of the RDMA paths; empty: there is no prober, or it knows no RDMA.
            overrides: of the operator.
            now: CLOCK_MONOTONIC ns.
            share: of the rails from which probes may take RDMA.
        """
        done: list[Change] = []
        rdma = rdma if len(rdma) == len(self.paths) else ()
        self._give_up(now, probed=bool(rdma))
        self._off = not overrides.uses_rdma
        for view in rdma:
            path = self.paths[view.index - self._first_path]
            path.heard_ever |= view.heard
            path.gone = view.gone
        self._blamed = frozenset(x.index for x in self.links if x.index in verdict.link_faults)
        self.refused = {}
        everyone = [*views, *rdma]
        for link, beside in zip(self.links, self._beside, strict=True):
            facts = self._link_facts(link, beside, verdict, everyone, overrides, share)
            done += [
                Change(link.netdev, link.rail, "", "", step, rdma=True)
                for step in link.health.update(facts, now)
            ]
        for path in self.paths:
            seen = rdma[path.index - self._first_path] if rdma else None
            if seen is not None and seen.clean and path.health.state is LinkState.UP:
                continue  # the usual case: nothing to do
            facts = self._path_facts(path, seen, verdict)
            rail = self.links[path.spec.link - self._first_link].rail
            done += [
                Change(path.netdev, rail, path.spec.peer, path.spec.address, step, rdma=True)
                for step in path.health.update(facts, now)
            ]
        return done

    def _give_up(self, now: int, *, probed: bool) -> None:
        """Know nothing of RDMA any more when nobody has probed it for long."""
        if probed or not self.paths:
            self._lost_ns = None
        elif self._lost_ns is None:
            self._lost_ns = now
        elif now - self._lost_ns >= GIVEN_UP_NS:
            items: list[Link | Path] = [*self.links, *self.paths]
            for item in items:
                if item.health.state is not LinkState.UNKNOWN:
                    item.health = Health(item.health.damping.rules, item.health.hold)

    def due_at(self) -> int | None:
        """When to evaluate again though nothing happens (ns); None: never."""
        due = [x.health.due_at() for x in self.links] + [p.health.due_at() for p in self.paths]
        if self._lost_ns is not None:
            due.append(self._lost_ns + GIVEN_UP_NS)
        return min((at for at in due if at is not None), default=None)

    def _link_facts(
        self,
        link: Link,
        beside: Link,
        verdict: Verdict,
        views: Sequence[PathView],
        overrides: EffectiveOverrides,
        share: float,
    ) -> Facts:
        own = [v for v in views if v.link == link.index]
        heard = any(v.heard for v in own)
        nothing = Facts(carrier=None, clean=False)
        if not own or self._off:
            return nothing
        hard = beside.carrier is False or beside.port_active is False or not beside.admin_up
        if hard or (beside.out and beside.health.fault_was_hard):
            return nothing  # The link's own state says it; this one stays as it was.
        known = [p.index for p in self.paths if p.heard_ever and p.spec.link == link.index]
        fault = verdict.link_faults.get(link.index, "")
        if fault and link.health.state not in OUT and not self._may_take(link, share):
            self.refused[link.netdev] = fault
            return Facts(carrier=heard or None, suspect=fault, clean=False, seen="heard")
        return Facts(
            carrier=heard or None if link.health.state is LinkState.UNKNOWN else True,
            fault=fault,
            suspect=verdict.link_suspects.get(link.index, ""),
            clean=healthy(own, known, live_peers(views, link.index)),
            planned=link.netdev in overrides.planned,
            seen="heard",
        )

    def _may_take(self, link: Link, share: float) -> bool:
        """Whether probes may take RDMA from this link too; TCP carries where none is left."""
        taken = sum(x.out for x in self.links if x is not link)
        return taken + 1 <= share * len(self.links)

    def _path_facts(self, path: Path, view: PathView | None, verdict: Verdict) -> Facts:
        if view is None or self._off:
            return Facts(carrier=None, clean=False)
        if path.gone and path.health.state not in (LinkState.UP, LinkState.UNKNOWN):
            return Facts(admin_up=False, drained=BYE)
        position = path.spec.link - self._first_link
        link, beside = self.links[position], self._beside[position]
        # While the link, or RDMA on all of it, is out, its paths keep the state they had.
        mute = link.index in self._blamed or link.health.state not in CARRYING
        mute = mute or beside.carrier is False or beside.port_active is False
        return Facts(
            carrier=view.heard or None,
            fault="" if mute else verdict.path_faults.get(path.index, ""),
            clean=view.sound,
            seen="heard",
        )

    def save(self, now: int) -> dict[str, Any]:
        """A JSON document for `restore`."""
        return {
            "links": {x.netdev: x.health.save(now) for x in self.links},
            "paths": {p.key: p.health.save(now) for p in self.paths if p.heard_ever},
        }

    def restore(self, document: Any, now: int, elapsed_ns: int) -> list[str]:  # noqa: ANN401
        """Take over what `save` gave ``elapsed_ns`` ago; returns what was not usable."""
        if not isinstance(document, dict):
            return ["rdma"]
        refused = []
        kinds: tuple[tuple[str, Mapping[str, Link | Path]], ...] = (
            ("links", {x.netdev: x for x in self.links}),
            ("paths", {p.key: p for p in self.paths}),
        )
        for kind, items in kinds:
            stored = document.get(kind)
            for key, item in items.items():
                if not isinstance(stored, dict) or key not in stored:
                    continue
                try:
                    item.health.restore(stored[key], now, elapsed_ns)
                    if isinstance(item, Path):
                        item.heard_ever = True
                except (KeyError, TypeError, ValueError, AttributeError):
                    refused.append(f"rdma {kind} {key}")
        return refused
