"""A job's stall: how soon does ``explain job`` of any of its hosts name what holds it up?

The lab of `bench.detect.live_located`, its rails at 100 Mbit/s, and a ring all-reduce of
``fabric-perf`` over all hosts, a new one for each fault. Beside the faults of the lab's catalog a
rank is stopped by a signal: then the network is well and its process is the cause.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from bench.detect.live_located import SIZE, TOGETHER, located_lab, made, well
from bench.detect.located_faults import SORTS, Element, Injected, place, places
from bench.detect.located_score import IN_TIME_S
from bench.detect.stall_score import Stall, causes, longest_still_s, rows
from bench.report import Row
from fabricd.cli.client import DaemonError, request
from lab.cluster import Cluster
from lab.node import Node
from lab.services.perf import Perf

RATE = "100mbit"
WORK = ("--size", "1M", "--channels", "4", "--interval-ms", "50", "--wait", "block")
STEADY_S = 2.0
SETTLED_S = 2.0
LEAST_S = 5.0
ANSWER_S = 5.0

Cause = tuple[Injected, ...] | int
"""Faults that are on at once; or the rank that is stopped."""


def stalls(*, quick: bool) -> list[Row]:
    """Every sort of the catalog, hosts at more places, all rails of a host, stopped ranks."""
    wanted = list(_wanted(1 if quick else 3))
    if quick:
        wanted = wanted[:6]
    left, done = wanted, list[Stall]()
    while left:
        with located_lab(RATE) as cluster:
            for number in range(min(TOGETHER, len(left))):
                if number and not well(cluster):
                    print(f"stalls: not well after {done[-1].faults}: another lab", file=sys.stderr)
                    break
                done.append(_stall(cluster, left.pop(0), number))
                print(_line(done[-1]), file=sys.stderr, flush=True)
    return rows(done)


def _wanted(each: int) -> Iterator[Cause]:
    """What stalls a job first: hosts, ranks, all rails of a host; then each sort of the rest."""
    dice = random.Random("stall 1")
    hosts = [sort for sort in SORTS if sort.part == "host" and sort.whole]
    cable = next(sort for sort in SORTS if sort.word == "carrier")
    for turn in range(each):
        for sort in hosts:
            yield (dice.choice(places(sort, SIZE)),)
        yield dice.randrange(SIZE.hosts)
        host = f"h{dice.randrange(SIZE.hosts)}"
        yield tuple(place(cable, (host, rail), SIZE) for rail in range(SIZE.rails))
        rest = [sort for sort in SORTS if sort not in hosts and not sort.unseen]
        for sort in rest if turn == 0 else ():
            yield (dice.choice(places(sort, SIZE)),)


def _stall(cluster: Cluster, cause: Cause, number: int) -> Stall:
    job = f"located-{number}"
    perf = cluster.start_perf("ring", *WORK, "--duration", "120", name=job)
    try:
        perf.wait_started()
        time.sleep(STEADY_S)
        return _watched(cluster, perf, cause, job)
    finally:
        perf.kill()


def _watched(cluster: Cluster, perf: Perf, cause: Cause, job: str) -> Stall:
    names = _names(cause)
    named: dict[Element, float] = {}
    with _on(cluster, perf, cause) as began, ThreadPoolExecutor(SIZE.hosts) as pool:
        settled: float | None = None
        while True:
            answers = list(pool.map(lambda node: _asked(node, job), cluster.nodes))
            now = (time.monotonic_ns() - began) / 1e9
            for one in frozenset[Element]().union(*answers):
                named.setdefault(one, round(now, 2))
            whole = all(some & named.keys() for some in names)
            settled = (now if settled is None else settled) if whole else None
            if now >= IN_TIME_S or (
                settled is not None and now >= max(LEAST_S, settled + SETTLED_S)
            ):
                break
        end = time.monotonic_ns()
        still = max(
            longest_still_s(_samples(perf, rank), began, end) for rank in range(len(perf.ranks))
        )
    return Stall(_text(cause), names, round(still, 2), named)


def _names(cause: Cause) -> tuple[frozenset[Element], ...]:
    """A stopped rank is its process, or its host where that is all that can be told."""
    if isinstance(cause, int):
        return (frozenset({Element("process", f"h{cause}")}),)
    if len(cause) == SIZE.rails and len({fault.target.split(":")[0] for fault in cause}) == 1:
        # All rails of a host: from elsewhere that is the host, and from there its links.
        host = Element("host", cause[0].target.split(":")[0])
        links = frozenset[Element]().union(*(fault.names for fault in cause))
        return (links | {host},)
    return tuple(fault.names for fault in cause)


def _text(cause: Cause) -> str:
    if isinstance(cause, int):
        return f"stopped rank {cause}"
    return " + ".join(map(str, cause))


@contextmanager
def _on(cluster: Cluster, perf: Perf, cause: Cause) -> Iterator[int]:
    """The faults are on; when they began, CLOCK_MONOTONIC ns."""
    if isinstance(cause, int):
        began = time.monotonic_ns()
        perf.ranks[cause].send_signal(signal.SIGSTOP)
        try:
            yield began
        finally:
            perf.ranks[cause].send_signal(signal.SIGCONT)
        return
    with ExitStack() as stack:
        faults = [cluster.arm(made(fault)) for fault in cause]
        for fault in faults:
            stack.callback(cluster.disarm, fault)
        began = time.monotonic_ns()
        for fault in faults:
            fault.start()
        yield began


def _asked(node: Node, job: str) -> frozenset[Element]:
    """What the host calls the cause; nothing where it does not answer, or has no such job."""
    wanted = {"op": "explain_job", "job": job}
    try:
        return causes(request(node.run_dir / "ctl.sock", wanted, limit_s=ANSWER_S))
    except DaemonError:
        time.sleep(0.2)
        return frozenset()


def _samples(perf: Perf, rank: int) -> Sequence[tuple[int, int]]:
    return [(row["t_ns"], row["bytes"]) for row in perf.rows(rank) if row["type"] == "sample"]


def _line(one: Stall) -> str:
    took = "NEVER" if one.took_s is None else f"after {one.took_s:.1f} s"
    text = f"stalls: {one.faults}: still for {one.still_s:.2f} s, cause named {took}"
    return text + (f"; WRONG {', '.join(sorted(map(str, one.wrong)))}" if one.wrong else "")
