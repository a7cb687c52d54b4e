"""Synchronized probes: from a one-way black hole to the verdict, on real packets.

Four hosts with two rails at the default pace. All that a host sends on a rail vanishes, from a
random moment on; what comes to it still does. Its peers call the loss by when packets were due in
fabric time; then the same with `[probe] synchronized = false`, where they go by the pace of what
came before. The *round-trip verdict* is of the same packets: when the sender could say that its
packet is lost from what the peers' ordinary packets say that they heard (sniffed at its device;
those that a peer sends at once because of a miss are left out, since a prober that only answers has
none), a millisecond after it was sent at the least: so long a round trip may take.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.detect.live_lab import CARRYING, DAMPING, HOLD, OUT, STEER, compute
from bench.detect.live_pages import PageWatch
from bench.outage import links_up
from bench.report import Row, percentile
from fabricd.probes import wire
from fabricd.probes.layout import WIRE_MAGIC, WIRE_SIZE
from fabricd.probes.records import Direction, MissRecord, StallRecord
from fabricd.probes.ring import RingReader
from lab.cluster import Cluster, wait_until
from lab.faults.catalog import BlackHole
from lab.inputs import probe_packets
from lab.network import netns
from lab.node import Node
from lab.topology import Topology, parse_rate

HOSTS, RAILS = 4, 2
INTERVAL_MS, MISSES = 10.0, 3
IDLE, BUSY = "idle", "compute on every core"
LASTS_S = 0.25
START_S = 60.0
RETURN_S = 20.0
ROUND_TRIP_NS = 10**6
NEAR_NS = 100 * 10**6
"""A stall excuses a miss that is called so much later at most."""
PROBE = {"link_interval_ms": int(INTERVAL_MS), "misses": MISSES}
_TIMESTAMP_NS = 35
"""SO_TIMESTAMPNS, and the type of its message (include/uapi/asm-generic/socket.h)."""
_BUFFER = 16 << 20


@dataclass(frozen=True, slots=True)
class Sniffed:
    """A probe at a device."""

    at_ns: int
    """CLOCK_MONOTONIC."""
    own: bool
    """The host sent it."""
    said: dict[str, int]


class Sniffer:
    """What passes a device; the kernel keeps it until `take`, some 20 s of probes."""

    def __init__(self, node: Node, netdev: str) -> None:
        self._socket = netns.run_in(node.ns, lambda: self._open(netdev))
        self._wall_ns = time.time_ns() - time.monotonic_ns()

    @staticmethod
    def _open(netdev: str) -> socket.socket:
        every = 0x0003  # ETH_P_ALL
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(every))
        sniffer.setsockopt(socket.SOL_SOCKET, 33, _BUFFER)  # SO_RCVBUFFORCE
        sniffer.setsockopt(socket.SOL_SOCKET, _TIMESTAMP_NS, 1)
        sniffer.bind((netdev, every))
        sniffer.setblocking(False)
        return sniffer

    def take(self) -> list[Sniffed]:
        """Probes since the last call, in their order."""
        found: list[Sniffed] = []
        while True:
            try:
                data, messages, _, sender = self._socket.recvmsg(2048, 64)
            except BlockingIOError:
                return found
            probe = data[-WIRE_SIZE:]
            if len(probe) < WIRE_SIZE or struct.unpack_from("<I", probe)[0] != WIRE_MAGIC:
                continue
            stamps = [text for _, kind, text in messages if kind == _TIMESTAMP_NS]
            if not stamps:
                continue
            seconds, ns = struct.unpack("<qq", stamps[0])
            own = sender[2] == socket.PACKET_OUTGOING
            found.append(
                Sniffed(seconds * 10**9 + ns - self._wall_ns, own, probe_packets.decode(probe))
            )

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Trip(NamedTuple):
    """A round-trip verdict."""

    path: int
    due_ns: int
    """When the lost packet was."""
    at_ns: int
    """When its sender could say that it is lost."""


def round_trip(sniffed: Sequence[Sniffed], began_ns: int) -> list[Trip]:
    """The verdicts on single packets, in the order in which these were sent. Pure.

    Args:
        sniffed: at the sender's device, whose packets vanish behind it.
        began_ns: of the black hole: what was sent later is lost.
    """
    found = []
    singles = wire.TRAIN | wire.REPORT
    for sent in sniffed:
        if not sent.own or sent.at_ns < began_ns or sent.said["flags"] & singles:
            continue
        for answer in sniffed:
            said = answer.said
            if answer.own or said["flags"] & wire.REPORT or said["host_id"] == 0:
                continue
            if said["peer_incarnation"] != sent.said["incarnation"]:
                continue
            same = said["response"] == sent.said["challenge"]
            if not same or answer.at_ns < sent.at_ns + ROUND_TRIP_NS:
                continue
            behind = said["rx_max"] - sent.said["seq"]
            if behind < 0 or (behind < 64 and not said["rx_bitmap"] >> behind & 1):
                found.append(Trip(sent.said["path"], sent.said["due_time"], answer.at_ns))
            break
    return found


@dataclass(slots=True)
class Measured:
    """Milliseconds, of one way to call losses."""

    first: list[float] = field(default_factory=list)
    """Black hole → the first miss called by a peer."""
    after_due: list[float] = field(default_factory=list)
    """When the first lost packet of a path was due → its miss called by the receiver."""
    third: list[float] = field(default_factory=list)
    """Black hole → the third, by whichever peers: what DOWN rests on."""
    down: list[float] = field(default_factory=list)
    """Black hole → DOWN on the page of the host whose packets vanish."""
    unseen: int = 0
    trip_first: list[float] = field(default_factory=list)
    """Black hole → the sender's first round-trip verdict."""
    trip_after_due: list[float] = field(default_factory=list)
    """The same of the sender's first verdict on a path."""
    trip_third: list[float] = field(default_factory=list)
    """Black hole → its third, on whichever paths of the rail."""


