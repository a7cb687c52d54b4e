"""Errors of pairs and of the mesh on a Clos in virtual time; what mesh and fit take."""

from __future__ import annotations

import itertools
import time

import numpy as np

from bench.clock.clos import Fabric, Load, regular_graph
from bench.report import Row
from clocksync.fit import Cloud, fit
from clocksync.mesh import Graph, solve

HOSTS, DEGREE = 128, 10
LOADS = (0.0, 0.4, 0.8, 0.9)
DEGREES = (2, 4, 10, 20)
MEDIAN_NS, MOST_NS = 5.0, 20.0
SETTLE_S = 12
"""Windows have grown as long as they get."""
MANY = 2000
SOLVE_S = 1.0
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


def _pair_errors(seconds: int, hosts: int) -> list[float]:
    """Without sign, of the pairs of a small Clos at a load of 80 %."""
    fabric = Fabric(2, hosts, 4, Load(0.8), seconds + 9)
    for _ in range(8):
        fabric.run(1.0)
    found = [pair for _ in range(seconds) for pair in fabric.run(1.0)]
    return [abs(error) for pair, error in found if pair is not None]


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


def scale(*, quick: bool) -> list[Row]:
    """The mesh of many hosts beside that of 128 with the same errors of pairs."""
    left: dict[int, float] = {}
    took = 0.0
    measured = _pair_errors(4, 30)
    for hosts in (HOSTS, MANY):
        rng = np.random.default_rng(2)
        ends = np.array(regular_graph(rng, hosts, DEGREE), dtype=np.intp)
        error = rng.choice(measured, len(ends)) * rng.choice((-1.0, 1.0), len(ends))
        graph = Graph(hosts, ends[:, 0], ends[:, 1], error, np.ones(len(ends)))
        times = []
        for _ in range(1 if quick else 5):
            began = time.process_time()
            left[hosts] = float(np.std(solve(graph).offset_ns))
            times.append(time.process_time() - began)
        took = float(np.median(times))
    grown = left[MANY] / left[HOSTS]
    note = (
        f"errors of pairs drawn from {len(measured)} of a Clos at a load of 80 % (p50 / p99 "
        f"{np.percentile(measured, 50):.1f} / {np.percentile(measured, 99):.1f} ns): hosts off by "
        f"{left[HOSTS]:.2f} and {left[MANY]:.2f} ns"
    )
    return [
        Row(f"mesh of {MANY} hosts, degree {DEGREE}: solve", SOLVE_S, took, "s"),
        Row(f"error with {MANY} hosts as a part of that with {HOSTS}", 1.1, grown, "", note=note),
    ]


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
    row = Row("fit of a path's window", FIT_MS, float(np.median(times)), "ms of CPU", note=note)
    return [row]
