"""Which of the located faults concern one link: on it, or at the far ends of its paths. Pure.

A host places faults anywhere in the fabric. On a page about one link a fault of another one
misleads: somebody would replace the wrong cable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fabricd.detect.locate import ANY_SPINE, Blame, Kind, Port, Topology, port_name

if TYPE_CHECKING:
    from fabricd.detect.localization import Localization
    from fabricd.engine import Engine
    from fabricd.state.model import Link


def link_places(
    where: Localization, engine: Engine, host: str, link: Link
) -> tuple[list[Blame], list[Blame]]:
    """Faults of a link, and apart from them those at the other ends of its paths.

    Args:
        where: what is located now.
        engine: whose link it is.
        host: its name.
        link: of the engine.
    """
    losing = where.losing.get(link.index)
    named = [*where.places.now, *([losing] if losing else ()), *where.losing_elsewhere]
    ends = {(p.spec.peer, p.spec.peer_rail) for p in engine.paths if p.spec.link == link.index}
    place = LinkPlace((host, link.rail), ends, where.places.topology)
    return place.here(named), place.beyond(named)


class LinkPlace:
    """Where one link is, and where its paths lead."""

    def __init__(self, own: Port, ends: Iterable[Port], topology: Topology) -> None:
        """Set it up.

        Args:
            own: the link's port.
            ends: the ports at the other ends of its paths.
            topology: which leaf each port is on.
        """
        self._own, self._ends = own, frozenset(ends)
        leaf = topology.leaf(own)
        self._leaf = leaf
        self._far_leaves = {topology.leaf(end) for end in self._ends} - {leaf}
        self._spines = {"-".join(sorted((leaf, far))) for far in self._far_leaves}
        if self._spines:
            self._spines.add(ANY_SPINE)

    def here(self, blames: Sequence[Blame]) -> list[Blame]:
        """Faults of this link, or of what all of its traffic passes."""
        return [blame for blame in blames if any(self._is_here(*one) for one in _names(blame))]

    def beyond(self, blames: Sequence[Blame]) -> list[Blame]:
        """Faults at the far ends of its paths: other hosts' links, and these hosts themselves."""
        return [
            blame
            for blame in blames
            if blame.kind is not Kind.UNKNOWN and self._is_beyond(blame.kind, blame.element)
        ]

    def _is_here(self, kind: Kind, element: str) -> bool:
        own = port_name(self._own)
        if kind is Kind.LINK:
            return element == own
        if kind is Kind.HOST:
            return element == self._own[0]
        if kind is Kind.LEAF:
            return element == self._leaf
        if kind is Kind.SPINE:
            return element in self._spines
        ends = {name for end in self._ends for name in _pairs(own, port_name(end))}
        return kind is Kind.PATH and element in ends

    def _is_beyond(self, kind: Kind, element: str) -> bool:
        if kind is Kind.LINK:
            return element in {port_name(end) for end in self._ends}
        if kind is Kind.HOST:
            return element in {host for host, _ in self._ends} - {self._own[0]}
        return kind is Kind.LEAF and element in self._far_leaves


def _names(blame: Blame) -> list[tuple[Kind, str]]:
    """What it may be: the element, or the candidates where that is not known."""
    if blame.kind is Kind.UNKNOWN:
        return [(kind, element) for kind, element, _ in blame.candidates]
    return [(blame.kind, blame.element)]


def _pairs(one: str, other: str) -> tuple[str, str]:
    return f"{one}-{other}", f"{other}-{one}"
