"""The RDMA lab of namespaces: four hosts on one machine, and what its faults do to verbs."""

import pytest
from rdma_lab import clean, ping, pingpongs, until

from lab.vm.rdma.faults import (
    AckDrop,
    AddressRemoved,
    AdminDown,
    Carrier,
    Flap,
    Frozen,
    GidMoved,
    HostDown,
    IpDrop,
    LeafDown,
    Loss,
    Mtu,
    Netem,
    RoceDrop,
    RxeRemoved,
)
from lab.vm.rdma.ports import PortEvents, active_mtu, gids, states
from lab.vm.rdma.writes import FLUSHED, READY_TO_SEND, RETRIES_EXCEEDED

PAIRS = [(a, b) for a in range(4) for b in range(a + 1, 4)]


@pytest.fixture
def lab(namespaces):
    """The session's lab; the test fails when the kernel reported a fault of its own."""
    yield from clean(namespaces)


def test_each_pair_of_hosts_exchanges_over_each_rail_at_once(lab):
    flows = [(a, b, rail) for a, b in PAIRS for rail in range(lab.topology.rails)]
    for client, server in pingpongs(lab, flows):
        for result in (client, server):
            assert result.rc == 0, result
            assert "20 iters" in result.out
            assert "invalid data" not in result.out + result.err


def test_a_leaf_that_fails_is_a_port_event_on_its_rail_alone(lab):
    events = [PortEvents(lab, host, rail) for host, rail in ((0, 0), (0, 1), (3, 0))]
    try:
        with lab.inject(LeafDown("leaf0")):
            until(lambda: events[0].port_states() == ["port_err"], "PORT_ERR on h0's rxe0")
            assert states(lab, 0) == {"rxe0": "DOWN", "rxe1": "ACTIVE"}
        until(lambda: events[0].port_states() == ["port_err", "port_active"], "PORT_ACTIVE")
        until(lambda: events[2].port_states() == ["port_err", "port_active"], "the same on h3")
        assert events[1].port_states() == []
    finally:
        for watcher in events:
            watcher.close()


def test_roce_dropped_exceeds_the_retries_while_ip_works(lab):
    writes = lab.writes(0, 1, 1, seconds=60)
    writes.wait_started()
    with lab.inject(RoceDrop("h1:rail1")) as fault:
        done = writes.wait()
        assert ping(lab, 0, 1, 1)
    assert done.status == RETRIES_EXCEEDED
    assert done.writes > 0
    # 4 transmissions, 67 ms apart by the protocol.
    assert done.longest_gap_ns >= 0.2e9
    assert done.target_state == READY_TO_SEND
    # The ground truth has the guest's clock: the error came after the fault.
    assert done.end_ns > lab.truth()[-2]["guest_ns"][0]
    assert lab.truth()[-1]["id"] == fault.id


def test_bandwidth_is_measured_in_the_guest(lab):
    row = lab.write_bw(0, 1, 0, size=65536, count=100)
    print(f"ib_write_bw, 64 KiB: {row.gbps * 1000:.0f} Mbit/s")
    assert row.gbps > 0.001


def test_the_plugin_moves_verified_bytes_between_two_hosts(lab):
    results = lab.perf("p2p", "--size", "64K", "--iters", "16", "--pingpong", "4", hosts=[0, 1])
    for rank in results.wait():
        assert (rank.status, rank.errors) == (0, [])
        assert rank.end["corrupt_bytes"] == 0
        assert rank.end["bytes"] >= 16 * 65536


# The rest is for the night: each fault of the lab does to verbs what it says.


@pytest.mark.nightly
def test_acknowledgements_dropped_alone(lab):
    writes = lab.writes(0, 1, 0, seconds=60)
    writes.wait_started()
    with lab.inject(AckDrop("h0:rail0", "rx")):
        done = writes.wait()
    assert done.status == RETRIES_EXCEEDED
    # What was not acknowledged has arrived.
    assert done.landed == done.writes + 1
    assert done.target_state == READY_TO_SEND


@pytest.mark.nightly
def test_ip_dropped_leaves_rdma_alone(lab):
    writes = lab.writes(2, 3, 0, seconds=8)
    writes.wait_started()
    with lab.inject(IpDrop("h3:rail0")):
        assert not ping(lab, 2, 3, 0)
        done = writes.wait()
    assert (done.status, done.landed) == (0, done.writes)
    assert ping(lab, 2, 3, 0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "ends"),
    [(Carrier("h2:rail1"), {FLUSHED, RETRIES_EXCEEDED}), (AdminDown("h2:rail1"), {FLUSHED})],
)
def test_the_own_port_down_ends_writes(lab, fault, ends):
    """A packet that finds no way out flushes the queue pair. Without a carrier, packets may vanish
    instead until the retries are exceeded."""
    writes = lab.writes(2, 0, 1, seconds=60)
    writes.wait_started()
    with lab.inject(fault):
        done = writes.wait()
    assert done.status in ends
    assert lab.write_bw(2, 0, 1, size=4096, count=5).count == 5


