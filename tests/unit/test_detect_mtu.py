"""MTU black holes: which links and paths large packets speak against."""

import pytest

from fabricd.detect.mtu import PROVEN, MtuPath, MtuTest
from fabricd.probes.records import MtuRow

SEC = 10**9


class Fabric:
    """Two links of a host, three peers on each."""

    def __init__(self, peers="abc"):
        self.test = MtuTest()
        self.now = 10 * SEC
        self.paths = [
            MtuPath(link, peer, link, 4, MtuRow(link * len(peers) + i, 8972, 0, SEC, 8972, 0, SEC))
            for link in (0, 1)
            for i, peer in enumerate(peers)
        ]

    def row(self, index, **changes):
        path = self.paths[index]
        self.paths[index] = path._replace(row=path.row._replace(**changes))

    def judge(self, seconds=1):
        self.now += seconds * SEC
        return self.test.judge(self.paths, self.now)


@pytest.fixture
def fabric():
    return Fabric()


def test_where_large_packets_pass_nothing_is_said(fabric):
    verdict = fabric.judge()
    assert (dict(verdict.links), dict(verdict.paths)) == ({}, {})


def test_before_the_first_large_packet_nothing_is_said(fabric):
    for index in range(6):
        fabric.row(index, tx_size=0, tx_passed_ns=0, rx_size=0, rx_passed_ns=0)
    assert not fabric.judge().links


@pytest.mark.parametrize(("way", "where"), [("tx", "at"), ("rx", "from")])
def test_two_peers_and_none_that_passes_are_the_link(fabric, way, where):
    missing, passed = f"{way}_missing", f"{way}_passed_ns"
    fabric.row(0, **{missing: 1})
    assert not fabric.judge().links
    fabric.row(0, **{missing: PROVEN})
    verdict = fabric.judge()
    assert not verdict.links, "one peer is a path's matter"
    assert list(verdict.paths) == [0]
    fabric.row(1, **{missing: PROVEN})
    verdict = fabric.judge()
    assert dict(verdict.links) == {
        0: f"MTU black hole: 9000-byte packets do not arrive {where} a, b, small ones do"
    }
    assert not verdict.paths
    # The third, tested last before it began, passes nothing new; once it does, it is no link.
    fabric.row(2, **{passed: fabric.now})
    assert not fabric.judge().links


def test_a_peers_port_is_a_path_while_others_pass(fabric):
    fabric.row(3, tx_missing=1)
    fabric.judge()
    fabric.row(3, tx_missing=PROVEN)
    fabric.row(4, tx_passed_ns=fabric.now)
    verdict = fabric.judge()
    assert not verdict.links
    assert dict(verdict.paths) == {
        3: "MTU black hole: 9000-byte packets do not arrive at a, small ones do"
    }


def test_the_one_peer_that_there_is_is_enough():
    fabric = Fabric(peers="a")
    fabric.row(0, tx_missing=PROVEN, rx_missing=PROVEN)
    verdict = fabric.judge()
    assert list(verdict.links) == [0]
    assert verdict.links[0].count("MTU black hole") == 2
    fabric.row(0, tx_missing=0, tx_passed_ns=fabric.now, rx_missing=0, rx_passed_ns=fabric.now)
    assert not fabric.judge().links


def test_losses_that_are_not_in_a_row_are_no_black_hole(fabric):
    for _ in range(50):
        for index in range(3):
            fabric.row(index, tx_missing=PROVEN - 1)
        fabric.judge()
        for index in range(3):
            fabric.row(index, tx_missing=0, tx_passed_ns=fabric.now)
        verdict = fabric.judge()
        assert not verdict.links
        assert not verdict.paths


def test_a_second_black_hole_is_judged_from_its_own_beginning(fabric):
    fabric.row(0, tx_missing=PROVEN)
    fabric.row(1, tx_missing=PROVEN)
    assert fabric.judge().links
    for index in range(3):
        fabric.row(index, tx_missing=0, tx_passed_ns=fabric.now)
    assert not fabric.judge().links
    fabric.row(0, tx_missing=PROVEN)
    fabric.row(1, tx_missing=PROVEN)
    assert list(fabric.judge(30).links) == [0]


def test_smaller_packets_that_pass_across_a_router_do_not_speak_for_the_link(fabric):
    """A spine of MTU 1500 says so, and its paths are asked for 1472 bytes."""
    fabric.row(2, tx_size=1472, tx_passed_ns=fabric.now)
    fabric.row(0, tx_missing=PROVEN)
    fabric.row(1, tx_missing=PROVEN)
    fabric.judge()
    fabric.row(2, tx_passed_ns=fabric.now)
    assert list(fabric.judge().links) == [0]
