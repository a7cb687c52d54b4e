"""MTU black holes: which links and paths large packets speak against."""

import pytest

from fabricd.detect.mtu import KEPT_NS, PROVEN, MtuPath, MtuTest
from fabricd.probes.records import MtuRow

SEC = 10**9


class Fabric:
    """Two links of a host, three peers on each."""

    def __init__(self, peers="abc"):
        self.test = MtuTest()
        self.now = 10 * SEC
        self.paths = [
            MtuPath(
                f"rail{link}", peer, f"10.{link}.0.{ord(peer)}",
                MtuRow(link * len(peers) + i, 8972, 0, SEC, 8972, 0, SEC),
            )
            for link in (0, 1)
            for i, peer in enumerate(peers)
        ]  # fmt: skip

    def row(self, index, **changes):
        path = self.paths[index]
        self.paths[index] = path._replace(row=path.row._replace(**changes))

    def hole(self, *indices, missing=PROVEN):
        for index in indices:
            self.row(index, tx_missing=missing)

    def passes(self, *indices):
        for index in indices:
            self.row(index, tx_size=8972, tx_missing=0, tx_passed_ns=self.now)

    def restart_prober(self):
        for index in range(len(self.paths)):
            self.row(
                index, tx_size=0, tx_missing=0, tx_passed_ns=0, rx_size=0, rx_missing=0,
                rx_passed_ns=0,
            )  # fmt: skip

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
        "rail0": f"MTU black hole: 9000-byte packets do not arrive {where} a, b, small ones do"
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
    assert list(verdict.links) == ["rail0"]
    assert verdict.links["rail0"].count("MTU black hole") == 2
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
    assert list(fabric.judge(30).links) == ["rail0"]


def test_smaller_packets_that_pass_across_a_router_do_not_speak_for_the_link(fabric):
    """A spine of MTU 1500 says so, and its paths are asked for 1472 bytes."""
    fabric.row(2, tx_size=1472, tx_passed_ns=fabric.now)
    fabric.row(0, tx_missing=PROVEN)
    fabric.row(1, tx_missing=PROVEN)
    fabric.judge()
    fabric.row(2, tx_passed_ns=fabric.now)
    assert list(fabric.judge().links) == ["rail0"]


def test_a_prober_that_starts_again_ends_no_verdict():
    """Its counts begin at zero: that is no packet that passed."""
    fabric = Fabric()
    fabric.hole(0, 1, 2, 3)
    assert list(fabric.judge().links) == ["rail0"]
    assert list(fabric.judge().paths) == [3]
    fabric.restart_prober()
    verdict = fabric.judge(30)
    assert (list(verdict.links), list(verdict.paths)) == (["rail0"], [3])
    fabric.row(0, tx_size=8972, tx_missing=1)
    assert list(fabric.judge().links) == ["rail0"]
    fabric.passes(2)
    verdict = fabric.judge()
    assert (list(verdict.links), list(verdict.paths)) == ([], [3])
    fabric.passes(3)
    assert not fabric.judge().paths


def test_old_path_verdicts_make_no_link_verdict_when_the_prober_starts_again():
    fabric = Fabric(peers="abcd")
    fabric.hole(0, 1)
    fabric.passes(2, 3)
    verdict = fabric.judge()
    assert (list(verdict.links), list(verdict.paths)) == ([], [0, 1])
    fabric.restart_prober()
    fabric.judge()
    fabric.row(0, tx_size=8972, tx_missing=1)
    verdict = fabric.judge()
    assert (list(verdict.links), list(verdict.paths)) == ([], [0, 1])


def test_smaller_tested_packets_end_a_verdict():
    """Somebody lowered the MTU as long as the port is wrong."""
    fabric = Fabric()
    fabric.hole(0, 1, 2, 3)
    fabric.judge()
    for index in range(4):
        fabric.row(index, tx_size=1472, tx_missing=0)
    verdict = fabric.judge()
    assert (list(verdict.links), list(verdict.paths)) == ([], [])


