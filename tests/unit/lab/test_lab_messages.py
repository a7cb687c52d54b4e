"""Netlink messages of the lab, byte by byte against their layouts."""

import errno
import struct

import pytest

from lab.network.nftdrop import SCALE, Drop, counted, install_message, remove_message
from lab.network.route_restorer import link_messages, new_addresses
from lab.network.rtlink import check_ack, set_up_message


def split(batch: bytes) -> list[tuple[int, int, bytes]]:
    """(type, flags, payload) of each message; lengths have to add up exactly."""
    found = []
    at = 0
    while at < len(batch):
        size, kind, flags, _, _ = struct.unpack_from("=IHHII", batch, at)
        assert size >= 16
        assert size % 4 == 0
        found.append((kind, flags, batch[at + 16 : at + size]))
        at += size
    assert at == len(batch)
    return found


def test_link_message():
    for up in (True, False):
        message = set_up_message(7, up=up)
        assert len(message) == 32
        size, kind, flags, _, _ = struct.unpack_from("=IHHII", message)
        assert (size, kind, flags) == (32, 16, 5)
        family, index, ifi_flags, change = struct.unpack_from("=BxxxiII", message, 16)
        assert (family, index, ifi_flags, change) == (0, 7, int(up), 1)


def test_acknowledgement():
    def reply(code: int) -> bytes:
        return struct.pack("=IHHIIi", 36, 2, 0, 0, 0, code) + b"\0" * 16

    check_ack(reply(0))
    with pytest.raises(OSError, match="No such device") as caught:
        check_ack(reply(-errno.ENODEV))
    assert caught.value.errno == errno.ENODEV
    with pytest.raises(OSError, match="acknowledgement"):
        check_ack(struct.pack("=IHHIIi", 36, 3, 0, 0, 0, 0))


def kinds(parts):
    return [kind & 0xFF if kind > 0xFF else kind for kind, _, _ in parts]


def test_black_hole_is_a_chain_and_a_rule_that_counts_for_each_hook():
    parts = split(install_message("t", [Drop("h0", "ingress"), Drop("h0", "egress")]))
    assert kinds(parts) == [0x10, 0, 3, 6, 3, 6, 0x11]
    # The last message before the end of the batch asks for the only acknowledgement.
    assert [bool(flags & 4) for _, flags, _ in parts] == [False] * 5 + [True, False]
    for _, _, body in parts[1:6]:
        assert body[0] == 5  # NFPROTO_NETDEV
    assert b"h0\0" in parts[2][2]
    for rule in (parts[3][2], parts[5][2]):
        assert rule.index(b"counter\0") < rule.index(b"immediate\0")
        assert b"numgen\0" not in rule


def test_loss_asks_a_random_number_first():
    parts = split(install_message("t", [Drop("h0", "ingress", SCALE // 10)]))
    assert kinds(parts) == [0x10, 0, 3, 6, 0x11]
    rule = parts[3][2]
    at = [rule.index(n) for n in (b"numgen\0", b"byteorder\0", b"cmp\0", b"counter\0")]
    assert at == sorted(at)
    assert b"immediate\0" in rule
    assert struct.pack(">I", SCALE // 10) in rule


def test_bytes_that_pass_before():
    rule = split(install_message("t", [Drop("h0", "egress", after_bytes=4711)]))[3][2]
    assert rule.index(b"quota\0") < rule.index(b"counter\0")
    assert struct.pack(">Q", 4711) in rule


def test_resets_answer_tcp_alone():
    rule = split(install_message("t", [Drop("h0", "ingress", answer="reset")]))[3][2]
    assert rule.index(b"meta\0") < rule.index(b"counter\0") < rule.index(b"reject\0")
    assert b"immediate\0" not in rule


def test_counters_of_a_listing():
    listing = [
        {"metainfo": {"json_schema_version": 1}},
        {"chain": {"name": "ingress_h0"}},
        {"rule": {"chain": "ingress_h0", "expr": [{"counter": {"packets": 7, "bytes": 9}}]}},
        {"rule": {"chain": "egress_h0", "expr": [{"drop": None}]}},
    ]
    assert counted(listing) == {("h0", "ingress"): 7}


def test_removal():
    assert [kind & 0xFF for kind, _, _ in split(remove_message("t"))] == [0x10, 2, 0x11]


def test_link_notifications():
    def newlink(index: int, flags: int, kind: int = 16, extra: bytes = b"") -> bytes:
        body = struct.pack("=BxHiII", 0, 1, index, flags, 0) + extra
        message = struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body
        return message + b"\0" * (-len(message) % 4)

    data = newlink(1000, 1, extra=b"abc") + newlink(1001, 0) + newlink(5, 1, kind=17)
    assert link_messages(data) == [(1000, 1), (1001, 0)]
    for cut in range(len(data)):
        link_messages(data[:cut])
    assert link_messages(b"\0" * 64) == []


def test_new_addresses_are_told_from_links():
    def message(kind, body):
        return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body

    address = struct.pack("=BBBBi", 2, 24, 0, 0, 1001)
    link = struct.pack("=BxHiII", 0, 1, 1000, 1, 0)
    data = message(16, link) + message(20, address) + message(21, address)
    assert (new_addresses(data), link_messages(data)) == ([1001], [(1000, 1)])
    assert [new_addresses(data[:cut]) for cut in (0, 40, 50)] == [[], [], []]
