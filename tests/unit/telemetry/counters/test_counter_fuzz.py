"""Every parser takes any bytes: a clear error, a reason, or a number that is there."""

import contextlib
import struct

import counter_replies as replies
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lab.inputs import kernel_replies as kernel
from telemetry.counters import ethdriver, ethnl, ib, messages, rdma, rtnl
from telemetry.counters.linkstate import down_reason
from telemetry.counters.nlattr import decode, error_code, layout
from telemetry.counters.nlattr import messages as split
from telemetry.counters.tables.ethtool import ETHTOOL_TABLES
from telemetry.counters.tables.ib_port import IB_PORT
from telemetry.counters.tables.rdma import recognise
from telemetry.counters.tables.standard import ETH_STANDARD, LINK_STATS
from telemetry.counters.types import WIDE, CounterError

NUMBER = st.integers(0, 2**64 - 1)
BYTE = st.sampled_from([0, 1, 3, 4, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)


@contextlib.contextmanager
def clear_error():
    """A parser may refuse, if it says why; anything else is a crash."""
    try:
        yield
    except CounterError as error:
        if not str(error):
            raise


def counted(values):
    """Whatever comes out of a parser is a count."""
    assert all(isinstance(value, int) and value >= 0 for value in values.values())


def standard(data):
    attributes = decode(data, layout(messages.ethtool_stats_msg))
    counted(ETH_STANDARD.canonical(ethnl.standard(attributes))[0])
    ethnl.ifindex(attributes)


def fec(data):
    values, bins, _ = ethnl.fec(decode(data, layout(messages.ethtool_fec_msg)))
    counted(values)
    assert all(one.low <= one.high and one.count >= 0 for one in bins)


def pause(data):
    counted(ethnl.pause(decode(data, layout(messages.ethtool_pause_msg))))


def link_state(data):
    found = down_reason(decode(data, layout(messages.ethtool_linkstate_msg)))
    assert found is None or found.text


def statistic(data):
    natives = rdma.hwcounters(decode(data, layout(messages.rdma_nldev_msg)))
    counted(natives)
    table = recognise(natives)
    if table is not None:
        counted(table.canonical(natives)[0])


def link(data):
    for name, value in decode(data, layout(messages.link_stats_msg)):
        assert name == "IFLA_STATS_LINK_64"
        counted(LINK_STATS.canonical(rtnl.stats64(value))[0])


def datagram(data):
    for message in split(data):
        if message.type in (2, 3):
            error_code(message)


MLX5 = {"out_of_sequence": 1, "packet_seq_err": 2, "local_ack_timeout_err": 3}
ERROR = struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -95)
PARSERS = [
    (standard, replies.STANDARD),
    (fec, replies.FEC),
    (pause, replies.PAUSE),
    (link_state, kernel.linkstate_reply(0, 3, 4)),
    (statistic, kernel.rdma_reply(MLX5)),
    (link, kernel.u64(1, *range(25))),
    (datagram, ERROR + ERROR),
]


@pytest.mark.parametrize(("parse", "whole"), PARSERS)
def test_a_whole_reply_is_read(parse, whole):
    parse(whole)


@pytest.mark.parametrize(("parse", "whole"), PARSERS)
@given(data=st.data())
def test_any_damage_to_a_reply(parse, whole, data):
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(
            st.sampled_from([0, 1, 3, 4, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)
        )
    end = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
    with clear_error():
        parse(bytes(damaged[:end]))


@pytest.mark.parametrize(("parse", "whole"), PARSERS)
@given(data=st.binary(max_size=200))
def test_any_bytes(parse, whole, data):
    with clear_error():
        parse(data)


@given(st.binary(max_size=80) | st.from_regex(rb"[ 0-9xN/A.\n-]{0,40}", fullmatch=True))
@example(b"18446744073709551616\n")
@example(b"-1\n")
@example(b"0x10\n")
@example(b"1 2\n")
@example(b"")
@example("٣".encode())
@example(b"1_000\n")
def test_any_content_of_a_counter_file(text):
    with clear_error():
        value = ib.number(text)
        assert 0 <= value <= WIDE.maximum
        # Nothing but the number, in decimal, stands in the file.
        assert text.strip(b" \t\n\0").lstrip(b"0") == (str(value).encode() if value else b"")


@given(st.binary(max_size=40))
def test_any_lifespan(text):
    with clear_error():
        assert 0 <= ib.lifespan_ns(text) <= 10 * 10**9


@given(
    st.dictionaries(
        st.sampled_from([row.native for row in IB_PORT.rows]) | st.text(max_size=20),
        st.binary(max_size=24) | NUMBER.map(lambda n: f"{n}\n".encode()),
    )
)
@example({"link_error_recovery": b"255\n"})
def test_any_port_folder(found):
    values, shapes, skipped = ib.parse(found, IB_PORT)
    counted(values)
    assert set(shapes) <= set(values)
    for row in filter(None, map(IB_PORT.row, found)):
        stands = row.shape.saturates and values.get(row.canonical) == row.shape.maximum
        assert (row.canonical in values) == (stands or row.native not in skipped)
        assert row.native in skipped or not stands


@pytest.mark.parametrize("name", sorted(ETHTOOL_TABLES))
@given(st.binary(max_size=400), st.binary(max_size=100), st.integers(-1, 12))
def test_any_driver_statistics(name, names, numbers, count):
    with clear_error():
        picked = ethdriver.pick(ethdriver.strings(names, count), ETHTOOL_TABLES[name])
        values, _ = ethdriver.values(memoryview(numbers), picked)
        counted(values)


@given(st.lists(NUMBER, min_size=5, max_size=5), st.permutations(range(5)))
def test_values_follow_their_names(numbers, order):
    natives = ["tx_timeout", "wd_expired", "queue_0_rx_cnt", "noise", "queue_1_rx_cnt"]
    names = [natives[i] for i in order]
    data = [numbers[i] for i in order]
    table = ETHTOOL_TABLES["ena"]
    picked = ethdriver.pick(ethdriver.strings(kernel.gstrings(names), 5), table)
    values, _ = ethdriver.values(memoryview(kernel.gstats(data)), picked)
    assert values == {
        "tx_timeouts": numbers[0],
        "resets": numbers[1],
        "rx_packets": numbers[2] + numbers[4],
    }


@given(st.binary(max_size=200))
def test_any_driver_info(info):
    with clear_error():
        assert ethdriver.driver_name(info)