@pytest.mark.nightly
def test_a_peers_port_down_exceeds_the_retries(lab):
    writes = lab.writes(0, 2, 1, seconds=60)
    writes.wait_started()
    with lab.inject(Carrier("h2:rail1")):
        done = writes.wait()
    assert done.status == RETRIES_EXCEEDED


@pytest.mark.nightly
@pytest.mark.parametrize("fault", [Loss("h1:rail0", 10.0), Netem("h1:rail0", "loss 5%", "both")])
def test_some_loss_is_recovered(lab, fault):
    writes = lab.writes(0, 1, 0, seconds=10, retries=6)
    writes.wait_started()
    with lab.inject(fault):
        done = writes.wait()
    assert (done.status, done.landed) == (0, done.writes)


@pytest.mark.nightly
def test_a_flap_has_the_length_that_was_asked_for(lab):
    writes = lab.writes(3, 0, 0, seconds=20, retries=7)
    writes.wait_started()
    with lab.inject(Flap("h3:rail0", down_ms=300, up_ms=100, count=2)):
        done = writes.wait()
    # A packet met the closed port; or the writer waited for a lost ACK until the link was back.
    assert done.status == FLUSHED or (done.status == 0 and done.longest_gap_ns >= 300_000_000)
    began, ended = lab.truth()[-2]["guest_ns"]
    assert 0.69e9 <= ended - began <= 5e9
    assert states(lab, 3)["rxe0"] == "ACTIVE"


@pytest.mark.nightly
def test_a_device_goes_and_comes_back_with_its_name(lab):
    with lab.inject(RxeRemoved("h1:rail0")):
        assert states(lab, 1) == {"rxe1": "ACTIVE"}
        with lab.inject(RxeRemoved("h1:rail1")):
            assert states(lab, 1) == {}
    assert states(lab, 1) == {"rxe0": "ACTIVE", "rxe1": "ACTIVE"}
    assert lab.write_bw(0, 1, 0, size=4096, count=5).count == 5


@pytest.mark.nightly
def test_a_moved_gid_keeps_its_address_and_changes_its_index(lab):
    own = "10.0.0.2"
    before = gids(lab, 1, 0)
    with lab.inject(GidMoved("h1:rail0")):
        until(lambda: own in gids(lab, 1, 0)[2:], "the GID at another index")
        assert gids(lab, 1, 0)[1] != own
    until(lambda: gids(lab, 1, 0)[:2] == before[:2], "the GID at its index again")
    assert before[1] == own


@pytest.mark.nightly
def test_an_address_that_is_removed_takes_its_gid_along(lab):
    before = gids(lab, 2, 1)
    with lab.inject(AddressRemoved("h2:rail1")):
        until(lambda: "10.1.0.3" not in gids(lab, 2, 1), "no GID of the address")
        assert not ping(lab, 0, 2, 1)
    until(lambda: gids(lab, 2, 1) == before, "all GIDs at their indices again")
    assert lab.write_bw(0, 2, 1, size=4096, count=5).count == 5


@pytest.mark.nightly
def test_an_mtu_changes_the_active_mtu_of_its_port(lab):
    with lab.inject(Mtu("h0:rail1", 640)):
        assert active_mtu(lab, 0, 1) == 512
        assert active_mtu(lab, 1, 1) == 1024
    assert active_mtu(lab, 0, 1) == 1024


@pytest.mark.nightly
def test_a_frozen_process_leaves_its_device_alive(lab):
    writes = lab.writes(0, 1, 0, seconds=8)
    writes.wait_started()
    with lab.inject(Frozen("h1")):
        assert ping(lab, 0, 1, 0)
    assert writes.wait().status == 0


@pytest.mark.nightly
def test_a_killed_host_loses_cables_and_processes(lab):
    job = lab.popen(3, ["sleep", "600"], timeout=700)
    with lab.inject(HostDown("h3")):
        assert job.wait().rc == -9
        assert set(states(lab, 3).values()) == {"DOWN"}
    until(lambda: set(states(lab, 3).values()) == {"ACTIVE"}, "the cables are plugged in")


@pytest.mark.nightly
def test_faults_on_one_port_end_one_by_one(lab):
    with lab.inject(LeafDown("leaf1")):
        with lab.inject(Carrier("h1:rail1")):
            assert states(lab, 1)["rxe1"] == "DOWN"
        assert states(lab, 1)["rxe1"] == "DOWN"
    until(lambda: states(lab, 1)["rxe1"] == "ACTIVE", "the last hold is gone")
