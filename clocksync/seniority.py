"""Which of two meshes their hosts end up in where they meet: the one that has lasted longer. Pure.

How long it has is counted in mesh time, so no wall clock has a say: a host whose date is wrong may
begin a mesh of its own, but one of yesterday's wins, and the many do not change over for the one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from clocksync.pair import SECOND
from clocksync.words import Gauge

ALIKE_NS: Final = SECOND
"""Meshes that began so close to each other are told apart by their founders: what is heard of an
age is as old as the word that says it, a tenth of a second and what the packet took."""


def senior(
    own: Gauge | None, own_age_ns: int | None, heard: Iterable[tuple[Gauge, int]]
) -> Gauge | None:
    """The mesh to be in.

    Args:
        own: that of this host.
        own_age_ns: its mesh time since the mesh began; None: it has none yet, and goes by what is
            heard.
        heard: meshes of the neighbours that are heard now, and how old they are by their words.

    Returns:
        ``own`` if no other is senior; None if there is none.
    """
    ages: dict[Gauge, int] = {}
    for gauge, age in heard:
        # Of two neighbours that do not agree the one that says less.
        ages[gauge] = min(age, ages.get(gauge, age))
    if own is not None and own_age_ns is not None:
        ages[own] = own_age_ns
    if not ages:
        return own
    oldest = max(ages.values())
    alike = (gauge for gauge, age in ages.items() if oldest - age <= ALIKE_NS)
    return min(alike, key=lambda gauge: (gauge.founder, gauge.founded_ns))
