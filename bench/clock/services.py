"""The clock services of a lab's hosts, in one process, over virtual clocks: held to the truth."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from clocksync.page.clock_page import State
from fabricd.clock.service import STEP_S, ClockService
from fabricd.probes.client import host_id
from lab.clocks.virtual_clock import VirtualClock, VirtualClocks
from lab.cluster import Cluster

SEED = 5
LOOK_S = 0.02


def raw_ns() -> int:
    """The machine's clock under all virtual ones."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


@dataclass(slots=True)
class Seen:
    """What one load made of it; ns, without sign."""

    pairs: list[float] = field(default_factory=list)
    mesh: list[float] = field(default_factory=list)
    """Of each host's time, by the reference's."""
    loaded_pair: list[float] = field(default_factory=list)
    """Of the paths between the two hosts that the load is between; ptp4l and chronyd are there."""
    loaded: list[float] = field(default_factory=list)
    """Of one of these two's time, by the other's."""
    bounds: list[float] = field(default_factory=list)
    """Of hosts' times, a hop: by as many as there are to the reference."""
    missed: int = 0
    checks: int = 0
    carried: float = math.nan
    """Part of what the loaded link can carry that it did; both ways: of the one that did less."""
    silent: int = 0
    """Times that a path had no line, or a host no time."""
    ptp4l: list[float] = field(default_factory=list)
    chrony: list[float] = field(default_factory=list)


class Fabric:
    """The services of all hosts of a lab."""

    def __init__(self, cluster: Cluster) -> None:
        origin = raw_ns()
        self.clocks = {}
        self.services = {}
        self.loaded = {host_id(node.name) for node in cluster.nodes[:2]}
        for node in cluster.nodes:
            host = host_id(node.name)
            self.clocks[host] = VirtualClock(SEED, host, origin)
            self.services[host] = ClockService(
                host, node.run_dir, priority=100, clocks=VirtualClocks(SEED, host, origin)
            )

    def hops(self, reference: int) -> Mapping[int, int]:
        """From each host to the reference."""
        near = {host: {path.key.host for path in service.table.all()}
                for host, service in self.services.items()}  # fmt: skip
        out, edge = {reference: 0}, {reference}
        while edge:
            beyond = {host for host, to in near.items() if to & edge} | {
                to for host in edge for to in near.get(host, ())
            }
            edge = beyond - set(out)
            out |= dict.fromkeys(edge, max(out.values()) + 1)
        return out

    def run(self, seconds: float, look: Callable[[], None] | None = None) -> None:
        """So long; ``look`` is called in between, 50 times a second."""
        end = time.monotonic() + seconds
        due = time.monotonic()
        while (now := time.monotonic()) < end:
            if now >= due:
                for service in self.services.values():
                    service.tick()
                due = max(due + STEP_S, now)
            for service in self.services.values():
                service.glance()
            if look is not None:
                look()
            time.sleep(LOOK_S)

    def least_way_ns(self) -> float:
        """What a packet takes at least one way on any path, by lines and truth. When idle."""
        now = raw_ns()
        shown = {host: clock.at(now) for host, clock in self.clocks.items()}
        ways = []
        for host, service in self.services.items():
            for path in service.table.all():
                if (pair := path.estimator.last) is not None:
                    true = shown[path.key.host] - shown[host]
                    off = pair.base_ns - true + pair.apart(shown[host])
                    ways.append(pair.half_rtt_ns - abs(pair.skew_ns) - abs(off))
        return min(ways)

    def tell(self, least_way_ns: int) -> None:
        """As if ``[clock] least_way_ns`` had been that on all hosts."""
        for service in self.services.values():
            for path in service.table.all():
                rules = path.estimator.rules
                path.estimator.rules = replace(rules, least_way_ns=least_way_ns)

    def locked(self) -> bool:
        """Whether every host has fabric time."""
        self.run(STEP_S)
        return all(x.core.status.state is State.LOCKED for x in self.services.values())

    def agreed(self) -> bool:
        """Whether they all have that of one host."""
        return self.locked() and len({x.core.status.reference for x in self.services.values()}) == 1

    def look(self, seen: Seen) -> None:
        """Hold everything against the truth, at one moment."""
        now = raw_ns()
        shown = {host: clock.at(now) for host, clock in self.clocks.items()}
        fabric = {}
        for host, service in self.services.items():
            for path in service.table.all():
                pair = path.estimator.last
                if pair is None:
                    seen.silent += 1
                    continue
                true = shown[path.key.host] - shown[host]
                said = pair.base_ns - true + pair.apart(shown[host])
                seen.pairs.append(abs(said))
                if {host, path.key.host} == self.loaded:
                    seen.loaded_pair.append(abs(said))
            line = service.line
            if line is None or line.state is State.UNSYNCED:
                seen.silent += 1
                continue
            fabric[host] = line.at(shown[host])
        one, other = (fabric.get(host) for host in self.loaded)
        if one is not None and other is not None and one.reference == other.reference:
            seen.loaded.append(abs(one.ns - other.ns))
        hops: Mapping[int, int] = {}
        for host, own in fabric.items():
            there = fabric.get(own.reference)
            if there is None or own.reference == host or there.reference != own.reference:
                continue
            off = abs(own.ns - there.ns)
            seen.mesh.append(off)
            hops = hops or self.hops(own.reference)
            seen.bounds.append(own.bound_ns / max(hops.get(host, 1), 1))
            seen.checks += 1
            seen.missed += off > own.bound_ns

    def close(self) -> None:
        """Let go of all files."""
        for service in self.services.values():
            service.close()
