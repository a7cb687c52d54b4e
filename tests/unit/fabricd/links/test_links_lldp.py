"""LLDP: frames and lldpctl's JSON become neighbours, or are refused."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.links.lldp import LldpError, Neighbour, parse_frame, parse_lldpctl
from fabricd.links.lldp_source import LldpSource, LldpTable

MAC = bytes.fromhex("0180c200000e") + bytes.fromhex("525400123456")


def tlv(kind, value):
    return (kind << 9 | len(value)).to_bytes(2, "big") + value


def frame(*tlvs, tag=b""):
    return MAC + tag + b"\x88\xcc" + b"".join(tlvs)


CHASSIS = tlv(1, b"\x04" + bytes.fromhex("001122334455"))
PORT = tlv(2, b"\x05Ethernet1/7")
TTL = tlv(3, b"\x00\x78")
NAME = tlv(5, b"leaf-a1")


def test_a_switch_says_who_it_is():
    found = parse_frame(frame(CHASSIS, PORT, TTL, tlv(4, b"to h0"), NAME, tlv(0, b"")) + bytes(20))
    assert found == Neighbour("00:11:22:33:44:55", "Ethernet1/7", 120, "leaf-a1")
    assert found.switch == "leaf-a1"
    tagged = frame(CHASSIS, PORT, TTL, tag=b"\x81\x00\x00\x05")
    assert parse_frame(tagged).switch == "00:11:22:33:44:55"


@pytest.mark.parametrize("name", ["sonic", "Switch", "localhost.localdomain", "localhost"])
def test_switches_of_one_name_as_they_come_are_two(name):
    other = tlv(1, b"\x04" + bytes.fromhex("0011223344aa"))
    found = [parse_frame(frame(x, PORT, TTL, tlv(5, name.encode()))) for x in (CHASSIS, other)]
    assert [x.switch for x in found] == ["00:11:22:33:44:55", "00:11:22:33:44:aa"]
    assert found[0].name == name, "people see it still"
    assert Neighbour("00:11:22:33:44:55", "1", 120, "sonic-leaf-a1").switch == "sonic-leaf-a1"


@pytest.mark.parametrize(
    ("chassis", "port", "expected"),
    [
        (b"\x05\x01\x0a\0\0\1", b"\x03\0\1\2\3\4\5", ("10.0.0.1", "00:01:02:03:04:05")),
        (b"\x05\x02" + bytes(15) + b"\x01", b"\x07swp3", ("::1", "swp3")),
        (b"\x07rack 4\x1b[2J", b"\x05e\xff", ("rack 4?[2J", "e\ufffd")),
    ],
)  # fmt: skip
def test_ids_by_their_subtype(chassis, port, expected):
    found = parse_frame(frame(tlv(1, chassis), tlv(2, port), TTL))
    assert (found.chassis, found.port) == expected


@pytest.mark.parametrize(
    ("bytes_", "why"),
    [
        (b"", "ethertype"),
        (MAC + b"\x08\x00" + bytes(40), "ethertype"),
        (frame(PORT, CHASSIS, TTL), "first three"),
        (frame(CHASSIS, PORT), "first three"),
        (frame(CHASSIS, PORT, tlv(3, b"\x00")), "2 bytes"),
        (frame(CHASSIS, PORT, TTL)[:-2], "longer than the frame"),
        (frame(tlv(1, b"\x04"), PORT, TTL), "subtype"),
        (frame(tlv(1, b"\x07  "), PORT, TTL), "empty"),
    ],
)
def test_what_is_refused_says_why(bytes_, why):
    with pytest.raises(LldpError, match=why):
        parse_frame(bytes_)


@given(st.binary(max_size=400))
def test_any_frame_is_read_or_refused(data):
    for candidate in (data, MAC + b"\x88\xcc" + data, frame(CHASSIS, PORT, TTL) + data):
        try:
            found = parse_frame(candidate)
        except LldpError:
            continue
        assert found.switch.isprintable()
        assert found.port
        assert 0 <= found.ttl_s <= 65535


LLDPCTL = {
    "lldp": {
        "interface": [
            {"rail0": {"chassis": {"leaf-a1": {"id": {"value": "00:11:22:33:44:55"}}},
                       "port": {"id": {"type": "ifname", "value": "Ethernet1/7"}, "ttl": "120"}}},
            {"rail1": {"chassis": {"id": {"type": "mac", "value": "66:77:88:99:aa:bb"}},
                       "port": {"id": {"type": "local", "value": "7"}}}},
        ]
    }
}  # fmt: skip


def test_lldpctl_one_and_several_interfaces():
    found = parse_lldpctl(json.dumps(LLDPCTL))
    assert found["rail0"] == Neighbour("00:11:22:33:44:55", "Ethernet1/7", 120, "leaf-a1")
    assert found["rail1"].switch == "66:77:88:99:aa:bb"
    one = {"lldp": {"interface": LLDPCTL["lldp"]["interface"][0]}}
    assert list(parse_lldpctl(json.dumps(one))) == ["rail0"]
    assert parse_lldpctl('{"lldp": {}}') == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"lldp": 3}', "[" * 100_000])
def test_what_is_not_lldpctls_is_refused(text):
    with pytest.raises(LldpError):
        parse_lldpctl(text)


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | st.just("id"),
    lambda x: st.lists(x, max_size=3)
    | st.dictionaries(st.sampled_from(["chassis", "port", "id", "value", "ttl"]), x, max_size=3),
    max_leaves=15,
)  # fmt: skip


@given(JSON)
def test_any_json_is_read_or_refused(value):
    for document in (value, {"lldp": {"interface": value}}, {"lldp": {"interface": {"r": value}}}):
        try:
            found = parse_lldpctl(json.dumps(document))
        except LldpError:
            continue
        assert all(n.switch and n.port for n in found.values())


def test_a_neighbour_is_valid_for_as_long_as_it_says():
    table, sec = LldpTable(), 10**9
    table.take("rail0", Neighbour("c", "p", 120), 0)
    table.take("rail1", Neighbour("c", "q", 10), 0)
    assert set(table.neighbours(9 * sec)) == {"rail0", "rail1"}
    assert set(table.neighbours(10 * sec)) == {"rail0"}
    table.take("rail0", Neighbour("c", "p", 0), 11 * sec)
    assert table.neighbours(11 * sec) == {}


@pytest.mark.parametrize("answers", [True, False])
async def test_lldpd_is_asked_and_one_that_refuses_is_not_the_end(tmp_path, monkeypatch, answers):
    (tmp_path / "told.json").write_text(json.dumps(LLDPCTL))
    program = tmp_path / "lldpctl"
    says = f"cat {tmp_path}/told.json" if answers else "echo no rights >&2; exit 1"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    changes = []
    source = LldpSource(["rail0"], lambda: changes.append(1))
    task = asyncio.create_task(source.run())
    async with asyncio.timeout(20):
        while source.note == "off" or source.note.startswith("lldpctl:"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    if answers:
        assert (source.note, list(source.neighbours()), changes) == ("lldpctl", ["rail0"], [1])
        source.watch(["rail1"])
        assert source.neighbours() == {}, "another link, of which nothing is known yet"
    else:  # without root there is no packet socket either
        assert source.note == "packet socket" or "lldpctl: no rights, and no" in source.note
        assert source.neighbours() == {}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