def test_where_no_large_packet_is_sent_any_more_old_counts_say_nothing():
    """The peer's limit is too low for any: no size, and what was missing before stands."""
    fabric = Fabric()
    for index in (0, 1, 3):
        fabric.row(index, tx_size=0, tx_missing=PROVEN)
    verdict = fabric.judge()
    assert (list(verdict.links), list(verdict.paths)) == ([], [])


def test_a_path_that_is_not_configured_any_more_ends_its_verdict():
    fabric = Fabric()
    fabric.hole(0, 1, 3)
    fabric.judge()
    before = fabric.paths
    fabric.paths = [path for path in before if path.row.index in (2, 4, 5)]
    verdict = fabric.judge()
    assert (list(verdict.links), list(verdict.paths)) == ([], [])
    fabric.paths = before
    fabric.restart_prober()
    verdict = fabric.judge()
    assert (list(verdict.links), list(verdict.paths)) == ([], []), "configured again it begins anew"


def test_a_link_verdict_outlives_other_indices_and_further_peers():
    fabric = Fabric(peers="a")
    fabric.hole(0)
    assert list(fabric.judge().links) == ["rail0"]
    more = [
        MtuPath("rail0", peer, f"10.0.0.{ord(peer)}", MtuRow(i, 0, 0, 0, 0, 0, 0))
        for i, peer in enumerate("bc", 2)
    ]
    fabric.paths = [*reversed(fabric.paths), *more]
    fabric.paths = [p._replace(row=p.row._replace(index=i)) for i, p in enumerate(fabric.paths)]
    assert list(fabric.judge().links) == ["rail0"]


def test_a_link_without_its_address_keeps_its_verdict_for_a_while():
    fabric = Fabric()
    fabric.hole(0, 1)
    fabric.judge()
    paths, fabric.paths = fabric.paths, fabric.paths[3:]
    assert list(fabric.judge().links) == ["rail0"]
    fabric.paths = paths
    fabric.restart_prober()
    assert list(fabric.judge().links) == ["rail0"]
    fabric.paths = paths[3:]
    assert not fabric.judge(KEPT_NS // SEC + 1).links


def test_a_daemon_that_starts_beside_two_bad_peers_blames_no_link():
    """The others passed before it looked: that counts, since the two were at fault before."""
    fabric = Fabric(peers="abcdef")
    for index in range(2, 6):
        fabric.row(index, tx_passed_ns=9 * SEC)
    fabric.hole(0, 1)
    verdict = fabric.judge()
    assert (list(verdict.links), list(verdict.paths)) == ([], [0, 1])


def test_a_daemon_that_starts_beside_a_black_hole_finds_it_at_once_though_a_peer_died_before():
    fabric = Fabric()
    for index in range(2):
        fabric.row(index, tx_passed_ns=9 * SEC)
    fabric.hole(0, 1)
    assert list(fabric.judge().links) == ["rail0"]


@pytest.mark.parametrize(("peers", "found"), [("abcdefghij", []), ("ab", []), ("a", ["rail0"])])
def test_one_peer_speaks_for_a_link_only_where_it_is_the_one(peers, found):
    """The others are of an older version, and are sent no large packets."""
    fabric = Fabric(peers=peers)
    fabric.restart_prober()
    fabric.row(0, tx_size=8972, tx_passed_ns=SEC)
    fabric.judge()
    fabric.hole(0)
    verdict = fabric.judge()
    assert list(verdict.links) == found
    assert list(verdict.paths) == ([] if found else [0])


def test_a_link_whose_black_hole_is_over_leaves_no_path_at_fault_that_was_not_tested_since():
    fabric = Fabric()
    fabric.hole(0, 1, 2)
    assert fabric.judge().links
    fabric.passes(2)
    verdict = fabric.judge()
    assert (list(verdict.links), list(verdict.paths)) == ([], [])
    fabric.hole(0, missing=2 * PROVEN - 1)
    fabric.passes(1)
    assert not fabric.judge().paths
    fabric.hole(0, missing=2 * PROVEN)
    assert list(fabric.judge().paths) == [0], "it is at fault by itself"
    fabric.passes(0)
    assert not fabric.judge().paths
    fabric.hole(0)
    assert list(fabric.judge().paths) == [0], "what was excused is over"
