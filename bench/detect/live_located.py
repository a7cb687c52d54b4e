"""Faults of every sort of the lab's catalog, one and two at once: what do all hosts name?

Four hosts with four rails and two spines, prober and daemon on each as they come, but for a short
hold-down and no damping. After an injection all hosts are asked twice a second by their metrics,
until every fault has had its name for `SETTLED_S`, `IN_TIME_S` at most. Then ``explain`` of every
link of every host is asked, and the shipped alert rules are played on what the metrics said
(`bench.detect.located_alerts`). What is right: `bench.detect.located_faults`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.detect.live_lab import DAMPING, HOLD, STEER
from bench.detect.located_alerts import fired, misleading
from bench.detect.located_faults import Element, Injected, Size, pairs, singles
from bench.detect.located_score import (
    IN_TIME_S,
    Said,
    Trial,
    explained,
    is_unsure,
    rows,
    said,
    series,
)
from bench.outage import links_up
from bench.report import Row
from fabricd.cli.client import DaemonError, request
from lab.cluster import Cluster, wait_until
from lab.faults import catalog
from lab.faults.base import Direction, Fault
from lab.node import Node
from lab.topology import Topology, parse_rate

SIZE = Size(hosts=4, rails=4)
PORT = 19200
START_S = 120.0
WARM_S = 8.0
"""Of a lab before its first fault."""
LEAST_S = 6.0
"""A place is told after some three seconds, and what comes after the first is seen, too."""
SETTLED_S = 3.0
LOOK_S = 0.5
ANSWER_S = 2.0
WELL_S = 120.0
TOGETHER = 12
"""Trials in one lab: what an earlier one left behind is met, and does not pile up."""
FLAP_MS = 400.0


def located(*, quick: bool) -> list[Row]:
    """Each sort at two places and forty drawn pairs; quick: some of both."""
    each, drawn = (1, 5) if quick else (2, 40)
    alone = [(fault,) for fault in singles(SIZE, each, seed=1)]
    if quick:
        alone = alone[::3]
    both = pairs(SIZE, drawn, seed=1)
    return rows(_trials(alone), _trials(both))


def _trials(wanted: Sequence[tuple[Injected, ...]]) -> list[Trial]:
    """All of them, in as many labs as it takes."""
    left, done = list(wanted), list[Trial]()
    while left:
        with located_lab() as cluster:
            for number in range(min(TOGETHER, len(left))):
                if number and not well(cluster):
                    print(f"located: not well after {done[-1]}: another lab", file=sys.stderr)
                    break
                done.append(_trial(cluster, left.pop(0)))
                print(_line(done[-1]), file=sys.stderr, flush=True)
    return done


@contextmanager
def located_lab(rate: str = "500mbit") -> Iterator[Cluster]:
    """A lab of `SIZE` whose daemons say that all is well; ``rate``: of a rail."""
    topology = Topology(
        "detect-located", hosts=SIZE.hosts, rails=SIZE.rails, spines=SIZE.spines,
        rate_bps=parse_rate(rate),
    )  # fmt: skip
    with Cluster(topology=topology) as cluster:
        cluster.start_daemons(hold=HOLD, damping=DAMPING, steer=STEER)
        wait_until(lambda: links_up(cluster), START_S, "all links UP")
        time.sleep(WARM_S)
        if not well(cluster):
            raise TimeoutError(f"a new lab is not well within {WELL_S} s")
        yield cluster


def made(fault: Injected) -> Fault:
    """The lab's fault."""
    word, *rest = fault.sort.word.split()
    target = fault.target
    ways: Mapping[str, Direction] = {"rx": "rx", "tx": "tx"}
    way = ways.get(rest[-1] if rest else "", "both")
    match word:
        case "blackhole":
            return catalog.BlackHole(target, way)
        case "loss":
            return catalog.Loss(target, float(rest[0]), way)
        case "flap":
            return catalog.Flap(target, FLAP_MS, round(1e3 * 2 * IN_TIME_S / FLAP_MS))
    plain: Mapping[str, type[Fault]] = {
        "carrier": catalog.Carrier,
        "admin": catalog.AdminDown,
        "address": catalog.AddressRemoved,
        "reset": catalog.ResetStorm,
        "leaf": catalog.LeafDown,
        "spine": catalog.SpineDown,
        "kill": catalog.NodeKill,
        "freeze": catalog.NodeFreeze,
    }
    return plain[word](target)


