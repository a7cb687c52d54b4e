"""Which addresses of peers are probed, beside what the mesh chooses."""

import pytest

from fabricd.config.loader import parse
from fabricd.probes.peer_index import PeerIndex


def config(own, theirs):
    links = "".join(
        f'[[links]]\nnetdev = "rail{rail}"\nrail = {rail}\naddress = "{address}"\n'
        for rail, address in enumerate(own)
    )
    entries = ", ".join(
        f'{{ rail = {rail}, address = "{address}" }}' for rail, address in enumerate(theirs)
    )
    peers = f'[[peers]]\nhost = "h1"\naddresses = [{entries}]\n'
    return parse(f'[host]\nname = "h0"\n{links}{peers}', "f.toml")


def probed(own, theirs):
    made = config(own, theirs)
    specs = PeerIndex(made.peers).paths(made, own)
    return {(spec.link, spec.address) for spec in specs}


def test_rails_and_across_rails():
    assert probed(["10.0.0.1", "10.1.0.1"], ["10.0.0.2", "10.1.0.2"]) == {
        (0, "10.0.0.2"), (0, "10.1.0.2"), (1, "10.0.0.2"), (1, "10.1.0.2"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("own", "peer"), [("fe80::{}:1", "fe80::{}:2"), ("169.254.{}.1", "169.254.{}.2")]
)
def test_a_link_local_address_is_of_its_rail_alone(own, peer):
    ours, theirs = ([text.format(rail) for rail in (1, 2)] for text in (own, peer))
    assert probed(ours, theirs) == {(0, theirs[0]), (1, theirs[1])}


def test_the_same_link_local_address_on_both_rails():
    assert probed(["fe80::1", "fe80::1"], ["fe80::2", "fe80::2"]) == {
        (0, "fe80::2"), (1, "fe80::2"),
    }  # fmt: skip


def test_one_rails_own_link_local_address_may_be_a_peers_on_another_rail():
    assert probed(["fe80::1", "fe80::2"], ["fe80::2", "fe80::1"]) == {
        (0, "fe80::2"), (1, "fe80::1"),
    }  # fmt: skip


def test_an_address_of_ours_is_none_of_a_peers():
    """Both hosts have a bridge with 172.17.0.1, and ours was found on the device."""
    made = config(["10.0.0.1"], ["10.0.0.2", "172.17.0.1"])
    (spec, other) = PeerIndex(made.peers).paths(made, ["10.0.0.1"])
    assert {spec.address, other.address} == {"10.0.0.2", "172.17.0.1"}
    assert [x.address for x in PeerIndex(made.peers).paths(made, ["172.17.0.1"])] == ["10.0.0.2"]
