"""The wire in Python and in scapy agree with each other (the lab tests: with the prober)."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.probes import wire
from fabricd.probes.layout import WIRE_SIZE
from lab.inputs import probe_packets

KEY = bytes(range(32))
ENDS = [
    (("10.0.0.1", 9200), ("10.0.0.2", 9200)),
    (("fd00::1", 9200), ("fd00::2", 9201)),
]
LIMITS = {"B": (0, 255), "H": (0, 2**16 - 1), "I": (0, 2**32 - 1), "Q": (0, 2**64 - 1)}
fields = st.fixed_dictionaries(
    {name: st.integers(*LIMITS.get(code, (-(2**63), 2**63 - 1))) for name, code in wire.FIELDS}
)


OLDER = (
    "465052420107c0000500000006000000070000000000000008000000000000000900000000000000"
    "0a000000000000000b000000000000000c000000000000000d000000000000000e00000000000000"
    "0f000000000000001000000000000000110000000000000012000000130000001400000015000000"
    "16000000000000001700000000000000180000000000000019000000000000001a00000000000000"
    "1b0000001c0000000000000000000000ab0d80cebe55800dd0568b30ed9d5789"
)
"""Of a prober from before byes and peer reports: the word at byte 168 was reserved."""


def test_a_packet_of_the_version_before():
    packet = bytes.fromhex(OLDER)
    assert wire.genuine(packet, KEY, *ENDS[0])
    found = probe_packets.decode(packet)
    assert (found["seq"], found["flags"], found["peer_report"]) == (11, 7, 0)
    assert probe_packets.encode(found, KEY, *ENDS[0]) == packet, "and what we send it reads as well"


@given(fields, st.sampled_from(ENDS))
def test_there_and_back(values, ends):
    packet = probe_packets.encode(values, KEY, *ends)
    assert len(packet) == WIRE_SIZE
    assert probe_packets.decode(packet) == values
    assert wire.genuine(packet, KEY, *ends)
    assert not wire.genuine(packet, KEY, *reversed(ends))
    assert not wire.genuine(packet, bytes(32), *ends)
    assert not wire.genuine(packet[:-1], KEY, *ends)


def test_the_tag_is_keyed_blake2s_over_pseudo_header_and_body():
    packet = probe_packets.encode({"seq": 7}, KEY, *ENDS[0])
    head = (
        bytes(10) + b"\xff\xff\x0a\0\0\1" + b"\xf0\x23" + bytes(10) + b"\xff\xff\x0a\0\0\2\xf0\x23"
    )
    expected = hashlib.blake2s(head + packet[:176], key=KEY, digest_size=16).digest()
    assert packet[176:] == expected


def test_wrong_length():
    with pytest.raises(ValueError, match="5 bytes"):
        probe_packets.decode(b"12345")


def test_scapy_layer():
    pytest.importorskip("scapy")
    from scapy.layers.inet import IP, UDP

    from fabricd.probes.sniff import Probe, bind

    bind()
    packet = probe_packets.encode({"seq": 7, "flags": 6, "tx_ref_stamp": -5}, KEY, *ENDS[0])
    frame = IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=9200, dport=9200) / packet
    probe = IP(bytes(frame))[Probe]
    assert (probe.seq, probe.tx_ref_stamp, str(probe.flags)) == (7, -5, "train2+report")
    assert probe.genuine(KEY)
    assert not probe.genuine(bytes(32))
    assert bytes(Probe(seq=7, flags=6, tx_ref_stamp=-5).sign(KEY, *ENDS[0])) == packet


def test_the_daemons_side_never_imports_scapy():
    code = (
        "import sys, fabricd.probes.client, fabricd.probes.ring, fabricd.probes.wire;"
        "sys.exit(any(m.split('.')[0] == 'scapy' for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