def _trial(cluster: Cluster, injected: tuple[Injected, ...]) -> Trial:
    """Inject, wait, ask, take back."""
    seconds: dict[Element, float] = {}
    ever: set[Element] = set()
    with ExitStack() as stack:
        faults = [cluster.arm(made(fault)) for fault in injected]
        for fault in faults:
            stack.callback(cluster.disarm, fault)
        began = time.monotonic()
        for fault in faults:
            fault.start()
        settled: float | None = None
        while True:
            asked = time.monotonic()
            texts = metrics(cluster)
            answers = [said(host, series(text)) for host, text in texts.items() if text]
            trial = Trial(injected, tuple(answers))
            for element in trial.named():
                seconds.setdefault(element, round(time.monotonic() - began, 2))
            ever |= {element for one in answers for element in one.metric}
            now = time.monotonic() - began
            whole = all(trial.exact(fault) for fault in trial.seen())
            settled = (now if settled is None else settled) if whole else None
            done = settled is not None and now >= max(LEAST_S, settled + SETTLED_S)
            if done or now >= IN_TIME_S:
                break
            time.sleep(max(0.0, LOOK_S - (time.monotonic() - asked)))
        with ThreadPoolExecutor(SIZE.hosts) as pool:
            answers = list(pool.map(lambda one: _explain(cluster, one), answers))
    with tempfile.TemporaryDirectory(prefix="located-") as where:
        alerts = fired(texts, Path(where))
    return Trial(
        injected, tuple(answers), seconds, frozenset(ever),
        misleading(alerts, injected, SIZE.rails),
    )  # fmt: skip


def metrics(cluster: Cluster) -> dict[str, str | None]:
    """What each host's ``/metrics`` says; None: it does not answer."""
    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        return dict(pool.map(_metrics, cluster.nodes))


def _metrics(node: Node) -> tuple[str, str | None]:
    try:
        return node.name, node.fetch(f"http://127.0.0.1:{PORT}/metrics", timeout=ANSWER_S)
    except OSError:
        return node.name, None


def _explain(cluster: Cluster, one: Said) -> Said:
    """With what ``fabricctl explain`` says of each of the host's links; itself if it is silent."""
    node = next(node for node in cluster.nodes if node.name == one.host)
    here, beyond, unsure = {}, {}, set()
    try:
        for rail in range(SIZE.rails):
            wanted = {"op": "explain", "link": f"rail{rail}"}
            answer = request(node.run_dir / "ctl.sock", wanted, limit_s=ANSWER_S)
            here[rail] = explained(answer, "located")
            beyond[rail] = explained(answer, "located_beyond")
            if is_unsure(answer):
                unsure.add(rail)
    except DaemonError:
        return one
    return replace(one, here=here, beyond=beyond, unsure=frozenset(unsure))


def well(cluster: Cluster) -> bool:
    """Whether every host soon answers, with all its links UP and nobody blamed."""
    deadline = time.monotonic() + WELL_S
    while time.monotonic() < deadline:
        texts = metrics(cluster)
        if all(text and _quiet(text) for text in texts.values()):
            time.sleep(1.0)
            return True
        time.sleep(LOOK_S)
    return False


def _quiet(text: str) -> bool:
    found = series(text)
    states = [value for labels, value in found if labels["__name__"] == "fabricd_link_state"]
    one = said("", found)
    up = len(states) == SIZE.rails and all(value == 1 for value in states)
    return up and not one.metric and not one.silent


def _line(trial: Trial) -> str:
    """For whoever watches, and for whoever looks for what went wrong."""
    parts = []
    for fault in trial.seen():
        took = trial.took_s(fault)
        how = "right" if trial.exact(fault) else "inexact" if trial.found(fault) else "MISSED"
        parts.append(f"{fault}: {how}" + (f" after {took:.1f} s" if took is not None else ""))
    text = f"located: {'; '.join(parts)}"
    if wrong := trial.wrong():
        text += f"; WRONG {', '.join(sorted(map(str, wrong)))}"
    if misplaced := trial.misplaced():
        text += f"; EXPLAIN {misplaced}"
    if trial.alerts:
        text += f"; ALERTS {sorted(trial.alerts)}"
    if moment := trial.ever_wrong() - trial.wrong():
        text += f"; for a moment {', '.join(sorted(map(str, moment)))}"
    return text
