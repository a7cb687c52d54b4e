"""The RDMA lab of two machines: faults that take a machine of one's own, on Debian's kernel."""

import pytest
from rdma_lab import clean, ping, until

from lab.vm.rdma.faults import (
    AckDrop,
    Carrier,
    Flap,
    Frozen,
    GidMoved,
    IpDrop,
    Killed,
    LeafDown,
    ModuleReloaded,
    Mtu,
    Paused,
    Rebooted,
    RoceDrop,
    RxeRemoved,
    Unplugged,
)
from lab.vm.rdma.ports import PortEvents, active_mtu, gids, states
from lab.vm.rdma.writes import READY_TO_SEND, RETRIES_EXCEEDED

pytestmark = pytest.mark.nightly  # two more machines: a minute for their boot alone
BOTH = {"rxe0": "ACTIVE", "rxe1": "ACTIVE"}


@pytest.fixture
def lab(two_machines):
    """The session's lab; the test fails when a kernel reported a fault of its own."""
    yield from clean(two_machines)


@pytest.fixture
def mortal(two_machines):
    """The same where a peer dies: packets to it wait for its MAC address and hold their queue pair.

    Linux 6.1 warns when such a pair is destroyed (rxe_pool.c).
    """
    yield from clean(two_machines, known="__rxe_cleanup")


def writes_work(lab, rail=0):
    for a, b in ((0, 1), (1, 0)):
        assert lab.write_bw(a, b, rail, size=4096, count=5).count == 5


def test_both_hosts_write_over_each_rail(lab):
    for rail in range(2):
        writes_work(lab, rail)


def test_a_pulled_cable_is_a_port_event_of_that_rail(lab):
    events = [PortEvents(lab, 0, rail) for rail in range(2)]
    try:
        with lab.inject(Carrier("h0:rail0")):
            until(lambda: events[0].port_states() == ["port_err"], "PORT_ERR")
            assert states(lab, 0) == {"rxe0": "DOWN", "rxe1": "ACTIVE"}
            assert states(lab, 1) == BOTH
        until(lambda: events[0].port_states() == ["port_err", "port_active"], "PORT_ACTIVE")
        assert events[1].port_states() == []
        with lab.inject(LeafDown("leaf1")):
            until(lambda: states(lab, 1)["rxe1"] == "DOWN", "both ends lose the leaf")
    finally:
        for watcher in events:
            watcher.close()


def test_packets_are_told_apart(lab):
    with lab.inject(RoceDrop("h1:rail0")):
        done = lab.writes(0, 1, 0, seconds=60).wait()
        assert (done.status, done.writes) == (RETRIES_EXCEEDED, 0)
        assert ping(lab, 0, 1, 0)
    with lab.inject(IpDrop("h1:rail0")):
        done = lab.writes(0, 1, 0, seconds=3).wait()
        assert (done.status, done.landed) == (0, done.writes)
        assert not ping(lab, 0, 1, 0)
    with lab.inject(AckDrop("h0:rail0", "rx")):
        done = lab.writes(0, 1, 0, seconds=60).wait()
        assert (done.status, done.writes, done.landed) == (RETRIES_EXCEEDED, 0, 1)
        assert done.target_state == READY_TO_SEND


def test_a_flap_is_two_events(lab):
    events = PortEvents(lab, 1, 1)
    try:
        with lab.inject(Flap("h1:rail1", down_ms=500, up_ms=500)):
            pass
        until(lambda: events.port_states() == ["port_err", "port_active"], "one flap")
    finally:
        events.close()


def test_a_paused_machine_goes_on_where_it_was(lab):
    writes = lab.writes(0, 1, 0, seconds=12, timeout=18, retries=6)
    writes.wait_started()
    with lab.inject(Paused("h1")):
        # The witness sees time pass while the peer stands still.
        lab.run(0, ["sleep", "2"]).check()
    done = writes.wait()
    assert (done.status, done.landed) == (0, done.writes)
    assert done.longest_gap_ns >= 1.9e9


def test_a_frozen_process_leaves_its_device_alive(lab):
    writes = lab.writes(0, 1, 0, seconds=6)
    writes.wait_started()
    with lab.inject(Frozen("h1")):
        assert ping(lab, 0, 1, 0)
    assert writes.wait().status == 0


def test_devices_and_module_go_and_come_back(lab):
    with lab.inject(RxeRemoved("h0:rail1")):
        assert states(lab, 0) == {"rxe0": "ACTIVE"}
    with lab.inject(ModuleReloaded("h0")):
        assert states(lab, 0) == {}
        assert lab.run(0, ["sh", "-c", "lsmod | grep -q rdma_rxe"]).rc != 0
    until(lambda: states(lab, 0) == BOTH, "the devices are back")
    writes_work(lab)


def test_mtu_and_gid(lab):
    with lab.inject(Mtu("h1:rail1", 640)):
        assert (active_mtu(lab, 1, 1), active_mtu(lab, 0, 1)) == (512, 1024)
    before = gids(lab, 0, 1)
    with lab.inject(GidMoved("h0:rail1")):
        until(lambda: before[1] in gids(lab, 0, 1)[2:], "the GID at another index")
    until(lambda: gids(lab, 0, 1)[1] == before[1], "the GID at its index again")


def test_a_nic_leaves_its_slot_and_comes_back(lab):
    with lab.inject(Unplugged("h1:rail1")):
        assert states(lab, 1) == {"rxe0": "ACTIVE"}
    until(lambda: states(lab, 1) == BOTH, "the device is back")
    writes_work(lab, 1)


@pytest.mark.parametrize("fault", [Rebooted("h1"), Killed("h1")], ids=["reboot", "kill"])
def test_a_machine_that_starts_again_joins_the_lab(mortal, fault):
    lab = mortal
    writes = lab.writes(0, 1, 0, seconds=60)
    writes.wait_started()
    with lab.inject(fault):
        assert writes.source_result().status == RETRIES_EXCEEDED
    assert states(lab, 1) == BOTH
    writes_work(lab)
    results = lab.perf("p2p", "--size", "64K", "--iters", "8", "--pingpong", "2").wait()
    assert [(rank.status, rank.errors) for rank in results] == [(0, []), (0, [])]