class Bench:
    """The lab and its rings."""

    def __init__(self, cluster: Cluster, watch: PageWatch) -> None:
        self.cluster, self.watch = cluster, watch
        self._dice = random.Random(7)

    @contextmanager
    def rings(self) -> Iterator[dict[str, RingReader]]:
        """The probers' rings, by host; events from now on."""
        with ExitStack() as stack:
            yield {
                node.name: stack.enter_context(RingReader(node.run_dir / "prober" / "ring"))
                for node in self.cluster.nodes
            }

    def synchronize(self, wanted: bool) -> None:
        """Have all probers go by fabric time, or none."""
        for node in self.cluster.nodes:
            if node.daemon is not None:
                node.daemon.stop()
            node.start_daemon(restart=False, **_tables(wanted))
        wait_until(lambda: self._all(wanted), START_S, f"probes synchronized: {wanted}")
        wait_until(lambda: links_up(self.cluster), START_S, "all links UP")

    def _all(self, wanted: bool) -> bool:
        with self.rings() as rings:
            return all(
                ring.header().synchronized is wanted
                and len(rows := ring.paths()) >= RAILS * (HOSTS - 1)
                and all(row.by_due_time is wanted for row in rows)
                for ring in rings.values()
            )

    def strike(self, node: Node, rail: int, into: Measured) -> None:
        """All that the host sends on the rail vanishes for a while."""
        target = f"{node.name}:rail{rail}"
        netdev = f"rail{rail}"
        wait_until(
            lambda: self.watch.state(node.name, netdev) in CARRYING, RETURN_S, f"{target} is back"
        )
        time.sleep(self._dice.uniform(0.1, 0.2))
        sniffer = Sniffer(node, netdev)
        try:
            with self.rings() as rings:
                fault = BlackHole(target, "tx")
                with self.cluster.inject(fault):
                    began = fault.started_ns
                    time.sleep(LASTS_S)
                self._peers(rings, node, rail, began, into)
            trips = round_trip(sniffer.take(), began)
        finally:
            sniffer.close()
        firsts = {trip.path: trip for trip in reversed(trips)}
        into.trip_after_due += [(trip.at_ns - trip.due_ns) / 1e6 for trip in firsts.values()]
        order = sorted(trip.at_ns for trip in trips)
        if len(order) >= MISSES:
            into.trip_first.append((order[0] - began) / 1e6)
            into.trip_third.append((order[MISSES - 1] - began) / 1e6)
        seen = self.watch.first(node.name, netdev, OUT, began, LASTS_S)
        if seen is None or seen.t_ns > began + LASTS_S * 1e9:
            into.unseen += 1
        else:
            into.down.append((seen.t_ns - began) / 1e6)

    def _peers(
        self, rings: dict[str, RingReader], node: Node, rail: int, began: int, into: Measured
    ) -> None:
        """What the receivers called."""
        every: list[int] = []
        for name, ring in rings.items():
            if name == node.name:
                continue
            own = {
                row.index for row in ring.paths()
                if row.address == node.address(rail) and row.link == rail
            }  # fmt: skip
            called = [
                e for e in ring.events()
                if isinstance(e, MissRecord) and e.path in own and e.direction is Direction.RX
                and not e.inconclusive and e.mono_ns >= began
            ]  # fmt: skip
            firsts = {e.path: e for e in reversed(called)}
            into.after_due += [(e.mono_ns - e.due_ns) / 1e6 for e in firsts.values() if e.due_ns]
            every += [e.mono_ns for e in called]
        every.sort()
        if len(every) >= MISSES:
            into.first.append((every[0] - began) / 1e6)
            into.third.append((every[MISSES - 1] - began) / 1e6)

    def watch_quietly(self, seconds: float, into: Counter[str]) -> None:
        """Conclusive misses while nothing is lost: by nobody's stall, and all."""
        with self.rings() as rings:
            time.sleep(seconds)
            events = [event for ring in rings.values() for event in ring.events()]
        stalls = [e for e in events if isinstance(e, StallRecord)]
        misses = [
            e for e in events
            if isinstance(e, MissRecord) and e.direction is Direction.RX and not e.inconclusive
        ]  # fmt: skip
        # A sender that stood still sent nothing: its packet was late by that, and no clock's fault.
        free = [
            m for m in misses
            if not any(s.start_ns - NEAR_NS < m.mono_ns < s.mono_ns + NEAR_NS for s in stalls)
        ]  # fmt: skip
        into.update(free=len(free), every=len(misses), stalls=len(stalls))


