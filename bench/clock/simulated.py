"""Errors of pairs and of the mesh on a Clos in virtual time; what mesh and fit take."""

from __future__ import annotations

import itertools
import time

import numpy as np

from bench.clock.clos import Fabric, Load
from bench.clock.least_squares import Floats, Graph, solve
from bench.clock.membership import AFTER_S, NEAR_NS
from bench.report import Row
from clocksync.mesh.solver import Pull, step
from clocksync.pair.fit import Cloud, fit
from clocksync.pair.model import SECOND

HOSTS, DEGREE = 128, 10
LOADS = (0.0, 0.4, 0.8, 0.9)
DEGREES = (2, 4, 10, 20)
MEDIAN_NS, MOST_NS = 5.0, 20.0
SETTLE_S = 12
"""Windows have grown as long as they get."""
MANY, FEWER = 2000, 500
SHARE, SCALE_S = 0.4, 4
"""Load of the ports, and how long the paths are looked at; a window is 2 s."""
GROWN = 1.2
"""So much more at most: "independent of N", and 200,000 pairs of hosts are a sample."""
SOLVE_S = 1.0
START_NS = 1000.0
"""How far apart hosts begin (standard deviation), whose own steps are to lead to the solution."""
FIT_MS = 0.5
POINTS = 400
"""Of a direction: 2 s of 100 trains, of which second and third are points."""


def _errors(
    seed: int, degree: int, load: Load, seconds: int
) -> tuple[list[float], list[float], float]:
    """Of each pair, and of any two hosts after the mesh, once a second; ns.

    And the share of the pairs that had no estimate: they are in neither.
    """
    fabric = Fabric(seed, HOSTS, degree, load, seconds + SETTLE_S + 1)
    for _ in range(SETTLE_S):
        fabric.run(1.0)
    pairs: list[float] = []
    mesh: list[float] = []
    asked = 0
    one, other = np.triu_indices(HOSTS, 1)
    for _ in range(seconds):
        found = fabric.run(1.0)
        asked += len(found)
        pairs += [abs(error) for pair, error in found if pair is not None]
        left = solve(fabric.graph(found)).offset_ns
        mesh += np.abs(left[one] - left[other]).tolist()
    return pairs, mesh, 1 - len(pairs) / asked


def clos(*, quick: bool) -> list[Row]:
    """The table in the shape of Huygens's: pairs and mesh, by degree and load."""
    seconds = 1 if quick else 4
    rows: list[Row] = []
    worst = 0.0
    degrees, loads = ((DEGREE,), LOADS[::3]) if quick else (DEGREES, LOADS)
    cases = itertools.product(degrees, (True, False), loads)
    for degree, own, share in cases:
        pairs, mesh, silent = _errors(1, degree, Load(share, own_class=own), seconds)
        behind = "in a class of their own" if own else "behind the load"
        name = f"Clos of {HOSTS}, degree {degree}, load {100 * share:.0f} %, probes {behind}"
        said = ", ".join(f"{q} {np.percentile(pairs, q):.1f}" for q in (50, 99))
        note = f"pairs alone: {said} ns; without an estimate: {100 * silent:.1f} %"
        asked = degree == DEGREE
        rows += [
            Row(f"{name}: median after the mesh", MEDIAN_NS if asked else None,
                float(np.median(mesh)), "ns", note=note),
            Row(f"{name}: p99 after the mesh", MOST_NS if asked else None,
                float(np.percentile(mesh, 99)), "ns"),
        ]  # fmt: skip
        worst = max(worst, silent)
    rows.append(Row("pairs without an estimate, at worst", 1.0, 100 * worst, "%"))
    return rows


def stepped(graph: Graph, offset_ns: Floats, steps: int) -> Floats:
    """Where hosts' own steps lead to, each by its neighbours alone and all at once.

    A host runs `clocksync.mesh.solver.step`; `bench.clock.least_squares.solve` has the whole graph.

    Args:
        graph: hosts and paths.
        offset_ns: shape (hosts,): where they begin.
        steps: ten a second.
    """
    ends: list[list[tuple[int, float, float]]] = [[] for _ in range(graph.clocks)]
    columns = graph.one.tolist(), graph.other.tolist(), graph.apart_ns.tolist()
    for one, other, apart, weight in zip(*columns, graph.weight.tolist(), strict=True):
        ends[one].append((other, -apart, weight))
        ends[other].append((one, apart, weight))
    now = offset_ns.tolist()
    for _ in range(steps):
        now = [
            own
            + step([Pull(now[peer] + more - own, 0.0, weight) for peer, more, weight in each]).ns
            for own, each in zip(now, ends, strict=True)
        ]
    return np.array(now)


