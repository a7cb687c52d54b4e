"""From differences between pairs of clocks to one time for all of them. Pure.

Each path says how far its two clocks are apart, with a weight (one over the variance). All paths
together say it more than once: around a loop the differences must add up to nothing, and what is
left over (the loop's surplus) is error. The least-squares solution spreads it over the paths by
weight, and with many loops most of it goes away (Huygens, Geng et al., NSDI 2018, section 4.3).

*Gauge.* Differences leave one constant per connected part open. The solution here is that of
minimum norm: each part's offsets have a mean of zero, so no clock is special, none has to survive,
and an error of one pair stays near it. Whoever wants a reference subtracts its offset.

*Two ways to the same solution.* ``solve`` has the whole graph and uses conjugate gradients on its
Laplacian: simulator and tests have it, to say where a mesh is to end up. ``step`` is what each
host does (`clocksync.host`) with its neighbours' words alone, ten times a second: a damped Jacobi
step on the same equations, which leads there. Offsets that all hosts share fall out of the
differences, so nobody has to wait for a reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

DAMPING = 0.7
"""Share of the way that a step goes. At 1 two clocks would change places for ever (as would any
bipartite graph): each step multiplies their difference by 1 - 2 x 0.7. Of a random graph of degree
10, whose slowest part has an eigenvalue of 0.4, a step leaves 1 - 0.4 x 0.7 = 0.72."""
EXACT = 1e-12
"""Conjugate gradients end when what is left is so small a part of what there was."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Clocks and the paths between them; each path once."""

    clocks: int
    one: Ints
    """Shape (m,): index of the clock at the near end."""
    other: Ints
    """Shape (m,): at the far end."""
    apart_ns: Floats
    """Shape (m,): the far clock minus the near one, as the path's fit says."""
    weight: Floats
    """Shape (m,): positive; one over the variance in ns²."""

    def __post_init__(self) -> None:
        """Raises ValueError when the columns do not fit together."""
        lengths = {len(self.one), len(self.other), len(self.apart_ns), len(self.weight)}
        if len(lengths) != 1:
            raise ValueError("columns of different lengths")
        if len(self.one) and not (
            min(self.one.min(), self.other.min()) >= 0
            and max(self.one.max(), self.other.max()) < self.clocks
        ):
            raise ValueError("a path to a clock that is not there")
        finite = np.isfinite(self.apart_ns).all() and np.isfinite(self.weight).all()
        if not (finite and (self.weight > 0).all()):
            raise ValueError("offsets must be finite and weights finite and positive")


class Solution(NamedTuple):
    """What the mesh says."""

    offset_ns: Floats
    """Shape (clocks,): of each clock from the mean of its part of the mesh; positive: ahead."""
    part: Ints
    """Shape (clocks,): which connected part each clock is in, from 0."""
    surplus_ns: Floats
    """Shape (m,): what each path says beyond what the solution says. One that stays belongs to a
    path whose two directions differ."""


def parts(graph: Graph) -> Ints:
    """The connected part of each clock, numbered from 0 in the order of their first clocks."""
    label = np.arange(graph.clocks)
    while True:
        least = np.minimum(label[graph.one], label[graph.other])
        new = label.copy()
        np.minimum.at(new, graph.one, least)
        np.minimum.at(new, graph.other, least)
        new = new[new]  # pointer jumping: a chain of n takes log n rounds
        if (new == label).all():
            break
        label = new
    return np.unique(label, return_inverse=True)[1].astype(np.intp)


def solve(graph: Graph) -> Solution:
    """The weighted least-squares offsets of minimum norm.

    Conjugate gradients find it in some dozens of steps on a random graph, whatever its size
    (Hestenes and Stiefel, 1952); a start at zero keeps them in the space of zero means.
    """
    part = parts(graph)
    one, other, weight = graph.one, graph.other, graph.weight

    def gather(flow: Floats) -> Floats:
        """What flows along the paths, summed up at each clock."""
        n = graph.clocks
        return np.bincount(other, flow, n).astype(float) - np.bincount(one, flow, n)

    def laplacian(x: Floats) -> Floats:
        return gather(weight * (x[other] - x[one]))

    offset = np.zeros(graph.clocks)
    rest = gather(weight * graph.apart_ns)
    direction, size = rest.copy(), float(rest @ rest)
    goal = size * EXACT**2
    for _ in range(10 * graph.clocks + 10):
        if size <= goal:
            break
        image = laplacian(direction)
        far = size / float(direction @ image)
        offset += far * direction
        rest -= far * image
        after = float(rest @ rest)
        direction = rest + after / size * direction
        size = after
    counts = np.bincount(part)
    offset -= (np.bincount(part, offset) / counts)[part]
    return Solution(offset, part, graph.apart_ns - (offset[other] - offset[one]))


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
        damping: see ``DAMPING``; 1 for a host that has just come: it takes its neighbours' word as
            it is, so that it is off by paths' errors and no longer by its clock's.
    """
    total = wanted = faster = residual = 0.0
    for pull in pulls:
        total += pull.weight
        wanted += pull.weight * pull.off_ns
        faster += pull.weight * pull.faster
        residual += pull.weight * abs(pull.off_ns)
    return Move(damping * wanted / total, damping * faster / total, residual / total)
