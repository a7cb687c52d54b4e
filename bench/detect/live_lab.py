"""The labs of the live parts, and what is done to them: faults, compute on every core."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bench.detect.live_pages import PageWatch
from bench.outage import links_up
from fabricd.config.tables import DampingTable
from lab.cluster import Cluster, wait_until
from lab.faults.base import Fault
from lab.topology import Topology, parse_rate

FAST = {"link_interval_ms": 3, "misses": 3}
HOLD = {"hold_down_s": 0.3, "probation_s": 0.3}
# Faults of one bench come much faster than in life: keep the damping from adding to each return.
DAMPING = {"suppress": 1_000_000, "reuse": 1000, "second_tier_flaps": 1_000_000}
# Many links have just had a fault here, and count as taken by probes for ten seconds.
STEER = {"max_probe_share": 1.0}
CARRYING = frozenset({"UP", "PROBATION", "SUSPECT", "DEGRADED"})
OUT = frozenset({"DOWN"})
RETURN_S = 20.0
SAID_S = 0.5
Struck = tuple[str, int, float | None]
"""The target of a fault, when it was asked for (ns), and the milliseconds from then to DOWN on its
host's page; None: not while the fault lasted."""


@contextmanager
def lab(
    name: str,
    *,
    hosts: int,
    rails: int,
    probe: Mapping[str, Any] | None = None,
    life: bool = False,
) -> Iterator[tuple[Cluster, PageWatch]]:
    """A lab of 500 Mbit/s rails whose daemons say UP of every link, and the watch on its pages.

    ``life``: damping, hold-down and shares are those of the default configuration.
    """
    tables: dict[str, Any] = {"probe": dict(probe or {})}
    if life:
        # The lab's own configuration sets no limit.
        tables["damping"] = {"max_transitions": DampingTable().max_transitions}
    else:
        tables |= {"hold": HOLD, "damping": DAMPING, "steer": STEER}
    topology = Topology(f"detect-{name}", hosts=hosts, rails=rails, rate_bps=parse_rate("500mbit"))
    with Cluster(topology=topology) as cluster:
        cluster.start_daemons(restart=False, **tables)
        wait_until(lambda: links_up(cluster), 30, "all links UP")
        with PageWatch(cluster) as watch:
            yield cluster, watch


@contextmanager
def compute(cores: int | None = None) -> Iterator[None]:
    """Matrix products on every core, at the priority that a training job has."""
    number = cores or os.cpu_count() or 1
    words = ["stress-ng", "--cpu", str(number), "--cpu-method", "matrixprod", "--quiet"]
    with running(words):
        yield


@contextmanager
def running(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program of the machine (not of a host) until the block ends, with all its children."""
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, 15)
        process.wait()


def strike(
    cluster: Cluster,
    watch: PageWatch,
    targets: Sequence[str],
    make: Callable[[str], Fault],
    count: int,
    *,
    lasts_s: float,
    ready: Callable[[str], bool] = lambda _: True,
    seed: int = 1,
) -> list[Struck]:
    """``count`` faults in turn over the targets, each at a random moment after its rail is back."""
    dice = random.Random(seed)
    struck: list[Struck] = []
    for target in itertools.islice(itertools.cycle(targets), count):
        host, netdev = target.split(":")
        wait_until(
            lambda host=host, netdev=netdev, target=target: (  # type: ignore[misc]
                watch.state(host, netdev) in CARRYING and ready(target)
            ),
            RETURN_S,
            f"the return of {target}",
        )
        # A random phase against the probes' grid and the daemons' own ticks.
        time.sleep(dice.uniform(0.02, 0.08))
        fault = make(target)
        with cluster.inject(fault):
            began = fault.started_ns
            time.sleep(lasts_s)
        ended = time.monotonic_ns()
        # The page is dated by the watcher; its word may come late to this process.
        seen = watch.first(host, netdev, OUT, began, SAID_S)
        met = seen is not None and seen.t_ns < ended
        struck.append((target, began, (seen.t_ns - began) / 1e6 if seen and met else None))
    return struck
