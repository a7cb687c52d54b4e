"""Reading a PHC: what the kernel is asked, by every way, and what becomes of its refusals."""

import errno
import json
import os
import struct
import subprocess
import time

import pytest

from clocksync.pair.crossing import PRECISE_NS, Reading
from fabricd.clock import phc
from fabricd.clock.phc import PERIOD_NS, PhcDevice, PhcError, Phcs

SECOND = 10**9


class Kernel:
    """Answers ioctls as <linux/ptp_clock.h> has them; by number, an errno where it has none."""

    def __init__(self, **errors):
        self.errors = errors
        self.asked = []
        self.apart = 7 * SECOND
        self.takes = 500

    def put(self, data, at, *values):
        for number, ns in enumerate(values):
            struct.pack_into("=qII", data, at + 16 * number, ns // SECOND, ns % SECOND, 0)

    def __call__(self, _fd, number, data):
        name, clock = self.name(number), 0
        if name != "precise":
            count, clock = struct.unpack_from("=Ii", data)
            assert 0 < count <= 25
            name = {("extended", 0): "wall"}.get((name, clock), name)
        self.asked.append(name)
        if name in self.errors:
            raise OSError(self.errors[name], os.strerror(self.errors[name]))
        read = phc.wall()
        raw, self.unsure = read.after_ns, (read.after_ns - read.before_ns) / 2
        if name == "precise":
            self.put(data, 0, raw + self.apart, time.time_ns(), raw)
            return 0
        over_raw = clock == time.CLOCK_MONOTONIC_RAW
        now = raw if over_raw else time.time_ns()
        more = self.apart - (0 if over_raw else read.apart_ns)
        for sample in range(count):
            at = now + 10 * sample
            width = self.takes + 100 * ((sample + 3) % count)
            if name == "plain":
                self.put(data, 16 + 32 * sample, now, now + self.takes // 2 + more)
                now += self.takes
                continue
            self.put(data, 16 + 48 * sample, at, at + width // 2 + more, at + width)
        if name == "plain":
            self.put(data, 16 + 32 * count, now)
        return 0

    def name(self, number):
        return {phc.PTP_SYS_OFFSET: "plain", phc.PTP_SYS_OFFSET_PRECISE: "precise",
                phc.PTP_SYS_OFFSET_EXTENDED: "extended"}[number]  # fmt: skip


@pytest.fixture
def device(tmp_path):
    """Makes a device that asks the kernel given."""
    (tmp_path / "ptp3").write_bytes(b"")
    made = []

    def start(kernel):
        made.append(PhcDevice(tmp_path / "ptp3", kernel))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_numbers_and_layouts_are_those_of_the_kernels_header(native):
    dump = native("prober/fabric_ring_layout_dump")
    shown = subprocess.run([dump], check=True, capture_output=True, timeout=20).stdout
    there = json.loads(shown)["ptp"]
    names = ("PTP_SYS_OFFSET", "PTP_SYS_OFFSET_PRECISE", "PTP_SYS_OFFSET_EXTENDED", "PLAIN_SIZE",
             "PRECISE_SIZE", "EXTENDED_SIZE", "MOST_SAMPLES")  # fmt: skip
    assert {name: getattr(phc, name) for name in names} == {name: there[name] for name in names}
    assert (there["time"], there["time.nsec"]) == (16, 8)
    assert (there["plain.ts"], there["extended.ts"], there["extended.clockid"]) == (16, 16, 4)
    assert there["precise.monoraw"] == 32


@pytest.mark.parametrize(
    ("missing", "way", "half"),
    [
        ((), "precise", PRECISE_NS),
        (("precise",), "extended", 251.0),
        (("precise", "extended"), "extended over the wall clock", 251.0),
        (("precise", "extended", "wall"), "plain", 251.0),
    ],
)
@pytest.mark.parametrize("refusal", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY])
def test_the_best_way_that_there_is(device, missing, way, half, refusal):
    kernel = Kernel(**dict.fromkeys(missing, refusal))
    one = device(kernel)
    found = one.read()
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    assert one.way == way
    # Over the wall clock its own reading adds; the machine may have stood still in between.
    assert half <= found.half_ns < half + (0.1 if way in ("precise", "extended") else 10**7)
    assert found.phc_ns - found.raw_ns == pytest.approx(
        kernel.apart, abs=found.half_ns + kernel.unsure + 1
    )
    assert abs(now - found.raw_ns) < SECOND
    asked = len(kernel.asked)
    one.read()
    assert len(kernel.asked) == asked + 1, "what it has not got is not asked for again"


def test_where_there_is_no_way_at_all_it_is_an_error(device):
    names = ("precise", "extended", "wall", "plain")
    one = device(Kernel(**dict.fromkeys(names, errno.EOPNOTSUPP)))
    with pytest.raises(PhcError, match="no way to read it"):
        one.read()


@pytest.mark.parametrize("refusal", [errno.EBUSY, errno.EIO, errno.EAGAIN])
def test_a_device_that_is_busy_is_read_later_and_after_long_in_another_way(device, refusal):
    kernel = Kernel(precise=refusal)
    one = device(kernel)
    for _ in range(phc.MISSES):
        assert one.way == "precise"
        assert one.read() is None
    assert isinstance(one.read(), Reading)
    assert one.way == "extended"


def test_a_better_way_that_was_busy_is_tried_again_later(device):
    kernel = Kernel(precise=errno.EBUSY, extended=errno.EBUSY)
    one = device(kernel)
    while one.way != "extended over the wall clock":
        one.read()
    kernel.asked.clear()
    for _ in range(phc.AGAIN):
        assert isinstance(one.read(), Reading)
    assert kernel.asked.count("precise") == kernel.asked.count("extended") == 1
    assert one.way == "extended over the wall clock", "both are still busy"
    del kernel.errors["extended"]
    for _ in range(phc.AGAIN):
        assert isinstance(one.read(), Reading)
    assert one.way == "extended"
    del kernel.errors["precise"]
    for _ in range(phc.AGAIN):
        assert isinstance(one.read(), Reading)
    assert one.way == "precise"
    kernel.asked.clear()
    for _ in range(phc.AGAIN + 1):
        one.read()
    assert set(kernel.asked) == {"precise"}, "there is no better one"


@pytest.mark.parametrize("refusal", [errno.ENODEV, errno.ENXIO, errno.EPERM])
def test_a_device_that_is_gone_is_an_error(device, refusal):
    with pytest.raises(PhcError, match="ptp3"):
        device(Kernel(precise=refusal)).read()


def test_without_a_device_it_is_an_error(tmp_path):
    with pytest.raises(PhcError, match="No such file"):
        PhcDevice(tmp_path / "ptp9")


def test_a_regular_file_is_no_device(tmp_path):
    (tmp_path / "ptp0").write_bytes(b"x" * 4096)
    one = PhcDevice(tmp_path / "ptp0")
    with pytest.raises(PhcError, match="no way to read it"):
        one.read()
    one.close()


class Fake:
    """A device as a test wants it."""

    way = "extended"

    def __init__(self):
        self.step, self.gone, self.closed, self.now = 0, "", 0, 0

    def read(self):
        if self.gone:
            raise PhcError(self.gone)
        return Reading(self.now, self.now + 5 * SECOND + self.step, 300.0)

    def close(self):
        self.closed += 1


def test_the_clocks_that_stamp_are_read_and_others_let_go():
    devices = {}

    def opener(number):
        devices[number] = Fake()
        devices[number].now = now
        return devices[number]

    phcs, now = Phcs(opener, lambda: 0), 10**12

    def run(seconds, *wanted):
        nonlocal now
        for _ in range(round(10 * seconds)):
            now += SECOND // 10
            for one in devices.values():
                one.now = now
            phcs.read(wanted, now)

    run(3, 0, 4)
    assert phcs.source(0).crossing.at(now).line.slope == pytest.approx(0)
    assert phcs.source(None) is phcs.source(7) is None
    assert sorted(phcs.used()) == [0, 4]
    was = phcs.source(0).crossing.generation
    run(1, 4)
    assert (devices[0].closed, phcs.used()) == (1, [4])
    assert phcs.source(0).crossing.line is None
    assert phcs.source(0).crossing.generation == was + 1, "what comes back may be another"
    devices[4].step = 10_000
    run(2, 4)
    assert phcs.source(4).crossing.steps == 1
    devices[4].gone = "ptp4: No such device"
    run(1, 4)
    source = phcs.source(4)
    assert (source.why, source.crossing.line) == ("ptp4: No such device", None)
    assert devices[4].closed == 1
    generation = source.crossing.generation
    run(5, 4)
    run(2, 4)
    assert source.why == "", "another one has its place now"
    assert source.crossing.at(now) is not None
    assert source.crossing.generation == generation
    phcs.close()
    assert devices[4].closed == 1


def test_over_a_raw_clock_that_went_back_a_nics_clock_is_known_again():
    device, now = Fake(), 10**12
    phcs = Phcs(lambda _: device, lambda: 0)

    def run(seconds):
        nonlocal now
        for _ in range(round(10 * seconds)):
            now += SECOND // 10
            device.now = now
            phcs.read((3,), now)

    run(3)
    generation = phcs.source(3).crossing.generation
    now -= 500 * SECOND
    phcs.anew()
    assert phcs.source(3).crossing.at(now) is None, "it was over the clock of before"
    run(3)
    assert phcs.source(3).crossing.at(now) is not None
    assert phcs.source(3).crossing.generation > generation


@pytest.mark.parametrize(("took_ns", "due_ns"), [(0, PERIOD_NS * 9 // 10), (SECOND, 20 * SECOND)])
def test_a_clock_that_is_slow_to_read_is_read_seldom(took_ns, due_ns):
    spent, reads = 0, 0

    class Slow(Fake):
        def read(self):
            nonlocal spent, reads
            spent, reads = spent + took_ns, reads + 1
            return super().read()

    phcs, now = Phcs(lambda _: Slow(), lambda: spent), 10**12
    phcs.read((3,), now)
    assert phcs.source(3).due_ns == now + due_ns, "one part in twenty of the time at most"
    phcs.read((3,), now + due_ns - 1)
    assert reads == 1
    phcs.read((3,), now + due_ns)
    assert reads == 2
