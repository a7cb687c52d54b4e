"""What the watched hosts said against what was true: precision, recall, latency, places."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.detect import fleet
from bench.detect.paths import Noise
from bench.detect.play import Claim, Story, Watched
from bench.detect.scenario import (
    HOSTS,
    POD,
    RAILS,
    START_S,
    Fault,
    Kind,
    Port,
    Scenario,
    leaf_of,
    make,
)
from fabricd.detect.locate import Blame, locate
from fabricd.detect.locate import Kind as Part

GRACE_S = 3.0
"""A claim so long after a fault ended is still about it: losses are found late."""
CLAIMED_LOSS = 5e-4
"""A path that loses more than this is not wrongly accused."""
PEERS_WATCHED = 2
PLACED = (Kind.CUT, Kind.DARK_NIC, Kind.GRAY, Kind.LEAF, Kind.SPINE, Kind.GRAY_SPINE, Kind.HOST)


@dataclass(slots=True)
class Result:
    """One scenario's score."""

    seed: int
    kind: Kind
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    found: int = 0
    missed: list[str] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    """Seconds from the fault to the owner's claim."""
    loss: float = 0.0
    local: list[str] = field(default_factory=list)
    """right, unknown or wrong, of each host that placed it."""
    mesh: str = ""
    """The same of all watched hosts together; empty: not asked."""
    said: list[str] = field(default_factory=list)
    link_seconds: float = 0.0
    published: int = 0
    """The most published transitions of one host's links."""


def watched(story: Scenario) -> list[int]:
    """Whose daemons are run: the one it is about, some of its peers, and a bystander."""
    rng = np.random.default_rng([story.seed, 6])
    owner = story.host
    peers = sorted({fleet.number(s.peer) for s in fleet.paths(owner)})
    some = [int(h) for h in rng.choice(peers, PEERS_WATCHED, replace=False)]
    if story.kind is Kind.LEAF:
        first = owner // POD * POD
        some = [int(h) for h in first + rng.choice(POD, PEERS_WATCHED, replace=False)]
    bystander = int(rng.integers(HOSTS))
    hosts = {owner, *some, bystander}
    if story.kind is Kind.HOST:
        hosts.discard(owner)
    return sorted(hosts)


def judge(seed: int) -> Result:
    """Play one scenario and compare."""
    story = make(seed)
    noise = Noise(story)
    told = [Watched(story, noise, host).run() for host in watched(story)]
    result = Result(seed, story.kind, loss=story.faults[0].loss if story.faults else 0.0)
    result.link_seconds = sum(RAILS * story.length for _ in told)
    result.published = max(one.published for one in told)
    for one in told:
        _precision(story, one, result)
        _recall(story, one, result)
        _local(story, one, result)
    _mesh(story, told, result)
    return result


def _acting(story: Scenario, at: float) -> list[Fault]:
    real = [f for f in story.faults if f.kind is not Kind.CONGESTION]
    return [f for f in real if f.begin <= at <= f.end + GRACE_S and f.loss >= CLAIMED_LOSS]


def _own(fault: Fault, port: Port) -> bool:
    """Whether a link's own fault, or its leaf's."""
    return fault.port == port or (bool(fault.leaf) and fault.leaf == leaf_of(port))


def _true(story: Scenario, claim: Claim) -> bool:
    own = (claim.host, claim.rail)
    for fault in _acting(story, claim.at):
        if claim.peer is None:
            if _own(fault, own):
                return True
        elif fault.hits(own, claim.peer) or fault.hits(claim.peer, own):
            return True
    return False


def _precision(story: Scenario, one: Story, result: Result) -> None:
    said: dict[tuple[int, Port | None], Claim] = {}
    for claim in one.claims:
        key = (claim.rail, claim.peer)
        if key not in said or not _true(story, claim):
            said[key] = claim
    for claim in said.values():
        if _true(story, claim):
            result.right += 1
        else:
            what = f"path to {claim.peer}" if claim.peer else "link"
            result.wrong.append(
                f"{story.text}: h{claim.host}/{claim.rail} {what} {claim.state.name} "
                f"at {claim.at:.2f}: {claim.reason}"
            )


def _recall(story: Scenario, one: Story, result: Result) -> None:
    if not story.faults or story.kind is Kind.CONGESTION:
        return
    fault = story.faults[0]
    links = {c.rail: c.at for c in reversed(one.claims) if c.peer is None}
    paths = {(c.rail, c.peer): c.at for c in reversed(one.claims) if c.peer is not None}
    own = [r for r in range(RAILS) if _own(fault, (one.host, r))]
    for rail in own:
        if rail in links:
            result.found += 1
            result.latency.append(links[rail] - START_S)
        else:
            result.missed.append(f"{story.text}: h{one.host}/{rail} link, loss {fault.loss:.2g}")
    if fault.loss < 1.0 or story.kind is Kind.FLAP:
        return  # a path alone has few packets; its link's owner is the one to tell
    for spec in fleet.paths(one.host):
        ends = ((one.host, spec.link), (fleet.number(spec.peer), spec.peer_rail))
        if spec.link in own or not (fault.hits(*ends) or fault.hits(*reversed(ends))):
            continue
        if (spec.link, ends[1]) in paths:
            result.found += 1
        else:
            result.missed.append(f"{story.text}: h{one.host}/{spec.link} path to {ends[1]}")


def _right(story: Scenario, blame: Blame) -> bool:
    if story.kind in (Kind.HOST, Kind.STALLS, Kind.RESTART):
        return blame.kind is Part.HOST and blame.element == fleet.name(story.host)
    if not story.faults:
        return False
    fault = story.faults[0]
    if fault.port is not None:
        name = f"{fleet.name(fault.port[0])}/{fault.port[1]}"
        return blame.kind is Part.LINK and blame.element == name
    if fault.leaf:
        return blame.kind is Part.LEAF and blame.element == fault.leaf
    return blame.kind is Part.SPINE


def _verdict(story: Scenario, blames: list[Blame]) -> str:
    """Of the answers the first that is one."""
    known = [blame for blame in blames if blame.kind is not Part.UNKNOWN]
    if not known:
        return "unknown"
    return "right" if _right(story, known[0]) else "wrong"


def _local(story: Scenario, one: Story, result: Result) -> None:
    blames = [blame for _, blame in one.places]
    if not blames:
        return
    verdict = _verdict(story, blames)
    result.local.append(verdict)
    if verdict == "wrong":
        result.said.append(f"{story.text}: h{one.host} says {blames[0]}")


def _mesh(story: Scenario, told: list[Story], result: Result) -> None:
    if story.kind not in PLACED:
        return
    if story.faults and story.faults[0].loss < 1.0:
        # Gray: the answer that comes with the verdict.
        blames = [blame for one in told for _, blame in sorted(one.places, key=lambda p: p[0])]
        if not result.found and story.kind is Kind.GRAY:
            return
    else:
        blames = locate(
            [flow for one in told for flow in one.flows],
            topology=fleet.topology(),
            dark=[port for one in told for port in one.dark],
            lit=[port for one in told for port in one.lit],
            certain=True,
        )
    result.mesh = _verdict(story, blames)
    if result.mesh != "right":
        result.said.append(f"{story.text}: together they say {[str(b) for b in blames[:3]]}")
