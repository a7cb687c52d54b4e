"""Resets, black holes that wait, lost addresses, shifted clocks: each does what it says."""

import socket

import pytest

from lab.faults.catalog import AddressRemoved, BlackHole, Loss, ResetStorm
from lab.matrix.daemons import ClockShift
from lab.network import netns
from lab.observe.traffic import delivered

N = 100


def both_ways(lab, family=4, rail=0):
    a, b = lab.nodes
    return (
        delivered(a, b, N, rail=rail, family=family),
        delivered(b, a, N, rail=rail, family=family),
    )


def connection(lab, listener):
    port = listener.getsockname()[1]
    address = lab.nodes[1].address(0)
    return netns.run_in(lab.nodes[0].ns, lambda: socket.create_connection((address, port), 5))


def test_dropped_packets_are_counted_each_way(two):
    assert both_ways(two) == (N, N), "and the addresses are resolved"
    with two.inject(BlackHole("h0:rail0", "tx")) as fault:
        assert both_ways(two) == (0, N)
        assert fault.packets()["tx"] >= N
        assert set(fault.packets()) == {"tx"}
    with two.inject(Loss("h0:rail0", 30.0)) as fault:
        there, back = both_ways(two)
        # ARP and neighbour discovery may be among them.
        assert N - there <= fault.packets()["tx"] <= N - there + 5
        assert N - back <= fault.packets()["rx"] <= N - back + 5


def test_a_black_hole_that_waits_lets_so_many_bytes_through(two):
    assert both_ways(two) == (N, N), "and the addresses are resolved"
    with two.inject(BlackHole("h0:rail0", "tx", after_bytes=3000)):
        there, back = both_ways(two)
        assert 0 < there < N
        assert back == N
        assert both_ways(two) == (0, N)
    assert both_ways(two) == (N, N)


def test_a_reset_storm_resets_and_refuses(two):
    b = two.nodes[1]
    listener = netns.run_in(b.ns, lambda: socket.create_server((b.address(0), 0)))
    with listener, connection(two, listener) as client:
        server, _ = listener.accept()
        with server, two.inject(ResetStorm("h0:rail0")) as fault:
            client.settimeout(10)
            client.sendall(b"x")
            with pytest.raises(ConnectionResetError):
                client.recv(1)
            assert fault.packets()["tx"] >= 1
            with pytest.raises(ConnectionRefusedError):
                connection(two, listener)
            assert both_ways(two) == (N, N), "what is not TCP passes"
        connection(two, listener).close()


def test_addresses_and_their_routes_go_and_come_back(two):
    node = two.nodes[0]

    def tables():
        done = [node.run(["ip", *v, "route", "show", "table", "all"]).stdout for v in ([], ["-6"])]
        return [sorted(text.splitlines()) for text in done]

    before = tables()
    outer, inner = two.arm(AddressRemoved("h0:rail0")), two.arm(AddressRemoved("h0:rail0"))
    outer.start()
    inner.start()
    inner.end()
    left = node.run(["ip", "addr", "show", "dev", "rail0"]).stdout
    assert "inet " not in left
    assert node.address(0, 6) not in left
    assert node.carrier(0)
    assert both_ways(two, rail=1) == (N, N)
    with pytest.raises(OSError, match="assign"):
        netns.run_in(node.ns, lambda: socket.create_server((node.address(0), 0)))
    outer.end()
    assert tables() == before
    assert both_ways(two) == (N, N)
    assert both_ways(two, family=6) == (N, N)


def test_a_shifted_clock_is_the_wall_clock_alone(two, tmp_path):
    clock = ClockShift(tmp_path / "clock")
    read = "import time; print(time.time(), time.monotonic())"

    def times():
        done = two.nodes[0].run(["python3", "-c", read], env=clock.env())
        return [float(word) for word in done.stdout.split()]

    wall, steady = times()
    clock.shift(-86_400)
    assert clock.shifted_reads == 0
    later_wall, later_steady = times()
    assert -86_400 <= later_wall - wall < -86_400 + 60
    assert 0 < later_steady - steady < 60
    assert clock.shifted_reads >= 1
