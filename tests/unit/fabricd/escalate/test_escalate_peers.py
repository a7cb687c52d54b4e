"""Which hosts are probed, by their documents and goodbyes."""

import ipaddress
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.config.loader import parse as parse_config
from fabricd.config.tables import PeerTable
from fabricd.escalate.address_owners import LONGEST_TURN_NS, TURN_NS, Conflict
from fabricd.escalate.peers import FORGET_NS, LEAVE_NS, PeerDirectory, load, load_proven
from fabricd.probes.plan import with_peers
from fabricd.probes.wire_id import host_id
from telemetry.messages.documents import HostDocument
from telemetry.messages.envelope import BadMessageError

PORT = 9200


def document(name, *addresses, port=PORT):
    links = [
        {"netdev": f"rail{rail}", "rail": rail, "addresses": [address]}
        for rail, address in enumerate(addresses)
    ]
    return HostDocument(name=name, links=links, probe_port=port)


def shown(directory, now=0):
    return {
        peer.host: [(one.rail, str(one.address)) for one in peer.addresses]
        for peer in directory.peers(now)
    }


def test_hosts_join_by_their_documents():
    directory = PeerDirectory("h0", PORT)
    assert directory.document("h1", document("h1", "10.0.0.1", "fd00::1"))
    assert not directory.document("h1", document("h1", "10.0.0.1", "fd00::1"))
    assert directory.document("h0", document("h0", "10.0.0.9")), "our own addresses count"
    assert not directory.document("h0", document("h0", "10.0.0.9"))
    assert not directory.document("h2", document("h2")), "no address yet"
    assert not directory.document("h3", document("h3", "127.0.0.1", "fe80::1"))
    assert shown(directory) == {"h1": [(0, "10.0.0.1"), (1, "fd00::1")]}
    assert directory.document("h1", document("h1", "10.0.0.2"))
    assert shown(directory) == {"h1": [(0, "10.0.0.2")]}
    assert directory.cleared("h1")
    assert not directory.cleared("h1")
    assert shown(directory) == {}


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (document("h2", "10.0.0.1"), "name h2 in the document of h1"),
        (document("h1", "10.0.0.1", port=1), "h1 probes at port 1, not 9200"),
        (document("h1", "224.0.0.1"), "h1: 224.0.0.1 is no unicast address"),
        (document("h1", "name"), "h1: name is no unicast address"),
    ],
)
def test_a_document_that_cannot_be_probed_changes_nothing(bad, text):
    directory = PeerDirectory("h0", PORT)
    directory.document("h1", document("h1", "10.0.0.1"))
    with pytest.raises(BadMessageError, match=text):
        directory.document("h1", bad)
    assert shown(directory) == {"h1": [(0, "10.0.0.1")]}


def test_an_address_is_that_of_one_host():
    directory = PeerDirectory("h0", PORT)
    directory.document("h2", document("h2", "10.0.0.1", "10.1.0.2"))
    directory.document("h1", document("h1", "10.0.0.1"))
    assert shown(directory) == {"h1": [(0, "10.0.0.1")], "h2": [(1, "10.1.0.2")]}
    assert directory.conflicts == (Conflict("h1", "h2", 1, "10.0.0.1", ""),)
    directory.document("h1", document("h1", "10.0.0.7"))
    assert shown(directory)["h2"] == [(0, "10.0.0.1"), (1, "10.1.0.2")]
    assert directory.conflicts == ()


def test_who_had_an_address_first_keeps_it_whatever_others_say():
    """Attack S4: nobody takes another host out of what is probed."""
    directory = PeerDirectory("me", PORT)
    for number in (1, 2, 3):
        directory.document(f"h{number}", document(f"h{number}", f"10.0.0.{number}"))
    before = shown(directory)
    directory.document("h0", document("h0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9"))
    assert shown(directory) == before | {"h0": [(3, "10.0.0.9")]}
    assert [(one.host, one.other) for one in directory.conflicts] == [
        ("h0", "h1"), ("h0", "h2"), ("h0", "h3"),
    ]  # fmt: skip
    again = PeerDirectory("me", PORT, load_of(directory))
    again.document("h0", document("h0", "10.0.0.1"))
    assert shown(again) == before, "after a restart, too"
    again.cleared("h1")
    assert shown(again)["h0"] == [(0, "10.0.0.1")], "it is free"


def load_of(directory):
    return tuple(one for one in directory.peers(0) if one.host != "h0")


def test_our_own_address_is_nobody_elses():
    directory = PeerDirectory("h0", PORT)
    directory.document("h9", document("h9", "10.0.0.7", "10.0.0.9"))
    assert directory.document("h0", document("h0", "10.0.0.7"))
    assert shown(directory) == {"h9": [(1, "10.0.0.9")]}
    assert directory.conflicts == (Conflict("h0", "h9", 1, "10.0.0.7", "h0"),)


