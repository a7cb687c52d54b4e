"""What a clock service takes of a core, and of memory: a whole one, fed by a ring in virtual time.

The ring is filled as the prober of a host with eight rails fills it: trains on its clock paths,
single packets on all others, the neighbours' messages with each packet. Peers' clocks are off by
what is known, so that it is seen that the service did its work. Making the samples is not counted,
and neither is the system's waking ten times a second.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import Row, percentile
from clocksync.mesh.codec import encode
from clocksync.mesh.messages import Mesh, MeshId, Reference, Time
from clocksync.page.clock_page import ClockPage, State
from clocksync.page.outbox import OutboxPage
from clocksync.pair.model import SECOND
from clocksync.pair.trains import Ints
from fabricd.clock.__main__ import GLANCE_S, settle
from fabricd.clock.samples import RECORD
from fabricd.clock.service import STEP_S, ClockService
from fabricd.config.tables import ProbeTable
from fabricd.detect.mesh import Node, choose, train_rate
from fabricd.probes import layout as lay
from fabricd.probes.client import host_id
from lab.inputs.ring_file import fresh_ring, put

RAILS, HOSTS = 8, 128
SHARE = 3.0
"""Percent of one core, asked by issue 5 of 8 rails and degree 10."""
STEP_NS = round(STEP_S * SECOND)
WARM_S = 6
RUNS = 7
GAP_NS = 8000
"""Between the packets of a train."""
LOADED = 0.4
"""Share of the packets that meet a queue."""
ORIGIN_NS, WALL_NS = 10**13, 1_800_000_000 * SECOND
PROGRAM = """
import sys
from pathlib import Path
import fabricd.clock.__main__ as program
from fabricd.clock.service import ClockService
from fabricd.config.loader import load
load(Path(sys.argv[1]) / "config.toml")
(Path(sys.argv[1]) / "prober").mkdir()
service = ClockService(7, Path(sys.argv[1]), priority=100)
service.tick()
print(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
"""


@dataclass(frozen=True, slots=True)
class Wire:
    """A path of the host's."""

    link: int
    peer: str
    clock: bool


def usual() -> tuple[list[Wire], int]:
    """Paths of a host of 128 by default, and trains a second of each clock path."""
    rails: dict[int, tuple[str, ...]] = {rail: (f"10.{rail}.0.1",) for rail in range(RAILS)}
    peers = [Node(f"h{number}", rails) for number in range(1, HOSTS)]
    probe = ProbeTable()
    specs = choose(
        "h0", [(rail, rail, f"10.{rail}.0.2") for rail in range(RAILS)], peers,
        per_rail=probe.peers_per_rail, cross_rail=probe.cross_rail_peers,
    )  # fmt: skip
    rate = train_rate(probe.clock_train_hz, RAILS, len(peers))
    return [Wire(spec.link, spec.peer, spec.clock) for spec in specs], rate


def all_of_them() -> tuple[list[Wire], int]:
    """Trains on all of ten paths of each rail, at the full rate."""
    ends = itertools.product(range(RAILS), range(1, 11))
    return [Wire(rail, f"h{peer}", clock=True) for rail, peer in ends], ProbeTable().clock_train_hz


class Stamped:
    """The host's clock, which this bench moves (`fabricd.clock.clocks.Clocks`)."""

    def __init__(self) -> None:
        self.ns = ORIGIN_NS

    def now(self) -> int:
        """Now."""
        return self.ns

    def own(self, stamps: Ints) -> Ints:
        """As they are."""
        return stamps

    def peers(self, host: int, stamps: Ints) -> Ints:  # noqa: ARG002
        """As they are."""
        return stamps


class Ring:
    """The ring file of a prober with these paths."""

    def __init__(self, directory: Path, wires: list[Wire], trains_hz: int) -> None:
        self.rng = np.random.default_rng(1)
        self.wires, self._head, self._step = wires, 0, 0
        data = fresh_ring(links=RAILS, paths=len(wires))
        for index, wire in enumerate(wires):
            put(
                data, lay.PATH_ROW, lay.PATH_OFFSET + index * lay.PATH_ROW.size,
                address=b"\xfd" + bytes(13) + index.to_bytes(2, "big"), link=wire.link,
                flags=lay.PATH_ESTABLISHED | (lay.PATH_CLOCK if wire.clock else 0),
                host_id=host_id(wire.peer), peer_incarnation=5,
            )  # fmt: skip
        path = directory / "prober" / "ring"
        path.write_bytes(data)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), lay.RING_FILE_SIZE)
        self._slots = np.frombuffer(self._map, RECORD, lay.SAMPLE_SLOTS, lay.SAMPLE_OFFSET)
        peers = sorted({wire.peer for wire in wires})
        self._at = {peer: at for at, peer in enumerate(peers)}
        self._ids = [host_id(peer) for peer in peers]
        self._offset = self.rng.integers(-SECOND, SECOND, len(peers))
        self._rate = self.rng.uniform(-30e-6, 30e-6, len(peers))
        self._gauge = MeshId(min(self._ids), WALL_NS - 1000 * SECOND)
        # What one step brings: for each record its path, train and position.
        clocks = [index for index, wire in enumerate(wires) if wire.clock]
        self._trains = round(trains_hz * STEP_S)
        grid = itertools.product(range(self._trains), clocks, (1, 2, 3))
        single = [index for index, wire in enumerate(wires) if not wire.clock]
        # Each link hears a single packet every 10 ms.
        singles = [single[n * 7 % len(single)] for n in range(RAILS * 10)] if single else []
        rows = list(grid) + [(n * self._trains // len(singles), path, 0)
                             for n, path in enumerate(singles)]  # fmt: skip
        rows.sort()
        columns = (np.array(column) for column in zip(*rows, strict=True))
        self._train, self._path, self._position = columns
        self._peer = np.array([self._at[wires[path].peer] for path in self._path.tolist()])

    def apart(self, peer: Ints, at: Ints) -> Ints:
        """The peers' clocks less ours."""
        return self._offset[peer] + np.rint(self._rate[peer] * (at - ORIGIN_NS)).astype(np.int64)

    def _messages(self, now: int) -> list[list[bytes]]:
        """What each peer tells: mesh time and fabric time are our clock's, and `WALL_NS`."""
        tag, reference, ns = self._gauge.tag, self._gauge.founder, WALL_NS + now - ORIGIN_NS
        said = encode(Reference(tag, 1, reference, 1, ns, 0, 0.0, 0.0))
        out = []
        for peer in range(len(self._ids)):
            raw = now + int(self.apart(np.array([peer]), np.array([now]))[0])
            slope = -self._rate[peer] / (1 + self._rate[peer])
            mesh = Mesh(tag, raw, ns, 0.0, slope, reference)
            known = Time(tag, reference, 1, raw, ns, 100.0, 1e-9)
            out.append([encode(mesh), encode(self._gauge), said, encode(known)])
        return out

    def step(self, now: int) -> None:
        """Write what comes in the step that ends now."""
        count, rng = len(self._path), self.rng
        at = now - STEP_NS + self._train * STEP_NS // self._trains + self._position * GAP_NS
        at = at + self._path * 3000
        rows = np.zeros(count, RECORD)
        rows["index"] = self._head + 1 + np.arange(count)
        rows["path"], rows["config"] = self._path, 1
        position = self._position.astype(np.uint16)
        rows["flags"] = lay.SAMPLE_HAS_OUT | lay.SAMPLE_HAS_BACK
        rows["flags"] |= position << lay.SAMPLE_OUT_TRAIN_SHIFT
        rows["flags"] |= position << lay.SAMPLE_BACK_TRAIN_SHIFT
        seq = (self._step * self._trains + self._train) * 3 + self._position
        rows["local_seq"] = rows["peer_seq"] = seq
        for sent, heard, sign in (("t1", "t2", 1), ("t3", "t4", -1)):
            queue = (rng.random(count) < LOADED) * rng.exponential(5e3, count)
            delay = np.rint(5000 + np.abs(rng.normal(0, 15, count)) + queue).astype(np.int64)
            ours = at if sign > 0 else at + delay
            theirs = (at + delay if sign > 0 else at) + self.apart(self._peer, ours)
            rows[sent], rows[heard] = (ours, theirs) if sign > 0 else (theirs, ours)
        messages = self._messages(now - STEP_NS)
        turns = zip(seq.tolist(), self._peer.tolist(), strict=True)
        rows["clock_message"] = [messages[peer][turn % 4] for turn, peer in turns]
        self._slots[(self._head + np.arange(count)) % lay.SAMPLE_SLOTS] = rows
        self._head, self._step = self._head + count, self._step + 1
        beat = time.monotonic_ns().to_bytes(8, "little")
        for index in range(len(self.wires)):
            at = lay.PATH_OFFSET + index * lay.PATH_ROW.size + lay.PATH_ROW.offset("last_heard_ns")
            self._map[at : at + 8] = beat
        head = lay.RING_HEADER.offset("sample_head")
        self._map[head : head + 8] = self._head.to_bytes(8, "little")


class Meter:
    """CPU of some calls by name, without that of others within them; ns."""

    def __init__(self) -> None:
        self.ns: Counter[str] = Counter()
        self._metered: list[tuple[Any, str, Any]] = []
        self._within: list[str] = []

    def on(self, owner: Any, call: str, name: str) -> None:  # noqa: ANN401
        """Count those of an object's."""
        inner = getattr(owner, call)

        def timed(*given: Any) -> Any:  # noqa: ANN401
            self._within.append(name)
            began = time.process_time_ns()
            try:
                return inner(*given)
            finally:
                took = time.process_time_ns() - began
                self._within.pop()
                self.ns[name] += took
                if self._within:
                    self.ns[self._within[-1]] -= took

        setattr(owner, call, timed)
        self._metered.append((owner, call, inner))

    def off(self) -> None:
        """Leave them as they were."""
        for owner, call, inner in self._metered:
            setattr(owner, call, inner)


def _run(
    wires: list[Wire], trains_hz: int, seconds: int, meter: Meter | None = None
) -> tuple[list[float], float, float]:
    """CPU of each step (with the document where one is due), ms; worst error and bound, ns."""
    took: list[float] = []
    worst = bound = 0.0
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "prober").mkdir()
        ring, clock = Ring(directory, wires, trains_hz), Stamped()
        settle()
        service = ClockService(host_id("h0"), directory, priority=100, clocks=clock)
        for number in range(round((WARM_S + seconds) / STEP_S)):
            clock.ns += STEP_NS
            ring.step(clock.ns)
            if number * STEP_S == WARM_S and meter is not None:
                for owner, call, name in (
                    (service.table, "read", "ring"), (service, "_take", "messages"),
                    (service.fit_scheduler, "feed", "train filter"),
                    (service.fit_scheduler, "fit", "fits"),
                    (service.core, "step", "mesh step"), (service.core, "messages", "own messages"),
                    (OutboxPage, "write", "pages"), (ClockPage, "write", "pages"),
                    (service, "store", "document"),
                ):  # fmt: skip
                    meter.on(owner, call, name)
            began = time.process_time_ns()
            service.tick()
            for _ in range(round(STEP_S / GLANCE_S) - 1):
                service.glance()
            if number % 10 == 0:
                service.store()
            done = time.process_time_ns() - began
            if number * STEP_S < WARM_S:
                continue
            took.append(done / 1e6)
            line = service.line
            assert line is not None
            assert line.state is State.LOCKED, line
            assert service.core.status.neighbours == sum(wire.clock for wire in wires)
            worst = max(worst, abs(line.fabric_ns - WALL_NS - (line.raw_ns - ORIGIN_NS)))
            bound = max(bound, line.bound_ns)
        service.close()
        gc.unfreeze()
    return took, worst, bound


