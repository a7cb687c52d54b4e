"""Two hosts whose NICs stamp, in virtual time: whole clock services, made-up packets and readings.

Each host has a raw clock and a NIC's clock with a crystal of its own; stamps are of either.
"""

import math
import random

import numpy as np
import pytest

from clocksync.mesh.model import HostRules
from clocksync.page.clock_page import State
from clocksync.page.outbox import SIZE
from clocksync.pair.crossing import Reading
from fabricd.clock import status_reader
from fabricd.clock.paths import ClockPath, PathKey
from fabricd.clock.phc import PhcError, Phcs
from fabricd.clock.samples import Exchanged
from fabricd.clock.service import ClockService
from fabricd.clock.status_writer import status_document
from fabricd.probes import layout as lay

SECOND = 10**9
TICK = SECOND // 10
QUICK = HostRules(listen_ns=SECOND // 2, settled_ns=SECOND // 2)
START = 100 * SECOND


class Ticking:
    """A clock that is off by a rate; others may set it, or change that."""

    def __init__(self, origin, rate):
        self.origin, self.rate, self.since, self.gained = origin, rate, 0, 0.0

    def at(self, true_ns):
        whole = self.gained + self.rate * (true_ns - self.since)
        return self.origin + round(true_ns + whole)

    def all(self, true_ns):
        whole = self.gained + self.rate * (true_ns - self.since)
        return self.origin + np.rint(true_ns + whole).astype(np.int64)

    def turn(self, true_ns, rate):
        self.gained += self.rate * (true_ns - self.since)
        self.rate, self.since = rate, true_ns


class Device:
    """A PHC as its driver reads it: the shortest of some windows, and not quite in its middle."""

    way = "extended"

    def __init__(self, host):
        self.host, self.rng = host, random.Random(host.id)

    def read(self):
        if self.host.broken:
            raise PhcError("ptp0: Input/output error, says the test")
        now = self.host.world.now
        half = 300 + min(self.rng.expovariate(0.02) for _ in range(9))
        off = self.rng.gauss(0, 10)
        return Reading(self.host.raw.at(now + round(off)), self.host.phc.at(now), half)

    def close(self):
        pass


class Host:
    """A clock service between made-up paths and readings."""

    def __init__(self, world, number, run_dir, hardware):
        self.world, self.id, self.hardware = world, number, hardware
        self.clock_read_ns = 60
        self.raw = Ticking(10**15 * number, 20e-6 * (number - 1))
        self.phc = Ticking(18 * 10**17 + 10**12 * number, -15e-6 * number)
        self.stamps = self.phc if hardware else self.raw
        self.broken, self.said = False, []
        (run_dir / "prober").mkdir(parents=True)
        self.service = ClockService(
            number, run_dir, priority=100, clocks=self, rules=QUICK,
            phcs=Phcs(lambda _: Device(self), lambda: world.now),  # a reading takes no time
        )  # fmt: skip
        peer = 3 - number
        self.path = ClockPath(0, PathKey("rail0", f"10.0.0.{peer}", 9200, peer))
        self.path.address, self.path.phc = f"10.0.0.{number}", 5 if hardware else None
        self.service.table = self
        self.service._outbox.write = self.take_messages
        self.by_index, self.silence_ns, self.lost_ns = {0: self.path}, SECOND, SECOND

    # -- what a Clocks and a PathTable are to the service -----------------------------------------

    def now(self):
        return self.raw.at(self.world.now)

    def own(self, stamps):
        return stamps

    def peers(self, _host, stamps):
        return stamps

    def all(self):
        return [self.path]

    def read(self, _now_ns):
        return {0: self.world.exchanged(self)}

    def silent(self, _host, _now_ns):
        return None

    def close(self):
        pass

    def take_messages(self, messages, links):
        self.said = [*messages, *links.values()]
        assert all(len(message) == SIZE for message in self.said)
        assert set(links) <= {0}

    def pair(self):
        """What the mesh has of the path."""
        edge = self.service.core.edges.get(0)
        return edge and edge.pair

    def fabric(self):
        """Fabric time by the page, its bound, and what of a nanosecond the raw clock leaves out."""
        found = self.service.line.at(self.raw.at(self.world.now))
        return found.ns, found.bound_ns


class World:
    """Both of them, and the packets between them."""

    def __init__(self, tmp_path, hardware, seed=1):
        self.now, self.rng = START, np.random.default_rng(seed)
        self.hosts = [Host(self, n + 1, tmp_path / str(n), hardware[n]) for n in (0, 1)]
        self.heard = {}
        self.errors, self.misses, self.states = [], 0, []

    def packets(self, source, target):
        left = self.now - TICK + np.repeat(np.arange(10) * (TICK // 10), 3).astype(float)
        left += np.tile([0, 700, 1400], 10) + 1000 * source.id
        queued = np.repeat(self.rng.exponential(300, 10) * (self.rng.random(10) < 0.5), 3)
        came = left + 1500 + queued + self.rng.uniform(0, 4, 30)
        return source.stamps.all(left), target.stamps.all(came)

    def exchanged(self, host):
        other = self.hosts[2 - host.id]
        kinds = host.hardware, other.hardware
        position, seq = np.tile([1, 2, 3], 10), self.now // TICK * 30 + np.arange(30)
        flags = lay.SAMPLE_HAS_OUT | lay.SAMPLE_HAS_BACK
        flags |= position << lay.SAMPLE_OUT_TRAIN_SHIFT | position << lay.SAMPLE_BACK_TRAIN_SHIFT
        out, back = self.packets(host, other), self.packets(other, host)
        packets = np.stack((flags, seq, seq, *out, *back))
        return Exchanged(packets, kinds, self.heard.get(other.id, []))

    def run(self, seconds):
        self.errors, self.misses, self.states = [], 0, []
        for _ in range(round(10 * seconds)):
            self.now += TICK
            for host in self.hosts:
                host.service.tick()
            self.heard = {host.id: host.said for host in self.hosts}
            self.states.append({host.service.line.state for host in self.hosts})
            if self.states[-1] == {State.LOCKED}:
                (one, bound), (other, more) = (host.fabric() for host in self.hosts)
                self.errors.append(one - other)
                # One of them gives the time: the other's bound is of the difference.
                self.misses += abs(one - other) > bound + more


@pytest.fixture
def make(tmp_path):
    made = []

    def start(*hardware):
        made.append(World(tmp_path, hardware))
        return made[-1]

    yield start
    for world in made:
        for host in world.hosts:
            host.service.close()


@pytest.mark.parametrize("hardware", [(True, True), (True, False), (False, True)])
def test_hosts_agree_whoever_makes_their_stamps(make, hardware):
    world = make(*hardware)
    world.run(6)
    world.run(4)
    assert world.states == [{State.LOCKED}] * 40
    assert world.misses == 0
    rms = math.sqrt(sum(error**2 for error in world.errors) / 40)
    assert rms < 10, "the reads' jitter of 10 ns, averaged"
    other = world.hosts[1]
    assert other.service.refused == 0
    bounds = [host.fabric()[1] for host in world.hosts]
    least = 300 * sum(hardware)
    assert max(bounds) > 700 + least, "half of the reads' windows is in it"


def test_a_phc_that_is_set_is_no_step_of_fabric_time(make):
    world = make(True, True)
    world.run(6)
    for step in (1_000_000, -37 * SECOND):
        world.hosts[1].phc.gained += step
        world.run(5)
        assert max(map(abs, world.errors)) < 60, "the line between the raw clocks went on"
        assert world.states == [{State.LOCKED}] * 50
        assert world.misses == 0
    source = world.hosts[1].service.phcs.source(5)
    assert (source.crossing.steps, source.crossing.adjusted) == (2, 0)


def test_a_phc_whose_rate_is_changed_stays_within_the_bound(make):
    world = make(True, True)
    world.run(6)
    for rate in (-29e-6, -30.2e-6):
        world.hosts[1].phc.turn(world.now, rate)
        world.run(5)
        assert max(map(abs, world.errors)) < 400
        assert abs(world.errors[-1]) < 30
        assert world.misses == 0
    assert world.hosts[1].service.phcs.source(5).crossing.generation >= 2


def test_without_its_clock_a_path_gives_nothing_and_says_why(make):
    world = make(True, False)
    one, other = world.hosts
    one.broken = True
    world.run(2)
    assert one.pair() is other.pair() is None
    said = status_document(one.service.core, [one.path], one.service.phcs)
    assert said["paths"][0]["stamps"] == ["hardware", "software"]
    assert "Input/output error" in said["phcs"][0]["why"]
    world.run(40)
    kept = [len(points.since(0)[0]) for host in world.hosts for points in host.path.estimator.ways]
    assert max(kept) < 25 * 100, "what cannot be used does not pile up"
    assert said["neighbours"] == 0
    one.broken = False
    world.run(7)
    assert one.pair() is not None
    assert said["paths"][0].keys() == status_document(
        one.service.core, [one.path], one.service.phcs
    )["paths"][0].keys()  # fmt: skip
    one.service.store()
    (known,) = status_reader.read(one.service._directory)["phcs"]
    assert known["why"] is None
    assert known["slope"] == pytest.approx((1 - 15e-6) / 1.0 - 1, abs=1e-7)
