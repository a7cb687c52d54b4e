"""The page of source ports: what is asked for is what the prober reads; other bytes are refused."""

import json
import struct
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocksync.page import latch, ports
from clocksync.page.ports import Ends, PortPage, PortsError, decode, encode

ASKED = {
    Ends("10.0.0.1", "10.0.0.2", 9200, 7): 61001,
    Ends("fd00::1", "fd00::2", 9201, 2**32 - 1): 65535,
}


def test_what_is_asked_for_is_read():
    assert decode(encode(ASKED)) == ASKED
    assert decode(encode({})) == {}
    many = {Ends("10.0.0.1", "10.0.0.2", 9200, n + 1): 61000 for n in range(60)}
    assert len(decode(encode(many))) == ports.MOST


@pytest.mark.parametrize(
    ("ends", "port"),
    [(Ends("x", "10.0.0.2", 9200, 7), 61000), (Ends("10.0.0.1", "", 9200, 7), 61000),
     (Ends("10.0.0.1", "10.0.0.2", 9200, 7), 22), (Ends("10.0.0.1", "10.0.0.2", 9200, 7), 65536)],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused(ends, port):
    with pytest.raises(ValueError, match=r"port|address"):
        encode({ends: port})


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 1900), st.booleans())
def test_any_bytes_are_ports_or_refused(data, at, sealed):
    record = bytearray(encode(ASKED))
    record[at : at + len(data)] = data
    whole = latch.seal(bytes(record)) if sealed and len(record) % 8 == 0 else bytes(record)
    try:
        found = decode(whole)
    except PortsError:
        return
    assert len(found) <= ports.MOST
    assert decode(encode(found)) == found


def test_the_page_outlives_its_writer_and_the_next_one_finds_it(tmp_path):
    page = PortPage(tmp_path)
    assert page.held == {}
    page.write(ASKED)
    page.close()
    after = PortPage(tmp_path)
    assert after.held == ASKED
    before = (tmp_path / "ports").read_bytes()
    after.write(ASKED)
    assert (tmp_path / "ports").read_bytes() == before, "nothing new, nothing written"
    after.write({})
    after.close()
    assert PortPage(tmp_path).held == {}


def test_a_damaged_page_says_nothing(tmp_path):
    page = PortPage(tmp_path)
    page.write(ASKED)
    page.close()
    file = tmp_path / "ports"
    file.write_bytes(file.read_bytes().replace(struct.pack("<H", 61001), b"\0\0"))
    assert PortPage(tmp_path).held == {}


def test_the_layout_is_that_of_the_prober(native, tmp_path):
    dump = native("prober/fabric_ring_layout_dump")
    shown = subprocess.run([dump], check=True, capture_output=True, timeout=20).stdout
    there = json.loads(shown)["clock_ports"]
    page = PortPage(tmp_path)
    page.write(ASKED)
    page.close()
    data = (tmp_path / "ports").read_bytes()
    assert struct.unpack_from("<IHHQ", data) == (
        there["magic"], there["version"], there["used"], 1,
    )  # fmt: skip
    assert (len(data), latch.SALT, latch.RECORDS_AT) == (
        there["size"], there["salt"], there["records_at"],
    )  # fmt: skip
    assert (ports.KIND.record, ports.MOST, ports.LEAST) == (
        there["record"], there["entries"], there["least_port"],
    )  # fmt: skip
    offset, mine = 0, {}
    for name, code in ports.ENTRY_FIELDS.items():
        size = struct.calcsize("<" + code)
        mine[name] = {"offset": offset, "size": size}
        offset += size
    assert mine == there["fields"]
    assert (offset, there["entries_at"]) == (there["entry"], 16)
