"""Who probes whom: both ends agree, everybody is covered, degrees stay small."""

import hashlib
import time

import pytest

from fabricd.detect.mesh import Node, choose, train_rate


def address(host, rail):
    return f"10.{rail}.{host >> 8}.{host & 255}"


def cluster(hosts, rails, **kwargs):
    """host → its paths, as every host computes them for itself."""
    nodes = [Node(f"h{i}", {r: (address(i, r),) for r in range(rails)}) for i in range(hosts)]
    out = {}
    for i, node in enumerate(nodes):
        links = [(r, r, address(i, r)) for r in range(rails)]
        others = [n for n in nodes if n is not node]
        out[node.host] = choose(node.host, links, others, **kwargs)
    return out


def pairs(paths, host):
    return {((host, p.link), (p.peer, p.peer_rail)) for p in paths[host]}


@pytest.mark.parametrize(("hosts", "rails"), [(2, 1), (4, 4), (9, 2), (40, 3)])
def test_both_ends_agree(hosts, rails):
    paths = cluster(hosts, rails, per_rail=4, cross_rail=1)
    everything = {pair for host in paths for pair in pairs(paths, host)}
    assert {(b, a) for a, b in everything} == everything


def test_few_hosts_probe_everybody_on_each_rail():
    paths = cluster(4, 4, per_rail=10, cross_rail=1)
    for host, own in paths.items():
        for rail in range(4):
            same = {p.peer for p in own if p.link == rail and p.peer_rail == rail}
            assert same == {h for h in paths if h != host}
            cross = [p for p in own if p.link == rail and p.peer_rail != rail]
            assert cross, "a cross-rail path on every rail"


def test_a_host_has_the_same_peers_on_all_rails_so_that_each_has_witnesses():
    clocks = []
    for host, own in cluster(60, 4, per_rail=5, cross_rail=1).items():
        by_rail = [{p.peer for p in own if p.link == p.peer_rail == rail} for rail in range(4)]
        assert by_rail[0] == by_rail[1] == by_rail[2] == by_rail[3], host
        assert {p.peer for p in own if p.link != p.peer_rail} <= by_rail[0]
        clocks.append(len({p.peer for p in own if p.clock}))
    assert sum(clocks) / len(clocks) > 2.5, "the clock mesh keeps its degree"


def test_degree_is_near_what_was_asked():
    paths = cluster(100, 1, per_rail=10, cross_rail=0)
    degrees = [len(own) for own in paths.values()]
    assert min(degrees) >= 10
    assert sum(degrees) / len(degrees) < 20
    assert max(degrees) <= 35


def test_no_cross_paths_when_not_wanted():
    paths = cluster(5, 3, per_rail=2, cross_rail=0)
    assert all(p.link == p.peer_rail for own in paths.values() for p in own)


def test_a_new_host_disturbs_few_pairs():
    before = cluster(50, 1, per_rail=5, cross_rail=0)
    after = cluster(51, 1, per_rail=5, cross_rail=0)
    old = {pair for host in before for pair in pairs(before, host)}
    new = {pair for host in before for pair in pairs(after, host) if pair[1][0] != "h50"}
    assert len(old & new) / len(old) > 0.8


def test_only_addresses_of_the_links_family_are_probed_and_the_others_are_kept():
    peers = [
        Node("b", {0: ("10.0.0.2", "fd00::2")}),
        Node("c", {0: ("fd00::3",)}),
    ]
    four = choose("a", [(0, 0, "10.0.0.1")], peers, per_rail=5, cross_rail=0)
    assert [(p.peer, p.address, p.others) for p in four] == [("b", "10.0.0.2", ("fd00::2",))]
    six = choose("a", [(0, 0, "fd00::1")], peers, per_rail=5, cross_rail=0)
    assert [(p.peer, p.address) for p in six] == [("b", "fd00::2"), ("c", "fd00::3")]


@pytest.mark.parametrize(("rails", "share"), [(1, 4), (2, 2), (4, 2), (8, 2)])
def test_clock_paths_are_agreed_and_spread(rails, share):
    paths = cluster(24, rails, per_rail=10, cross_rail=0)
    clock = {host: [p for p in own if p.clock] for host, own in paths.items()}
    everything = {pair for host in clock for pair in pairs(clock, host)}
    assert {(b, a) for a, b in everything} == everything, "trains run both ways"
    counts = [sum(p.link == rail for p in own) for own in clock.values() for rail in range(rails)]
    assert min(counts) >= 2, "losses of a rail show to two peers"
    assert sum(counts) / len(counts) <= 2 * share
    assert max(counts) <= 6 * share, "nobody is everybody's clock peer"


@pytest.mark.parametrize(
    ("links", "peers", "each"),
    [(8, 10, 50), (4, 2, 50), (4, 1, 100), (2, 10, 100), (2, 1, 100), (1, 10, 100), (8, 0, 100)],
)
def test_more_clock_paths_are_no_more_packets(links, peers, each):
    assert train_rate(100, links, peers) == each
    assert train_rate(0, links, peers) == 0
    assert train_rate(1, links, peers) == 1, "trains that are wanted do come"


def test_four_hosts_have_clock_paths_on_every_rail():
    for own in cluster(4, 4, per_rail=10, cross_rail=1).values():
        assert {p.link for p in own if p.clock} == {0, 1, 2, 3}


def test_peers_without_our_rail_and_no_peers_at_all():
    assert choose("a", [(0, 0, "10.0.0.1")], [], per_rail=3, cross_rail=1) == []
    far = [Node("b", {7: ("10.7.0.2",)})]
    assert choose("a", [(0, 0, "10.0.0.1")], far, per_rail=3, cross_rail=0) == []
    assert len(choose("a", [(0, 0, "10.0.0.1")], far, per_rail=3, cross_rail=1)) == 1


def test_thousand_hosts_do_not_take_for_ever():
    peers = [Node(f"h{i}", {r: (address(i, r),) for r in range(2)}) for i in range(1, 1000)]
    links = [(r, r, address(0, r)) for r in range(2)]
    began = time.process_time()
    assert choose("h0", links, peers, per_rail=10, cross_rail=1)
    assert time.process_time() - began < 60  # of this process's own; it takes about 1 s


def test_the_choice_is_that_of_earlier_versions():
    """Both ends of a pair must agree, also while a cluster is upgraded host by host."""
    peers = [Node(f"h{i}", {r: (address(i, r),) for r in range(4)}) for i in range(1, 60)]
    links = [(r, r, address(0, r)) for r in range(4)]
    chosen = choose("h0", links, peers, per_rail=5, cross_rail=2)

    def digest(text):
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    assert (
        digest(" ".join(f"{x.link}:{x.peer}/{x.peer_rail}" for x in chosen)) == "21bf58d288fee7f8"
    )
    clock = " ".join(f"{x.link}:{x.peer}" for x in chosen if x.clock)
    assert digest(clock) == "5921e92e4e994a6f"
    # Versions with one clock path a rail have fewer: on the others trains run one way, no harm.
    earlier = {(0, "h2"), (0, "h21"), (1, "h2"), (1, "h42"), (2, "h21"), (3, "h42")}
    assert earlier <= {(x.link, x.peer) for x in chosen if x.clock}