def _tables(synchronized: bool) -> dict[str, Any]:
    probe = PROBE | {"synchronized": synchronized}
    return {"probe": probe, "hold": HOLD, "damping": DAMPING, "steer": STEER}


def _figures(values: list[float]) -> str:
    if not values:
        return "none"
    return f"{percentile(values, 0.5):.1f} / {percentile(values, 0.99):.1f} ms ({len(values)})"


def synchronized(*, quick: bool) -> list[Row]:
    """Verdicts of black holes by due time and by pace, beside the round trip; false ones."""
    # In turn, so that a busy hour of the machine is both's.
    rounds, count, quiet_s = (2, 8, 10.0) if quick else (4, 20, 15.0)
    topology = Topology("clock-sync", hosts=HOSTS, rails=RAILS, rate_bps=parse_rate("1gbit"))
    found = {True: Measured(), False: Measured()}
    quiet = {kind: {True: Counter[str](), False: Counter[str]()} for kind in (IDLE, BUSY)}
    with Cluster(topology=topology) as cluster:
        cluster.start_daemons(restart=False, **_tables(True))
        for node in cluster.nodes:
            node.start_clock(restart=False)
        wait_until(lambda: links_up(cluster), START_S, "all links UP")
        with PageWatch(cluster) as watch:
            bench = Bench(cluster, watch)
            for wanted in (True, False) * rounds:
                bench.synchronize(wanted)
                bench.watch_quietly(quiet_s, quiet[IDLE][wanted])
                with compute():
                    bench.watch_quietly(quiet_s, quiet[BUSY][wanted])
                for number in range(count):
                    node = cluster.nodes[number % HOSTS]
                    bench.strike(node, number // HOSTS % RAILS, found[wanted])
    return _rows(found, quiet, rounds * quiet_s)


def _rows(
    found: dict[bool, Measured], quiet: dict[str, dict[bool, Counter[str]]], quiet_s: float
) -> list[Row]:
    ours, before = found[True], found[False]
    trips = [
        (ours.after_due, "lost packet due → called by its receiver", ours.trip_after_due, []),
        (ours.first, "black hole → first miss called", ours.trip_first, before.first),
        (ours.third, "black hole → third miss called", ours.trip_third, before.third),
        (ours.down, "black hole → DOWN at the host whose packets vanish", [], before.down),
    ]  # fmt: skip
    rows = []
    for values, name, trip, unsynchronized in trips:
        for q in (0.5, 0.99):
            asked = INTERVAL_MS if values is ours.after_due else None
            rows.append(
                Row(f"{name}, p{100 * q:.0f}", asked, percentile(values, q), "ms",
                    peer=percentile(trip, q) if trip else None,
                    note=f"{_figures(values)}; round trip {_figures(trip)}; not synchronized "
                    f"{_figures(unsynchronized)}; p50 / p99",
                    samples={"ms": values, "round_trip_ms": trip,
                             "unsynchronized_ms": unsynchronized})
            )  # fmt: skip
    for q in (0.5, 0.99):
        part = percentile(ours.after_due, q) / percentile(ours.trip_after_due, q)
        rows.append(Row(f"lost packet due → called, part of the round trip's, p{100 * q:.0f}",
                        1.0, part, ""))  # fmt: skip
    rows.append(Row("black holes without DOWN while they lasted", 0, ours.unseen, "",
                    better="equal", note=f"not synchronized: {before.unseen}"))  # fmt: skip
    for kind, counts in quiet.items():
        said = {
            way: f"{n['every']} with those by {n['stalls']} stalls of probers"
            for way, n in counts.items()
        }
        rows.append(Row(f"misses called in {quiet_s:.0f} s of no loss, {kind}", 0,
                        counts[True]["free"], "", better="equal",
                        note=f"{said[True]}; not synchronized: {counts[False]['free']}, "
                        f"{said[False]}"))  # fmt: skip
    return rows
