"""The lab's description: names, addresses, routes, targets."""

import ipaddress

import pytest

from lab.topology import (
    Topology,
    TopologyError,
    parse_rate,
)


@pytest.mark.parametrize(("hosts", "rails", "spines"), [(1, 1, 0), (4, 4, 2), (64, 16, 4)])
def test_everything_is_unique_and_fits(hosts, rails, spines):
    lab = Topology(hosts=hosts, rails=rails, spines=spines)
    ports = [p for w in lab.wires() for p in (w.a, w.b)]
    assert len({(p.ns, p.ifname) for p in ports}) == len(ports)
    assert len({p.number for p in ports}) == len(ports)
    assert max(p.number for p in ports) < lab.port_count
    assert all(len(p.ifname) <= 15 for p in ports)
    addresses = [a for role, i, _ in lab.namespaces() for a in lab.addresses(role, i)]
    assert len({a.ip for a in addresses}) == len(addresses)
    for a in addresses:
        assert ipaddress.ip_address(a.ip).version == a.family
    # Leaf ports are numbered by the kernel from 2 up: never the same as their peer's index.
    assert all(w.a_ifindex >= 1000 for w in lab.wires())
    for role, i, _ in lab.namespaces():
        indices = [w.a_ifindex for w in lab.wires() if w.a.ns == lab.ns(role, i)]
        assert len(set(indices)) == len(indices)


def test_rail_only_has_no_spines():
    lab = Topology(spines=0)
    assert lab.rail_only
    assert not list(lab.routes("leaf", 0))
    assert len(list(lab.wires())) == 16
    with pytest.raises(TopologyError, match="rail only"):
        lab.target("spine0")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("h4", "no host 4: h0 to h3"),
        ("h0:rail4", "no rail 4"),
        ("leaf9", "no leaf 9"),
        ("spine2", "no spine 2"),
        ("leaf0:rail1", "only a host has rails"),
        ("eth0", "h<i>"),
        ("", "h<i>"),
        ("h0:rail1 ; reboot", "h<i>"),
    ],
)
def test_bad_targets_say_what_is_allowed(text, why):
    with pytest.raises(TopologyError, match=why.replace("<", r"\<")):
        Topology().target(text)


@pytest.mark.parametrize(
    "arguments",
    [
        {"hosts": 0},
        {"hosts": 65},
        {"rails": 17},
        {"spines": 5},
        {"name": "A"},
        {"name": "a/b"},
        {"name": "-a"},
        {"name": "x" * 33},
        {"rate_bps": 5},
    ],
)
def test_bad_sizes(arguments):
    with pytest.raises(TopologyError):
        Topology(**arguments)


def test_rates():
    assert parse_rate("500mbit") == 500_000_000
    assert parse_rate("1.5Gbit") == 1_500_000_000
    assert parse_rate("none") == 0
    for text in ("fast", "-1mbit", "1tbit", "10 mbit/s"):
        with pytest.raises(TopologyError, match="rate"):
            parse_rate(text)


def test_offload_packets_fit_the_burst_with_their_headers():
    lab = Topology()
    segments = -(-lab.gso_max_bytes // 1448)
    assert lab.gso_max_bytes + segments * 66 <= 65500


def test_a_shaper_that_is_to_cut_them_gets_them_as_the_kernel_makes_them():
    lab = Topology(whole=False)
    assert lab.gso_max_bytes == 65536 >= lab.burst_bytes