def cpu(*, quick: bool) -> list[Row]:
    """Shares of a core, and where they go."""
    seconds = 5 if quick else 30
    rows = []
    for name, (wires, trains_hz) in (
        ("by default", usual()), ("all with trains", all_of_them()),
    ):  # fmt: skip
        clocks = sum(wire.clock for wire in wires)
        runs = [_run(wires, trains_hz, seconds) for _ in range(1 if quick else RUNS)]
        shares = [sum(took) / 10 / seconds for took, _, _ in runs]
        took, worst, bound = runs[-1]
        meter = Meter()
        metered, _, _ = _run(wires, trains_hz, seconds, meter)
        meter.off()
        parts = {part: ns / 1e6 for part, ns in meter.ns.items()}
        parts["rest"] = sum(metered) - sum(parts.values())
        where = ", ".join(f"{part} {ms / 10 / seconds:.2f}" for part, ms in parts.items())
        note = (
            f"median of {len(shares)} runs; one: {where} %; off by {worst:.0f} ns at most, "
            f"bound {bound:.0f} ns"
        )
        paths = f"{RAILS} rails, {clocks} clock paths at {trains_hz} trains/s ({name})"
        rows += [
            Row(
                f"{paths}: of one core",
                SHARE,
                percentile(shares, 0.5),
                "%",
                note=note,
                samples={"%": shares},
            ),
            Row(f"{paths}: p99 of a step", None, percentile(took, 0.99), "ms of CPU"),
        ]
    with tempfile.TemporaryDirectory() as folder:
        links = "".join(
            f'[[links]]\nnetdev = "rail{rail}"\nrail = {rail}\n' for rail in range(RAILS)
        )
        (Path(folder) / "config.toml").write_text(links)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, folder], check=True, capture_output=True, text=True
        )
    return [*rows, Row("memory of fabric-clock", None, int(done.stdout) / 1024, "MiB resident")]
