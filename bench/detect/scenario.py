"""What happens to a fabric: parameters with their sources, and seeded scenarios of them. Pure.

Written before the detector was tried on it, and not tuned since. Times are seconds.

Frequencies of life are far apart: flaps are thousands of times as frequent as dead switches, and a
sample in their proportion would hold no switch at all. So the kinds are drawn by `SHARES`, and the
score weights by nothing; what a false verdict would mean in life is told per link-month from the
scenarios without a link fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

HOSTS, RAILS, POD, SPINES = 256, 8, 64, 8
"""2,048 host-links; 32 leaves, one per pod and rail (rail-optimized, as HPN and DGX SuperPOD)."""

BASE_LOSS = (1e-8, 1e-5)
"""Of each port and direction, log-uniform. CorrOpt (SIGCOMM 2017) calls a link corrupting from 1e-8
on, and has most of those below 1e-5."""
GRAY = (1e-3, 0.2)
"""Log-uniform; the asked range."""
FLAP_S = (0.002, 2.0)
"""Down time of a flap, log-uniform: the asked range of 2 ms to 600 ms, and longer."""
FLAPS = (1, 12)
"""In a row; HPN (SIGCOMM 2024) has 5,000 to 60,000 a day in a fleet, in bouts."""
STALL_S = (0.003, 2.0)
"""A host too busy to schedule the prober, Pareto with exponent 1.1 (heavy tail), cut at 2 s."""
BACKGROUND_STALLS = 0.05
"""A second, on every host, of up to 50 ms."""
QUEUE_S = (0.0003, 0.005)
"""Depth of a congested queue: 300 us is 3.75 MB at 100 Gbit/s, 5 ms a deep-buffer switch."""
CONGESTED_LOSS = (1e-5, 5e-3)
"""Tail drops within a burst: CorrOpt's congestion losses reach 1e-3 in the tail."""
DELAY_S, JITTER_S = 8e-6, 4e-6
REORDER = 0.002
"""Share of packets that are overtaken, where a path reorders (adaptive routing)."""


class Kind(StrEnum):
    """What goes wrong."""

    QUIET = "quiet"
    FLAP = "cable flap"
    CUT = "cable cut"
    DARK_NIC = "NIC dead, carrier up"
    GRAY = "gray loss"
    LEAF = "leaf dead"
    SPINE = "spine black hole"
    GRAY_SPINE = "spine gray"
    STALLS = "host overload"
    HOST = "host dead"
    RESTART = "prober restart"
    CONGESTION = "congestion"
    REORDER = "reordering"


SHARES: dict[Kind, float] = {
    # Without a fault of the network: 42 %. Llama 3: 91.6 % of stops are not switch or cable.
    Kind.QUIET: 0.05,
    Kind.STALLS: 0.12,
    Kind.HOST: 0.07,
    Kind.RESTART: 0.06,
    Kind.CONGESTION: 0.10,
    Kind.REORDER: 0.02,
    # Of one link
    Kind.FLAP: 0.14,
    Kind.CUT: 0.06,
    Kind.DARK_NIC: 0.12,
    Kind.GRAY: 0.14,
    # Of a switch
    Kind.LEAF: 0.05,
    Kind.SPINE: 0.04,
    Kind.GRAY_SPINE: 0.03,
}
LINK_FAULTS = (Kind.FLAP, Kind.CUT, Kind.DARK_NIC, Kind.GRAY)

LENGTH_S = {Kind.GRAY: 70.0, Kind.GRAY_SPINE: 40.0, Kind.CONGESTION: 40.0, Kind.STALLS: 30.0}
OTHERS_S = 20.0
START_S = 5.0
"""Everything is well until then."""

Port = tuple[int, int]
"""(host, rail)."""


def leaf_of(port: Port) -> str:
    """``p<pod>r<rail>``."""
    return f"p{port[0] // POD}r{port[1]}"


def spine_of(source: Port, target: Port) -> int:
    """Which spine the flow's hash chooses; the way back has its own."""
    key = (source[0] * 73856093) ^ (source[1] * 19349663) ^ (target[0] * 83492791)
    key = (key ^ (target[1] * 2654435761)) & 0xFFFFFFFF
    key = ((key ^ key >> 16) * 0x45D9F3B) & 0xFFFFFFFF
    return (key ^ key >> 15) % SPINES


@dataclass(frozen=True, slots=True)
class Fault:
    """Packets of some flows are lost with a chance, or queued, for a time."""

    kind: Kind
    begin: float
    end: float
    loss: float = 0.0
    port: Port | None = None
    way: str = "both"
    """Of a port: ``tx``, ``rx`` or ``both``, as seen from it."""
    leaf: str = ""
    spine: int = -1
    queue: float = 0.0

    def hits(self, source: Port, target: Port) -> bool:
        """Whether it acts on that flow."""
        if self.port is not None:
            out, into = self.way in ("tx", "both"), self.way in ("rx", "both")
            return (out and source == self.port) or (into and target == self.port)
        if self.leaf:
            return self.leaf in (leaf_of(source), leaf_of(target))
        if self.spine >= 0 and leaf_of(source) != leaf_of(target):
            return spine_of(source, target) == self.spine
        return False