def scale(*, quick: bool) -> list[Row]:
    """The mesh of many hosts beside that of 128, each on a Clos of its own size."""
    many = FEWER if quick else MANY
    rng = np.random.default_rng(4)
    seen: dict[int, tuple[float, float]] = {}
    took = worst = 0.0
    for hosts in (HOSTS, many):
        fabric = Fabric(2, hosts, DEGREE, Load(SHARE), SCALE_S + 1)
        for _ in range(SCALE_S - 1):
            fabric.run(1.0)
        graph = fabric.graph(fabric.run(1.0))
        times = []
        for _ in range(5):
            began = time.process_time()
            solve(graph)
            times.append(time.process_time() - began)
        took, left = float(np.median(times)), solve(graph).offset_ns
        one, other = rng.integers(0, hosts, (2, 200_000))
        apart = np.abs(left[one] - left[other])[one != other]
        seen[hosts] = float(np.median(apart)), float(np.percentile(apart, 99))
        begun = rng.normal(0, START_NS, hosts)
        far = stepped(graph, begun, round(10 * AFTER_S)) - left
        worst = float(np.abs(far - far.mean()).max())
    small, large = seen[HOSTS], seen[many]
    note = (
        f"at a load of {100 * SHARE:.0f} %, any two hosts, p50 / p99: {HOSTS} hosts "
        f"{small[0]:.1f} / {small[1]:.1f} ns, {many} hosts {large[0]:.1f} / {large[1]:.1f} ns"
    )
    name = f"Clos of {many}, degree {DEGREE}"
    return [
        Row(f"{name}: solve", SOLVE_S, took, "s of CPU"),
        Row(f"{name}: p99 after the mesh as a part of that of {HOSTS}", GROWN,
            large[1] / small[1], "", note=note),
        Row(f"{name}: farthest host from that solution after {AFTER_S:g} s of their own steps",
            NEAR_NS, worst, "ns", note=f"{START_NS:.0f} ns off it at first (standard deviation)"),
    ]  # fmt: skip


def fitting(*, quick: bool) -> list[Row]:
    """A line of one path's window."""
    rng = np.random.default_rng(3)
    times = []
    guess = 0.0
    for _ in range(50 if quick else 500):
        clouds = []
        for sign in (1, -1):
            at = np.sort(rng.uniform(-1, 1, POINTS))
            queue = np.where(rng.random(POINTS) < 0.6, rng.exponential(5e3, POINTS), 0)
            delay = 5000 + np.abs(rng.normal(0, 15, POINTS)) + queue
            clouds.append(Cloud(at, 21e-6 * 1e9 * at + sign * delay))
        began = time.process_time()
        line = fit(clouds[0], clouds[1], (0.05, 0.05), guess)
        times.append(1e3 * (time.process_time() - began))
        guess = line.slope if line else 0.0
    note = f"2 x {POINTS} points, p99 {np.percentile(times, 99):.2f} ms"
    rows = [Row("fit of a path's window", FIT_MS, float(np.median(times)), "ms of CPU", note=note)]
    for share in (0.0, 0.9):
        times, window = _estimates(share, 2 if quick else 10)
        name = f"all that a path takes, load {100 * share:.0f} %"
        note = f"windows of {window:.0f} s, p99 {np.percentile(times, 99):.2f} ms"
        rows.append(Row(name, FIT_MS, float(np.median(times)), "ms of CPU", note=note))
    return rows


def _estimates(share: float, seconds: int) -> tuple[list[float], float]:
    """What an estimate takes, in ms, of paths whose windows have grown; and those in s."""
    fabric = Fabric(3, 32, 4, Load(share), SETTLE_S + seconds + 1)
    for _ in range(SETTLE_S):
        fabric.run(1.0)
    windows, times = [], []
    for _ in range(seconds):
        fabric.run(1.0)
        for (one, _), estimator in zip(fabric.pairs, fabric.estimators, strict=True):
            now = round(fabric.now_s * SECOND + float(fabric.clocks.ahead(one, fabric.now_s)))
            began = time.process_time()
            pair = estimator.estimate(now)
            times.append(1e3 * (time.process_time() - began))
            windows += [pair.window_ns] if pair else []
    return times, float(np.median(windows)) / SECOND