@pytest.mark.parametrize(
    ("networks", "own", "probed"),
    [
        ((), (), {"10.0.0.1", "fd00::1", "100.64.0.1"}),
        ((), ("8.8.4.4",), {"10.0.0.1", "fd00::1", "100.64.0.1", "8.8.8.8"}),
        ((), ("2001:db8:0:9::1",), {"10.0.0.1", "fd00::1", "100.64.0.1", "2001:db8::1"}),
        (("8.8.8.0/24",), ("10.0.0.9",), {"8.8.8.8"}),
    ],
)
def test_a_document_aims_no_traffic_out_of_the_fabric(networks, own, probed):
    """Attack S4."""
    directory = PeerDirectory("h0", PORT, (), tuple(map(ipaddress.ip_network, networks)))
    addresses = ("10.0.0.1", "fd00::1", "100.64.0.1", "8.8.8.8", "203.0.113.7", "2001:db8::1")
    for number, address in enumerate(addresses):
        directory.document(f"h1{number}", document(f"h1{number}", address))
    directory.document("h0", document("h0", *own))
    assert {address for found in shown(directory).values() for _, address in found} == probed
    assert len(directory.outside) == len(addresses) - len(probed)


def test_two_hosts_whose_probes_have_one_number_are_not_both_probed():
    """A peer's report names hosts by number: one would be blamed for the other."""
    one, other = "gpu-76826", "gpu-77094"
    assert host_id(one) == host_id(other)
    directory = PeerDirectory("h0", PORT)
    directory.document(other, document(other, "10.0.0.1"))
    with pytest.raises(BadMessageError, match=f'"{one}" and "{other}" have the same number'):
        directory.document(one, document(one, "10.0.0.2"))
    assert list(shown(directory)) == [other]
    directory.document(other, document(other, "10.0.0.3"))
    assert shown(directory) == {other: [(0, "10.0.0.3")]}
    with pytest.raises(BadMessageError, match=f"{one} is not probed"):
        PeerDirectory(other, PORT).document(one, document(one, "10.0.0.2"))


def test_a_host_leaves_some_time_after_its_goodbye_and_never_by_its_will():
    directory, now = PeerDirectory("h0", PORT), 0
    for name in ("h1", "h2", "h3"):
        directory.document(name, document(name, f"10.0.0.{name[1]}"))
    assert set(shown(directory)) == {"h1", "h2", "h3"}
    directory.status("h1", online=False, intended=True, now=now)
    directory.status("h2", online=False, intended=False, now=now)
    directory.status("h3", online=False, intended=True, now=now)
    assert not directory.leave(now + LEAVE_NS - 1)
    directory.status("h3", online=True, intended=False, now=now + LEAVE_NS - 1)
    assert directory.leave(now + LEAVE_NS)
    assert not directory.leave(now + LEAVE_NS + 1)
    assert set(shown(directory)) == {"h2", "h3"}
    directory.document("h1", document("h1", "10.0.0.7"))
    assert set(shown(directory)) == {"h2", "h3"}, "its document is still at the broker"
    directory.status("h1", online=True, intended=False, now=now)
    assert directory.leave(now + LEAVE_NS + 2)
    assert set(shown(directory)) == {"h1", "h2", "h3"}


def test_a_host_that_had_left_before_our_start_does_not_join_for_a_while():
    known = (PeerTable(host="h2", addresses=[{"rail": 0, "address": "10.0.0.2"}]),)
    directory = PeerDirectory("h0", PORT, known)
    for name in ("h1", "h2"):
        directory.status(name, online=False, intended=True, now=5)
        directory.document(name, document(name, f"10.0.0.{name[1]}"))
    directory.leave(6)
    assert set(shown(directory)) == {"h2"}, "the one that is probed may come back"
    directory.leave(5 + LEAVE_NS)
    assert shown(directory) == {}


def test_what_is_stored_is_probed_after_a_restart(tmp_path):
    directory, file = PeerDirectory("h0", PORT), tmp_path / "peers.json"
    assert load(file) == ()
    directory.document("h1", document("h1", "10.0.0.1", "fd00::1"))
    assert load_proven(file) == {}
    assert directory.peers(0)
    assert directory.answered([(host_id("h1"), "fd00::1")])
    file.write_text(directory.stored(directory.peers(0)))
    assert load(file) == directory.peers(0)
    assert load_proven(file) == {ipaddress.ip_address("fd00::1"): "h1"}
    assert shown(PeerDirectory("h0", PORT, load(file))) == shown(directory)


def contested():
    """A directory in which h0 names the address of h1, before h1 does."""
    directory = PeerDirectory("me", PORT)
    directory.document("h0", document("h0", "10.0.0.1", "10.0.0.9"))
    directory.peers(0)
    directory.document("h1", document("h1", "10.0.0.1", "10.0.0.2"))
    return directory


