"""The offsets of all clocks of a mesh from the whole graph: where the hosts' own steps are to lead.

Differences leave one constant per connected part open. The solution is that of minimum norm: each
part's offsets have a mean of zero. Compare `clocksync.mesh.solver.step`, which each host runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

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
