"""Hosts of a mesh in virtual time: cores, true clocks, and paths that are off by what is known.

The lines of the paths are made up (truth, a bias that stays, scatter), so that what is seen is what
the hosts make of them: how fast they agree, what happens when one comes, goes or is cut off, and
whether the bound holds. `bench.clock.clos` has the packets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bench.clock.least_squares import Graph, solve
from bench.clock.oscillator import WANDER, Oscillator
from clocksync.mesh.codec import decode
from clocksync.mesh.ecmp_rerouter import Change, PortStatus
from clocksync.mesh.election import fallen_silent
from clocksync.mesh.host import MeshHost
from clocksync.mesh.messages import Time
from clocksync.mesh.model import HostRules
from clocksync.page.clock_page import Line, State
from clocksync.pair.linear import Linear
from clocksync.pair.model import SECOND, Pair

STEP_NS = SECOND // 10
TICK_NS = STEP_NS // 20
"""Hosts step, and messages arrive, at the end of one."""
WALL_NS = 1_800_000_000 * SECOND
GLANCE_NS = 35_000_000
FIT_NS = SECOND // 2
"""Between two lines of a path, and before the first one of another clock."""
HALF_RTT_NS = 500.0


class Given(NamedTuple):
    """Fabric time as a host gave it, for as long as anybody may believe in it."""

    clock: Oscillator
    stepped_ns: int
    """Of the clock, when it did: whatever is done to the clock later, its time goes on."""
    own: Linear

    def at(self, true_ns: int) -> int:
        """That time."""
        raw = self.clock.raw(true_ns) - self.clock.stepped_ns + self.stepped_ns
        return self.own.moved(raw).ns


Whose = tuple[int, int, int]
"""Tag of the mesh, id of the reference, its term."""


@dataclass(slots=True)
class Node:
    """A host: its clock, its core, what it publishes."""

    clock: Oscillator
    core: MeshHost
    phase_ns: int
    line: Line | None = None
    whose: Whose | None = None
    """Whose time the line is."""
    up: bool = True
    judge_ns: int = 0
    ports: dict[int, int] = field(default_factory=dict)
    """By path: the source port, of those that were moved."""
    fits: dict[int, int] = field(default_factory=dict)
    """When (true time) each path's line is due."""
    heard: dict[int, int] = field(default_factory=dict)
    """When (true time) something came last over each path."""