def test_an_address_belongs_to_the_host_that_answers_there():
    """Attack S4: h0 names the address of h1, and is the first to do so."""
    directory = contested()
    assert shown(directory)["h0"] == [(0, "10.0.0.1"), (1, "10.0.0.9")]
    assert directory.open() == {"10.0.0.1"}
    assert not directory.answered([(host_id("h1"), "10.0.0.1")]), "it is not asked as h1 now"
    assert not directory.leave(TURN_NS - 1)
    assert directory.leave(TURN_NS), "h0 has not answered there: it is the turn of h1"
    assert shown(directory, TURN_NS)["h1"] == [(0, "10.0.0.1"), (1, "10.0.0.2")]
    assert directory.conflicts == (Conflict("h0", "h1", 1, "10.0.0.1", ""),)
    assert directory.answered([(host_id("h1"), "10.0.0.1"), (host_id("h0"), "10.0.0.9")])
    assert directory.open() == frozenset()
    late = 100 * LONGEST_TURN_NS
    assert not directory.leave(late)
    assert shown(directory, late)["h1"] == [(0, "10.0.0.1"), (1, "10.0.0.2")], "also if silent"
    assert directory.conflicts == (Conflict("h0", "h1", 1, "10.0.0.1", "h1"),)
    directory.document("h1", document("h1", "10.0.0.2"))
    assert shown(directory, late)["h0"] == [(0, "10.0.0.1"), (1, "10.0.0.9")], "h1 gave it up"
    assert directory.conflicts == ()


def test_turns_become_longer_where_nobody_answers():
    directory, now, changes = contested(), 0, []
    shown(directory)
    while now < 60 * TURN_NS:
        now += TURN_NS // 2
        if directory.leave(now):
            shown(directory, now)
            changes.append(now // TURN_NS)
    assert changes == [1, 2, 4, 6, 10, 14, 22, 30, 46]


def test_what_a_liar_named_is_not_stored(tmp_path):
    directory, file = contested(), tmp_path / "peers.json"
    peers = directory.peers(0)
    file.write_text(directory.stored(peers))
    again = PeerDirectory("me", PORT, load(file), (), load_proven(file))
    assert shown(again) == {"h0": [(1, "10.0.0.9")], "h1": [(1, "10.0.0.2")]}
    again.document("h1", document("h1", "10.0.0.1"))
    again.peers(0)
    assert again.answered([(host_id("h1"), "10.0.0.1")])
    file.write_text(again.stored(again.peers(0)))
    third = PeerDirectory("me", PORT, load(file), (), load_proven(file))
    third.document("h0", document("h0", "10.0.0.1"))
    for now in (0, TURN_NS, 2 * TURN_NS):
        third.leave(now)
        assert shown(third, now)["h1"] == [(0, "10.0.0.1")], "it answered before the restart"


def test_a_stored_host_that_is_gone_is_forgotten():
    known = tuple(
        PeerTable(host=f"h{number}", addresses=[{"rail": 0, "address": f"10.0.0.{number}"}])
        for number in (1, 2, 3)
    )
    directory = PeerDirectory("me", PORT, known)
    assert not directory.leave(10 * FORGET_NS), "without a broker nothing is known of it"
    directory.peers(0)
    directory.document("h1", document("h1", "10.0.0.1"))
    directory.answered([(host_id("h2"), "10.0.0.2")])
    assert not directory.leave(20 * FORGET_NS)
    assert not directory.leave(21 * FORGET_NS - 1)
    assert directory.leave(21 * FORGET_NS)
    assert set(shown(directory)) == {"h1", "h2"}


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x)).map(
        lambda peers: json.dumps({"version": 1, "peers": peers}).encode()
    )
)
def test_any_file_is_read_or_ignored(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("peers") / "peers.json"
    file.write_bytes(content)
    assert load(file) == ()


def test_the_configuration_goes_before_what_is_found():
    text = '[[links]]\nnetdev = "rail0"\nrail = 0\n'
    peers = '[[peers]]\nhost = "h9"\naddresses = [{ rail = 0, address = "10.0.0.9" }]\n'
    broker = '[broker]\nhost = "10.9.0.1"\n'
    found = (PeerTable(host="h1", addresses=[{"rail": 0, "address": "10.0.0.1"}]),)
    assert with_peers(parse_config(text + broker, "f"), found).peers == found
    assert with_peers(parse_config(text + broker, "f"), ()).peers == ()
    assert [p.host for p in with_peers(parse_config(text + peers + broker, "f"), found).peers] == [
        "h9"
    ]
    assert with_peers(parse_config(text, "f"), found).peers == ()
