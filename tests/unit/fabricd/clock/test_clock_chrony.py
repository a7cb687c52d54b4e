"""What chronyd is told: the bytes of its refclock, when, and what keeps it from being told."""

import os
import socket
import struct
from contextlib import ExitStack

import pytest
from clock_services import Stopped

from clocksync.page.clock_page import Line, State
from clocksync.page.tai_page import NO_TAI, Source, TaiLine
from clocksync.pair.crossing import Wall
from fabricd.clock.chrony import Chrony, sample

SECOND = 10**9
UTC = 1_800_000_000 * SECOND
LAYOUT = struct.Struct("@qqdiiii")


def tai(state=State.LOCKED, utc_offset_s=37, leap=0, bound_ns=900.0):
    line = Line(
        raw_ns=10**12, fabric_ns=UTC + 37 * SECOND, slope=0.0, bound_ns=bound_ns, drift=0.0,
        wander=0.0, fresh_ns=3600 * SECOND, end_ns=7200 * SECOND, state=state, reference=7, epoch=1,
    )  # fmt: skip
    return TaiLine(line, Source(utc_offset_s=utc_offset_s, leap=leap))


@pytest.fixture
def daemon(tmp_path):
    """Where chronyd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as made:
        made.bind(str(tmp_path / "chrony.sock"))
        yield made


class Machine:
    """A host whose wall clock is so far off UTC."""

    def __init__(self, path, off_ns=0, width_ns=100):
        self.clocks, self.off_ns, self.width_ns = Stopped(), off_ns, width_ns
        self.chrony = Chrony(path, self.read)

    def read(self):
        half = self.width_ns // 2
        wall = UTC + self.off_ns + (self.clocks.ns - 10**12)
        return Wall(self.clocks.ns - half, wall, self.clocks.ns + half)

    def step(self, said, seconds=1.0):
        self.clocks.ns += round(seconds * SECOND)
        self.chrony.step(said, self.clocks, self.clocks.ns)


@pytest.fixture
def machines():
    """Makes them, with `Machine`'s arguments."""
    with ExitStack() as stack:

        def make(*args, **named):
            machine = Machine(*args, **named)
            stack.callback(machine.chrony.close)
            return machine

        yield make


@pytest.mark.parametrize("off_ns", [0, 1, -1, 250_000_000, -37 * SECOND])
def test_it_says_how_far_utc_is_from_the_systems_clock(daemon, off_ns, machines):
    machine = machines(daemon.getsockname(), off_ns)
    machine.step(tai())
    data = daemon.recv(100)
    seconds, us, offset, pulse, leap, _, magic = LAYOUT.unpack(data)
    assert len(data) == 40
    assert (pulse, leap, magic) == (0, 0, 0x534F434B)
    assert offset * 1e9 == pytest.approx(-off_ns, abs=0.01)
    wall = UTC + off_ns + SECOND
    assert 0 <= wall - (seconds * SECOND + us * 1000) < 1000
    assert 0 <= us < 10**6
    assert (machine.chrony.told, machine.chrony.why) == (1, "")


@pytest.mark.parametrize(("leap", "said"), [(0, 0), (1, 1), (-1, 2)])
def test_a_leap_second_is_told_in_chronys_numbers(leap, said):
    assert LAYOUT.unpack(sample(UTC, UTC, leap))[4] == said


def test_it_is_told_once_a_second_and_over_a_clock_that_went_back(daemon, machines):
    machine = machines(daemon.getsockname())
    for _ in range(95):
        machine.step(tai(), 0.1)
    told = machine.chrony.told
    assert told == 10
    machine.clocks.ns -= 100 * SECOND
    machine.chrony.anew()
    machine.step(tai(), 0.1)
    assert machine.chrony.told == told + 1


@pytest.mark.parametrize(
    ("said", "why"),
    [(tai(State.HOLDOVER), "TAI is holdover"), (NO_TAI, "TAI is unsynced"),
     (tai(utc_offset_s=None), "no master says what UTC is"),
     (tai(bound_ns=100_001.0), "TAI is within 100 us only")],
)  # fmt: skip
def test_what_is_held_over_or_not_known_is_not_told(daemon, said, why, machines):
    machine = machines(daemon.getsockname())
    machine.step(tai())
    machine.step(said)
    assert (machine.chrony.told, machine.chrony.why) == (1, why)
    machine.step(tai())
    assert (machine.chrony.told, machine.chrony.why) == (2, "")


def test_a_wall_clock_that_was_not_read_at_once_is_none(daemon, machines):
    machine = machines(daemon.getsockname(), width_ns=200_000)
    machine.step(tai())
    assert machine.chrony.told == 0
    assert machine.chrony.why == "reading the wall clock takes 200 us"
    machine.width_ns = 100
    machine.step(tai())
    assert (machine.chrony.told, machine.chrony.why) == (1, "")


def test_a_chronyd_that_is_not_there_stops_or_comes_back_holds_nothing_up(tmp_path, machines):
    path = tmp_path / "chrony.sock"
    machine = machines(path)
    machine.step(tai())
    assert machine.chrony.why == f"{path}: No such file or directory"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        for _ in range(5000):
            machine.step(tai())
        told = machine.chrony.told
        assert 0 < told < 5000
        assert machine.chrony.why == f"{path}: {os.strerror(11)}", "it is stopped"
        listening.recv(100)
        machine.step(tai())
        assert (machine.chrony.told, machine.chrony.why) == (told + 1, "")
    machine.step(tai())
    assert machine.chrony.why == f"{path}: Connection refused"
    machine.chrony.close()
