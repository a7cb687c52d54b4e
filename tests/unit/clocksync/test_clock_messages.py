"""Messages between clock services: what is said is what is heard, and other bytes are refused."""

import random
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocksync.mesh import messages
from clocksync.mesh.codec import ClockMessageError, decode, encode
from clocksync.mesh.messages import (
    AsymmetryReport,
    Mesh,
    MeshId,
    Origin,
    Phc,
    Reference,
    Time,
    Trace,
    link_id,
)
from clocksync.page import latch, outbox
from clocksync.page.outbox import SIZE, OutboxPage
from clocksync.pair.crossing import PhcLine
from clocksync.pair.linear import Linear

HEADER = Path(__file__).resolve().parents[3] / "prober/include/fabric/clock_outbox.h"
NOW = 1_800_000_000 * 10**9
MESH_ID = MeshId(7, NOW)
SAID = [
    Mesh(5, 41_000_000_000_123, NOW + 17, 0.625, -12.5e-6, 77),
    Time(5, 77, 9, 41_000_000_000_123, NOW - 3, 1234.5, 2.0**-30),
    Reference(5, 100, 77, 65_535, NOW, -(10**15), 0.5, 30e-6),
    MESH_ID,
    Trace(5, 78, NOW, -(10**15), 30e-6, 2.0**13, 2.0**-30, 0xFFFF),
    Origin(5, 78, NOW, 2**64 - 1, 6, 0x21, 3, -37, True, -1),
    Origin(5, 78, NOW, 0, 248, 0xFE, 0, None, False, 1, tracking=False),
    Mesh(5, 41_000_000_000_123, NOW + 17, 0.625, -12.5e-6, 77, 2.0**13.125),
    Phc(0xFEDCBA98, 200, 41_000_000_000_123, NOW + 37 * 10**9, 0.5, -300e-6, 512.0, 2.5),
]


@pytest.mark.parametrize("message", SAID)
def test_what_is_said_is_heard(message):
    data = encode(message)
    assert len(data) == SIZE
    heard = decode(data)
    assert type(heard) is type(message)
    for one, other in zip(heard, message, strict=True):
        assert one == pytest.approx(other, abs=2.0**-42)


def test_parts_and_slopes_keep_what_a_nanosecond_needs():
    heard = decode(encode(SAID[0]._replace(part=0.123456789, slope=1.23456e-7)))
    assert heard.part == pytest.approx(0.123456789, abs=1e-9)
    assert heard.slope == pytest.approx(1.23456e-7, abs=2e-13), "0.2 ns in a thousand seconds"
    assert decode(encode(SAID[0]._replace(slope=1.0))).slope == pytest.approx(488e-6, abs=1e-6)


def test_a_bound_travels_rounded_up_and_little():
    for bound, drift in [(0.0, 0.0), (1.0, 1e-12), (12345.6, 3e-9), (9.9e17, 0.9), (9.9e17, 5.0)]:
        heard = decode(encode(SAID[4]._replace(bound_ns=bound, drift=drift)))
        assert max(bound, 1.0) <= heard.bound_ns <= max(bound, 1.0) * 1.0014
        assert min(drift, 1.0) <= heard.drift <= max(min(drift, 1.0) * 1.19, 2.0**-62)


@given(st.floats(1e-3, 9e17), st.floats(1e-20, 0.49))
def test_what_a_neighbour_says_it_is_within_never_shrinks(bound, drift):
    heard = decode(encode(SAID[1]._replace(bound_ns=bound, drift=drift)))
    assert bound <= heard.bound_ns <= bound * (1 + 2.0**-22)
    assert drift <= heard.drift <= drift * (1 + 2.0**-22)
    assert decode(encode(heard)) == heard, "passed on by many it stays where it is"


def test_a_reference_of_another_term_is_another():
    assert messages.under(7, 1) == messages.under(7, 257) != messages.under(7, 2)


def test_a_mesh_has_a_tag():
    assert MESH_ID.tag == MeshId(7, NOW).tag != MeshId(8, NOW).tag
    assert MESH_ID.tag


