"""Neighbours that live by the reference that we follow. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clocksync.neighbours import Edge, View
from clocksync.pair import SECOND
from clocksync.words import Reference

MOST_DELAY_NS = 2.0 * SECOND
"""Of more it is not known: where a reference is gone and nobody took over yet, each step adds."""


def fellows(seen: Iterable[View], reference: int) -> list[View]:
    """Those that follow it too."""
    return [view for view in seen if view.follows == reference]


def up_to_date(mine: Iterable[View], reference: int, lost_ns: int) -> list[View]:
    """Of fellows those that have heard of the reference of late, where we have.

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
        suspect_ns: the most age of a word of a reference that lives.
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
