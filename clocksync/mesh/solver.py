"""From differences between pairs of clocks to one time for all of them. Pure.

Each path says how far its two clocks are apart, with a weight (one over the variance). All paths
together say it more than once: around a loop the differences must add up to 0, and what is left
over (the loop's surplus) is error. The least-squares solution spreads the error over the paths by
weight, and with many loops most of it goes away (Huygens, Geng et al., NSDI 2018, section 4.3).

``step`` is what each host does (`clocksync.mesh.host`) with its neighbours' messages alone, ten
times a
second: a damped Jacobi step on the equations of that solution, which leads there. Offsets that all
hosts share cancel in the differences, so no host waits for a reference. The benchmarks compare it
with the solution of the whole graph (`bench.clock.least_squares`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

DAMPING = 0.7
"""Share of the way that a step goes. At 1 two clocks would change places for ever (as would any
bipartite graph): each step multiplies their difference by 1 - 2 x 0.7. Of a random graph of degree
10, whose slowest part has an eigenvalue of 0.4, a step leaves 1 - 0.4 x 0.7 = 0.72."""


class Pull(NamedTuple):
    """What one path and the host at its other end make of our mesh time."""

    off_ns: float
    """Theirs, seen through the path, less ours."""
    faster: float
    """By so much theirs grows faster, ns/ns."""
    weight: float


class Move(NamedTuple):
    """Where a host's mesh time goes."""

    ns: float
    faster: float
    residual_ns: float
    """How far the neighbours were off, without sign: their weighted mean."""


def step(pulls: Sequence[Pull], damping: float = DAMPING) -> Move:
    """What a host makes of one look at its neighbours, of whom there is one at least.

    Args:
        pulls: one for each path.
        damping: see ``DAMPING``; 1 for a host that has just come: it takes its neighbours' messages
            as they are, so that it is off by paths' errors and no longer by its clock's.
    """
    total = wanted = faster = residual = 0.0
    for pull in pulls:
        total += pull.weight
        wanted += pull.weight * pull.off_ns
        faster += pull.weight * pull.faster
        residual += pull.weight * abs(pull.off_ns)
    return Move(damping * wanted / total, damping * faster / total, residual / total)
