"""A reference that is lost: when that is noticed, and whether anybody's time jumps.

Live, on the packets of a lab with virtual clocks: prober and clock service of the reference are
killed, and ptp4l's grandmaster and chronyd's server after them. What the reference would have said
goes on as the truth: its clock is known. In virtual time the same, often.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.clock.clos import regular_graph
from bench.clock.live import DEGREE, LOCK_S, running, topology
from bench.clock.packets import PacketWorld
from bench.clock.peers import CHRONY_POLL, Chrony, Ptp4l
from bench.clock.services import Fabric, raw_ns
from bench.report import Row
from clocksync.page.clock_page import State
from clocksync.pair.linear import Linear
from fabricd.clock.paths import NEXT_LOOK_NS
from fabricd.probes.client import host_id
from lab.clocks.virtual_clock import VirtualClock
from lab.cluster import Cluster, wait_until

JUMP_NS = 20.0
BEFORE_S, JUMP_S, AFTER_S = 1.0, 1.5, 4.0
"""A jump is held against the mean of a second before, and looked for until all has long been done:
another reference is followed within 0.9 s. What the lost one would say goes its own way after that:
two clocks of 1 ppb/√s have parted by 6.5 ns after 4 s (standard deviation)."""
PEER_WAIT_S = 20.0
INTERVAL_MS, PEERS = 10.0, 10
"""As they are by default."""
_LOST = re.compile(r"ptp4l\[(\d+\.\d+)\].*ANNOUNCE_RECEIPT_TIMEOUT_EXPIRES")
Moments = dict[int, list[tuple[float, float]]]
"""By host: second since the loss, and how far its time is from the lost one's, ns."""


@dataclass(slots=True)
class Lost:
    """What became of a reference that was killed."""

    noticed_s: dict[int, float] = field(default_factory=dict)
    """By neighbour: when it knew."""
    replaced_s: float = float("nan")
    """When all were locked to one other host."""
    moments: Moments = field(default_factory=dict)


def jump(moments: Moments, moment_s: float, for_s: float) -> float:
    """How far any host's time was from its mean in the second before a moment, ns. Pure.

    Args:
        moments: of hosts.
        moment_s: that one.
        for_s: so long after it is looked at.
    """
    most = float("nan")
    for seen in moments.values():
        before = [error for at, error in seen if moment_s - BEFORE_S < at <= moment_s]
        after = [error for at, error in seen if moment_s < at <= moment_s + for_s]
        if before and after:
            mean = float(np.mean(before))
            most = np.fmax(most, max(abs(error - mean) for error in after))
    return float(most)


def ptp4l_lost_s(log: str, since_s: float) -> float | None:
    """When a client's log says first that its grandmaster fell silent, from ``since_s`` on. Pure.

    ptp4l stamps its lines with CLOCK_MONOTONIC.
    """
    times = [float(found) for found in _LOST.findall(log)]
    return next((at for at in times if at >= since_s), None)


class _Kill:
    """One reference, killed and looked after."""

    def __init__(self, cluster: Cluster, fabric: Fabric) -> None:
        self.fabric = fabric
        wait_until(fabric.agreed, LOCK_S, "all hosts have one fabric time")
        (self.host,) = {service.core.status.reference for service in fabric.services.values()}
        self.node = next(node for node in cluster.nodes if host_id(node.name) == self.host)
        own = fabric.services[self.host].core.election.own
        assert own is not None
        self.own: Linear = own
        self.clock: VirtualClock = fabric.clocks[self.host]
        self.near = {path.key.host for path in fabric.services[self.host].table.all()}
        self.lost = Lost()

    def errors(self, age_s: float) -> None:
        """Of all other hosts, now."""
        now = raw_ns()
        true = self.own.moved(self.clock.at(now)).ns
        for host, service in self.fabric.services.items():
            line = service.line
            if host == self.host or line is None or line.state is State.UNSYNCED:
                continue
            off = float(line.at(self.fabric.clocks[host].at(now)).ns - true)
            self.lost.moments.setdefault(host, []).append((age_s, off))

    def run(self) -> Lost:
        """Kill it."""
        calm_s = BEFORE_S + JUMP_S
        began = time.monotonic() + calm_s
        self.fabric.run(calm_s, lambda: self.errors(time.monotonic() - began))
        self.node.kill_prober()
        began = time.monotonic()
        self.fabric.services.pop(self.host).close()

        def look() -> None:
            self.errors(time.monotonic() - began)
            self._look(time.monotonic() - began)

        self.fabric.run(AFTER_S, look)
        return self.lost

    def _look(self, age_s: float) -> None:
        whose = set()
        locked = True
        for host, service in self.fabric.services.items():
            core = service.core
            held, mesh = core.election.reference, core.mesh
            whose.add(core.status.reference)
            locked &= core.status.state is State.LOCKED
            if host not in self.near or host in self.lost.noticed_s or held is None:
                continue
            gone = held.id != self.host or (
                mesh is not None
                and not core.election.alive(held, mesh.moved(service.clocks.now()).ns)
            )
            if gone:
                self.lost.noticed_s[host] = age_s
        settled = locked and len(whose) == 1 and self.host not in whose
        if settled and np.isnan(self.lost.replaced_s):
            self.lost.replaced_s = age_s


def _ptp4l(cluster: Cluster, peer: Ptp4l) -> float:
    """So long ptp4l's client takes to notice that its grandmaster was killed, s."""
    began = time.monotonic()
    peer.kill_server()
    end = began + PEER_WAIT_S
    log: Path = cluster.nodes[1].dir / "ptp4l-client.log"
    while time.monotonic() < end:
        at = ptp4l_lost_s(log.read_text(), began)
        if at is not None:
            return at - began
        time.sleep(0.1)
    return float("nan")