@pytest.mark.parametrize(
    "data",
    [
        b"", bytes(SIZE), bytes([99]) + encode(SAID[0])[1:], encode(SAID[0])[:-1],
        encode(SAID[0]._replace(tag=0)), encode(SAID[0]._replace(mesh_ns=2**61 + 1)),
        encode(SAID[1]._replace(bound_ns=float("nan"))), encode(SAID[1]._replace(bound_ns=-1.0)),
        encode(SAID[1]._replace(drift=2.0)), encode(MESH_ID)[:2] + b"\1\1" + encode(MESH_ID)[4:],
        encode(SAID[-1]._replace(half_ns=0.0)), encode(SAID[-1]._replace(half_ns=float("nan"))),
        encode(SAID[-1]._replace(spread_ns=float("inf"))), encode(SAID[-1]._replace(slope=1.0)),
        encode(SAID[-1]._replace(phc_ns=2**61 + 1)), encode(SAID[4]._replace(bound_ns=1.01e18)),
        encode(SAID[4]._replace(bound_ns=2.0**127)),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(data):
    with pytest.raises(ClockMessageError):
        decode(data)


def test_an_accusation_is_a_gauge_to_hosts_that_do_not_know_it():
    said = AsymmetryReport(MESH_ID, 0xDEADBEEF, -512.5)
    assert decode(encode(said)) == said
    older = struct.unpack("<BBHIqQQ", encode(said))
    assert older[:6] == struct.unpack("<BBHIqQQ", encode(MESH_ID))[:6], "it looks at no more"
    assert decode(encode(said._replace(mark=0))) == MESH_ID
    for value in (float("nan"), float("inf"), 1e30):
        with pytest.raises(ClockMessageError):
            decode(encode(said._replace(surplus_ns=value)))


def test_any_bytes_are_a_message_or_refused():
    rng = random.Random(1)
    sound = [encode(message) for message in SAID]
    refused = 0
    for _ in range(20_000):
        data = bytearray(rng.choice(sound))
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(SIZE)] = rng.randrange(256)
        try:
            decode(bytes(data))
        except ClockMessageError:
            refused += 1
    assert 1000 < refused < 19_000


def test_a_crossing_goes_over_as_a_line_that_is_not_better_than_it_was():
    origin = Linear(41 * 10**15, NOW, 0.25, 12.345e-6)
    line = PhcLine(origin, 301.7, 1.7, 5e-10, 259)
    heard = decode(encode(messages.phc(link_id("10.0.0.1"), 259, line)))
    assert heard.link == link_id("10.0.0.1") == link_id("10.0.0.1%rail0") != link_id("10.0.0.2")
    assert heard.generation == 3
    assert heard.line.half_ns >= 301.7
    for later in (0, 10**9):
        ns, part = heard.line.phc(origin.at_ns + later)
        was, rest = line.phc(origin.at_ns + later)
        assert ns - was + part - rest == pytest.approx(0, abs=0.002)
    assert heard.line.slope_error > line.slope_error
    assert decode(encode(messages.phc(1, 4, None))).line is None


def test_the_page_is_that_of_the_prober(tmp_path):
    page = OutboxPage(tmp_path)
    said = [encode(message) for message in SAID]
    page.write(said[:-1], {31: said[-1]})
    page.close()
    data = (tmp_path / "clock-outbox").read_bytes()
    text = HEADER.read_text()
    magic, version = (int(re.search(rf"{name} = (0x\w+|\d+)", text)[1], 0)
                      for name in ("kMagic", "kVersion"))  # fmt: skip
    record, used = (int(re.search(rf"sizeof\({name}\) == (\d+)", text)[1])
                    for name in ("Record", "Page"))  # fmt: skip
    assert struct.unpack_from("<IHHQ", data) == (magic, version, used, 1)
    assert (outbox.KIND.record, outbox.KIND.used, len(data)) == (record, used, latch.SIZE)
    held = data[16 + record : 16 + 2 * record]
    assert latch.is_sealed(held)
    all_paths = b"".join(said[:-1]).ljust(outbox.MOST * SIZE, b"\0")
    assert held[16:] == all_paths + bytes(31 * SIZE) + said[-1]
    assert f"kLinks = {outbox.LINKS};" in text
    assert f"kSalt = {latch.SALT:#x}" in text


def test_the_next_service_goes_on_with_the_page(tmp_path):
    for number in (1, 2):
        page = OutboxPage(tmp_path)
        page.write([])
        page.close()
        assert struct.unpack_from("<Q", (tmp_path / "clock-outbox").read_bytes(), 8)[0] == number


def test_more_messages_than_there_is_room_for_are_refused(tmp_path):
    page = OutboxPage(tmp_path)
    with pytest.raises(ValueError, match="9 messages, not 8 at most"):
        page.write([bytes(SIZE)] * 9)
    page.close()