class World:
    """All of them. Host ids begin at 1; a path is the number of a pair."""

    def __init__(
        self, seed: int, hosts: int, pairs: Iterable[tuple[int, int]], *, bias_ns: float = 3.0,
        scatter_ns: float = 3.0, priority: Callable[[int], int] = lambda _: 100,
        rules: HostRules | None = None, wander: float = WANDER, silence_ns: int = SECOND,
    ) -> None:  # fmt: skip
        """Args: ``wander`` of all clocks; ``silence_ns`` of `election.fallen_silent`."""
        self.rng = np.random.default_rng(seed)
        self.now_ns = 0
        self.pairs = list(pairs)
        self.bias = self.rng.normal(0, bias_ns, len(self.pairs))
        self.scatter_ns, self.wander, self.silence_ns = scatter_ns, wander, silence_ns
        self._priority, self._rules = priority, rules
        self.nodes = {}
        for host in range(1, hosts + 1):
            self.nodes[host] = self._node(host)
        self.cut: set[int] = set()
        """Paths that carry nothing."""
        self.ends: dict[int, list[tuple[int, int, int]]] = {host: [] for host in self.nodes}
        for path, (one, other) in enumerate(self.pairs):
            self.ends[one].append((path, other, 1))
            self.ends[other].append((path, one, -1))
        self.given: dict[Whose, Given] = {}
        self.longer: dict[tuple[int, int], Callable[[int], float]] = {}
        """(path, host) → by how much that host's way is longer, ns, by source port (0: its own)."""
        self.changes: list[tuple[float, int, Change]] = []
        """What hosts made of their paths: second, host, change."""
        self._mail: dict[int, list[tuple[int, int, int, bytes]]] = {}
        """By due tick: from, to, path, message."""

    def _node(self, host: int) -> Node:
        clock = Oscillator(self.rng, self.wander)
        core = MeshHost(host, self._priority(host), clock.raw(self.now_ns), 100, self._rules)
        return Node(clock, core, int(self.rng.integers(0, STEP_NS)))

    # -- what happens -------------------------------------------------------------------------

    def restart(self, host: int) -> None:
        """The host was booted anew: another clock, a core that knows nothing."""
        self.nodes[host] = self._node(host)
        self._another(host)

    def again(self, host: int) -> None:
        """Its clock service was: the core knows nothing, the clock is the same."""
        node = self.nodes[host]
        epoch = node.core.epoch + 1000
        node.core = MeshHost(
            host, self._priority(host), node.clock.raw(self.now_ns), epoch, self._rules
        )
        node.line, node.whose = None, None
        node.fits.clear()

    def step_clock(self, host: int, ns: int) -> None:
        """The host slept, or its clock was set; it is told, as `fabricd.clock.service` is."""
        self.nodes[host].clock.step(ns)
        self.begin_anew(host)

    def begin_anew(self, host: int) -> None:
        """What `fabricd.clock.service` does when its clock is another one."""
        node = self.nodes[host]
        node.core.stepped(node.clock.raw(self.now_ns))
        node.line, node.whose = None, None
        self._another(host)

    def _another(self, host: int) -> None:
        """A host's clock is another one: both ends of its paths find that out, and begin anew."""
        node = self.nodes[host]
        for path, peer, _ in self.ends[host]:
            node.fits[path] = self.now_ns + FIT_NS
            self.nodes[peer].core.drop(path)
            self.nodes[peer].fits[path] = self.now_ns + FIT_NS

    def _pair(self, node: Node, path: int, peer: int, sign: int) -> Pair:
        own, theirs = node.clock, self.nodes[peer].clock
        raw, there = own.raw(self.now_ns), theirs.raw(self.now_ns)
        slope = (1 + theirs.rate(self.now_ns)) / (1 + own.rate(self.now_ns)) - 1
        out, back = self._longer(path, node.core.id), self._longer(path, peer)
        half = HALF_RTT_NS + (out + back) / 2
        error = self.scatter_ns / SECOND
        wrong = sign * float(self.bias[path]) + (out - back) / 2
        noise = float(self.rng.normal(0, self.scatter_ns))
        return Pair(
            at_ns=raw, base_ns=there - raw, apart_ns=wrong + noise,
            slope=slope + float(self.rng.normal(0, error)), half_rtt_ns=half, asymmetry_ns=half,
            spread_ns=self.scatter_ns, slope_error=error, window_ns=2 * SECOND, seen_ns=raw,
            kept=(1.0, 1.0), step_ns=0.0, wander=5e-9, sigmas=4.0,
        )  # fmt: skip

    def run(
        self, seconds: float, each: Callable[[], None] = lambda: None,
        between: Callable[[int, int], None] | None = None,
    ) -> None:  # fmt: skip
        """So long.

        Args:
            seconds: of true time.
            each: called at the end of every tick.
            between: called with a tick's first and last nanosecond before anything happens at its
                end: whoever looks at pages at a moment within it sees them as they lay there then.
        """
        for _ in range(round(seconds * SECOND / TICK_NS)):
            if between is not None:
                between(self.now_ns, self.now_ns + TICK_NS)
            self.now_ns += TICK_NS
            self._arrive()
            for host, node in self.nodes.items():
                if node.up and (self.now_ns + node.phase_ns) % GLANCE_NS < TICK_NS:
                    self._notice(host, node)
                if node.up and (self.now_ns + node.phase_ns) % STEP_NS < TICK_NS:
                    self._step(host, node)
            for source, target, path, message in self._mail.pop(self.now_ns // TICK_NS, ()):
                there = self.nodes[target]
                # Messages wait for their turn in the prober, and die with it.
                if there.up and self.nodes[source].up and path not in self.cut:
                    there.heard[path] = self.now_ns
                    there.core.hear(path, source, there.clock.raw(self.now_ns), decode(message))
            each()

    def _arrive(self) -> None:
        """Packets that came in this tick; here they are made up, and so is what they say."""

    def _estimate(self, host: int, node: Node) -> None:
        """Give the core what its paths' packets say by now."""
        for path, peer, sign in self.ends[host]:
            if path in self.cut or not self.nodes[peer].up:
                continue
            node.heard[path] = self.now_ns
            if self.now_ns >= node.fits.get(path, 0):
                pair = self._pair(node, path, peer, sign)
                node.core.estimate(path, peer, pair, mark=path + 1)
                node.fits[path] = self.now_ns + FIT_NS

    def _notice(self, host: int, node: Node) -> None:
        held = node.core.election.reference
        if held is None or node.core.election.is_reference:
            return
        own = [node.heard.get(path, 0) for path, peer, _ in self.ends[host] if peer == held.id]
        others = [node.heard.get(path, 0) for path, peer, _ in self.ends[host] if peer != held.id]
        if fallen_silent(own, others, self.now_ns, self.silence_ns):
            age = self.now_ns - max(own)
            node.core.silent(held.id, node.clock.raw(self.now_ns) - age + STEP_NS)

    def _step(self, host: int, node: Node) -> None:
        self._estimate(host, node)
        core = node.core
        now = node.clock.raw(self.now_ns)
        if core.went_back(now):
            self.begin_anew(host)
        node.line = core.step(now, WALL_NS + self.now_ns)
        if self.now_ns >= node.judge_ns:
            node.judge_ns = self.now_ns + SECOND
            self._judge(host, now)
        due = self.now_ns // TICK_NS + 1
        said = core.messages()
        for path, peer, _ in self.ends[host]:
            for number, message in enumerate(said):
                self._mail.setdefault(due + number, []).append((host, peer, path, message))
        node.whose = next(
            ((x.tag, x.reference, x.term) for x in map(decode, said) if isinstance(x, Time)), None
        )
        own, whose = core.election.own, node.whose
        known = None if whose is None else self.given.get(whose)
        if own is not None and whose is not None and (known is None or known.own is not own):
            # What it gives is over the clock that it had when it took over.
            self.given[whose] = Given(node.clock, node.clock.stepped_ns, own)

    def _longer(self, path: int, host: int) -> float:
        by_port = self.longer.get((path, host))
        return by_port(self.nodes[host].ports.get(path, 0)) if by_port else 0.0

    def _judge(self, host: int, now: int) -> None:
        """As a clock service does; the prober takes every port, and both ends see that."""
        node = self.nodes[host]
        for path, _, _ in self.ends[host]:
            node.core.taken[path] = PortStatus(node.ports.get(path, 0), refused=False)
        for change in node.core.judge(now):
            self.changes.append((self.now_ns / SECOND, host, change))
            if change.port != node.ports.get(change.path, 0):
                node.ports[change.path] = change.port
                for end in self.pairs[change.path]:
                    self.nodes[end].core.rerouted(change.path)

    # -- what is true -------------------------------------------------------------------------

    def fabric(self, host: int, true_ns: int | None = None) -> tuple[int, float] | None:
        """Fabric time and its bound as a reader of the host's page has them; None: no time."""
        node = self.nodes[host]
        if node.line is None or node.line.state is State.UNSYNCED:
            return None
        found = node.line.at(node.clock.raw(self.now_ns if true_ns is None else true_ns))
        return found.ns, found.bound_ns

    def truth(self, reference: int) -> int | None:
        """Fabric time as the reference has it."""
        own = self.nodes[reference].core.election.own
        if own is None:
            return None
        raw = self.nodes[reference].clock.raw(self.now_ns)
        return own.moved(raw).ns

    def look(self, host: int, true_ns: int | None = None) -> tuple[float, float] | None:
        """How far off the time of a host's page is, and its bound; None: it says none.

        The truth is the time of the reference that the page names, as that one gave it, though it
        may be dead by now, or another be followed.
        """
        node = self.nodes[host]
        found = self.fabric(host, true_ns) if node.up else None
        if found is None or node.whose not in self.given:
            return None
        now = self.now_ns if true_ns is None else true_ns
        return float(found[0] - self.given[node.whose].at(now)), found[1]

    def errors(self) -> dict[int, float]:
        """Of all hosts that have a time: how far off it is, ns."""
        seen = {host: self.look(host) for host in self.nodes}
        return {host: found[0] for host, found in seen.items() if found is not None}

    def misses(self) -> list[tuple[int, float, float]]:
        """Hosts whose bound does not contain the truth: (host, error, bound)."""
        seen = {host: self.look(host) for host in self.nodes}
        return [
            (host, *found) for host, found in seen.items() if found and abs(found[0]) > found[1]
        ]

    def central(self) -> dict[int, float]:
        """How far each host's mesh time is from what the solution for all paths at once says.

        The paths' biases are what both solutions spread over the mesh.
        """
        hosts = [host for host, node in self.nodes.items() if node.up]
        at = {host: number for number, host in enumerate(hosts)}
        kept = [
            path for path, (one, other) in enumerate(self.pairs)
            if path not in self.cut and one in at and other in at
        ]  # fmt: skip
        graph = Graph(
            len(hosts), np.array([at[self.pairs[p][0]] for p in kept], dtype=np.intp),
            np.array([at[self.pairs[p][1]] for p in kept], dtype=np.intp),
            self.bias[kept], np.ones(len(kept)),
        )  # fmt: skip
        # An offset ahead by the solution is a mesh time that lies that much behind.
        solution = solve(graph).offset_ns
        seen = {}
        first = None
        for host in hosts:
            node = self.nodes[host]
            mesh = node.core.mesh
            if mesh is None:
                continue
            raw = node.clock.raw(self.now_ns)
            here = mesh.moved(raw)
            first = here.ns if first is None else first
            seen[host] = float(here.ns - first) + here.part + float(solution[at[host]])
        mean = sum(seen.values()) / max(len(seen), 1)
        return {host: value - mean for host, value in seen.items()}