@dataclass(slots=True)
class Scenario:
    """One seeded story.

    Attributes:
        faults: what packets suffer.
        dark: spans in which a port is without carrier.
        stalls: spans in which a host's prober does not run.
        gone: spans in which a host's prober does not exist; to the end: the host is dead.
    """

    seed: int
    kind: Kind
    length: float
    faults: list[Fault] = field(default_factory=list)
    dark: dict[Port, list[tuple[float, float]]] = field(default_factory=dict)
    stalls: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    gone: dict[int, tuple[float, float]] = field(default_factory=dict)
    reorders: bool = False
    host: int = 0
    """The one it is about."""

    @property
    def text(self) -> str:
        """For a table of what went wrong."""
        return f"seed {self.seed}: {self.kind} at h{self.host}"


def log_uniform(rng: np.random.Generator, span: tuple[float, float]) -> float:
    """Between the two, evenly over the orders of magnitude."""
    return math.exp(rng.uniform(math.log(span[0]), math.log(span[1])))


def make(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = np.random.default_rng(seed)
    kinds = list(SHARES)
    kind = kinds[int(rng.choice(len(kinds), p=list(SHARES.values())))]
    length = LENGTH_S.get(kind, OTHERS_S) + START_S
    host, rail = int(rng.integers(HOSTS)), int(rng.integers(RAILS))
    story = Scenario(seed, kind, length, host=host)
    if kind in _MAKERS:
        _MAKERS[kind](story, (host, rail), rng)
    return story


def _flap(story: Scenario, port: Port, rng: np.random.Generator) -> None:
    at = START_S
    for _ in range(int(rng.integers(FLAPS[0], FLAPS[1] + 1))):
        down = log_uniform(rng, FLAP_S)
        if at + down > story.length - 3:
            break
        story.dark.setdefault(port, []).append((at, at + down))
        story.faults.append(Fault(Kind.FLAP, at, at + down, 1.0, port))
        at += down + log_uniform(rng, (0.01, 5.0))


def _cut(story: Scenario, port: Port, _rng: np.random.Generator) -> None:
    story.dark[port] = [(START_S, story.length)]
    story.faults.append(Fault(Kind.CUT, START_S, story.length, 1.0, port))


def _dark_nic(story: Scenario, port: Port, rng: np.random.Generator) -> None:
    way = str(rng.choice(["tx", "rx", "both"]))
    story.faults.append(Fault(Kind.DARK_NIC, START_S, story.length, 1.0, port, way))


def _gray(story: Scenario, port: Port, rng: np.random.Generator) -> None:
    way, loss = str(rng.choice(["tx", "rx"])), log_uniform(rng, GRAY)
    story.faults.append(Fault(Kind.GRAY, START_S, story.length, loss, port, way))


def _leaf(story: Scenario, port: Port, rng: np.random.Generator) -> None:
    """Dead: usually its ports go dark, sometimes it only forwards nothing any more."""
    leaf = leaf_of(port)
    story.faults.append(Fault(Kind.LEAF, START_S, story.length, 1.0, leaf=leaf))
    if rng.random() < 0.7:
        first = port[0] // POD * POD
        for host in range(first, first + POD):
            story.dark[host, port[1]] = [(START_S, story.length)]


def _spine(story: Scenario, _port: Port, rng: np.random.Generator) -> None:
    loss = 1.0 if story.kind is Kind.SPINE else log_uniform(rng, (0.05, 0.2))
    spine = int(rng.integers(SPINES))
    story.faults.append(Fault(story.kind, START_S, story.length, loss, spine=spine))


def _stalls(story: Scenario, port: Port, rng: np.random.Generator) -> None:
    at, spans = START_S, story.stalls.setdefault(port[0], [])
    while at < story.length - 5:
        gap = min(STALL_S[1], STALL_S[0] * float(rng.random()) ** (-1 / 1.1))
        spans.append((at, at + gap))
        at += gap + float(rng.exponential(0.4))


def _host(story: Scenario, port: Port, _rng: np.random.Generator) -> None:
    story.gone[port[0]] = (START_S, story.length + 1)


def _restart(story: Scenario, port: Port, rng: np.random.Generator) -> None:
    story.gone[port[0]] = (START_S, START_S + float(rng.uniform(0.1, 3.0)))


def _congestion(story: Scenario, port: Port, rng: np.random.Generator) -> None:
    """Bursts on a port (incast), or on a spine (uneven hashing)."""
    at, spine = START_S, int(rng.integers(SPINES)) if rng.random() < 0.4 else -1
    while at < story.length - 5:
        burst = log_uniform(rng, (0.005, 2.0))
        queue, loss = log_uniform(rng, QUEUE_S), log_uniform(rng, CONGESTED_LOSS)
        fault = Fault(story.kind, at, at + burst, loss, port, "rx", queue=queue)
        if spine >= 0:
            fault = Fault(story.kind, at, at + burst, loss, spine=spine, queue=queue)
        story.faults.append(fault)
        at += burst + float(rng.exponential(1.0))


def _reorder(story: Scenario, _port: Port, _rng: np.random.Generator) -> None:
    story.reorders = True


_MAKERS = {
    Kind.FLAP: _flap,
    Kind.CUT: _cut,
    Kind.DARK_NIC: _dark_nic,
    Kind.GRAY: _gray,
    Kind.LEAF: _leaf,
    Kind.SPINE: _spine,
    Kind.GRAY_SPINE: _spine,
    Kind.STALLS: _stalls,
    Kind.HOST: _host,
    Kind.RESTART: _restart,
    Kind.CONGESTION: _congestion,
    Kind.REORDER: _reorder,
}