def _chrony(peer: Chrony) -> float:
    """So long chronyd takes until none of its last eight requests was answered, s."""
    began = time.monotonic()
    peer.kill_server()
    while time.monotonic() < began + PEER_WAIT_S:
        if not peer.reached():
            return time.monotonic() - began
        time.sleep(0.02)
    return float("nan")


def reference(*, quick: bool) -> list[Row]:
    """Live, then in virtual time."""
    found = []
    with ExitStack() as stack:
        cluster, fabric = stack.enter_context(running(topology("clockref")))
        peer, other = Ptp4l(cluster), Chrony(cluster)
        stack.enter_context(peer.running())
        stack.enter_context(other.running())
        fabric.run(12.0)  # A better host takes over after ten seconds.
        asked = max(service.table.lost_ns for service in fabric.services.values()) / 1e9
        for _ in range(2 if quick else 4):
            found.append(_Kill(cluster, fabric).run())
            fabric.run(3.0)
        theirs = _ptp4l(cluster, peer)
        chrony = _chrony(other)
    first = [min(lost.noticed_s.values()) for lost in found]
    last = [max(lost.noticed_s.values()) for lost in found]
    replaced = [lost.replaced_s for lost in found]
    note = (
        f"{len(found)} killed, 8 hosts, degree {DEGREE}: of each the last of its neighbours to "
        f"know; the first {1e3 * max(first):.0f} ms at worst; another is followed by all after "
        f"{1e3 * max(replaced):.0f} ms; the peer is ptp4l; chronyd at {2**-CHRONY_POLL} requests a "
        f"second: {1e3 * chrony:.0f} ms"
    )
    return [
        Row("reference lost, live: noticed, at worst", 1e3 * asked, 1e3 * max(last), "ms",
            peer=1e3 * theirs, note=note),
        Row("reference lost, live: largest jump of a host's time", JUMP_NS,
            max(jump(lost.moments, 0, JUMP_S) for lost in found), "ns",
            note=_jumps([lost.moments for lost in found])),
        *virtual(5 if quick else 60),
    ]  # fmt: skip


def _jumps(found: Sequence[Moments]) -> str:
    calm, far = (
        max(jump(each, *when) for each in found) for when in ((-JUMP_S, JUMP_S), (0, AFTER_S))
    )
    return (
        f"in {JUMP_S} s, from its mean in {BEFORE_S:.0f} s before; without a loss {calm:.1f} ns; "
        f"in {AFTER_S:.0f} s, which the lost clock's own wander is in, {far:.1f} ns"
    )


def virtual(losses: int) -> list[Row]:
    """So many losses in virtual time, with packets and as long a silence as is by default."""
    asked = 3 * PEERS * INTERVAL_MS
    noticed: list[float] = []
    found: list[Moments] = []
    for seed in range(1, losses + 1):
        late, moments = lose_one(seed)
        noticed.append(late)
        found.append(moments)
    jumps = [jump(each, 0, JUMP_S) for each in found]
    return [
        Row("reference lost, in virtual time: noticed, at worst", asked, max(noticed), "ms",
            note=f"{losses} losses, each by the last of its neighbours; median "
            f"{np.median(noticed):.0f} ms"),
        Row("reference lost, in virtual time: largest jump", JUMP_NS, max(jumps), "ns",
            note=f"{_jumps(found)}; median of the losses {np.median(jumps):.1f} ns"),
    ]  # fmt: skip


def lose_one(seed: int, hosts: int = 8, degree: int = DEGREE) -> tuple[float, Moments]:
    """One loss: when the last neighbour knew, ms, and what became of all hosts' times."""
    rng = np.random.default_rng((seed, 4))
    pairs = [(one + 1, other + 1) for one, other in regular_graph(rng, hosts, degree)]
    silence = int(3 * PEERS * INTERVAL_MS) * 10**6 - NEXT_LOOK_NS
    world = PacketWorld(seed, hosts, pairs, silence_ns=silence)
    moments: Moments = {}
    world.run(8.0)
    whose = next(node.core.status.reference for node in world.nodes.values())
    giver = world.nodes[whose]
    given = world.given[giver.whose] if giver.whose else None
    assert given is not None

    def look() -> None:
        if world.now_ns % 50_000_000:
            return
        true = given.at(world.now_ns)
        for host, node in world.nodes.items():
            found = world.fabric(host) if node.up and host != whose else None
            if found is not None:
                at = (world.now_ns - began) / 1e9
                moments.setdefault(host, []).append((at, float(found[0] - true)))

    calm_s = BEFORE_S + JUMP_S + float(rng.uniform(0, 0.1))
    began = world.now_ns + round(calm_s * 1e9)
    world.run(calm_s, look)
    giver.up = False
    began = world.now_ns
    near = {peer for _, peer, _ in world.ends[whose]}
    knew: dict[int, int] = {}

    def watch() -> None:
        look()
        for host in near - set(knew):
            core = world.nodes[host].core
            held, mesh = core.election.reference, core.mesh
            if held is None or mesh is None:
                continue
            now = mesh.moved(world.nodes[host].clock.raw(world.now_ns)).ns
            if held.id != whose or not core.election.alive(held, now):
                knew[host] = world.now_ns - began

    world.run(AFTER_S, watch)
    late = max(knew.get(host, int(AFTER_S * 1e9)) for host in near)
    return late / 1e6, moments
