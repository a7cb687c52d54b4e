"""Netlink replies, packed byte by byte, as our decoder and as pyroute2 reads them."""

import struct

import counter_replies as replies
import pytest
from pyroute2.netlink import nlmsg

from lab.inputs import kernel_replies as kernel
from telemetry.counters import ethnl, messages, rdma, rtnl
from telemetry.counters.nlattr import decode, error_code, layout
from telemetry.counters.nlattr import messages as split
from telemetry.counters.tables.standard import ETH_STANDARD
from telemetry.counters.types import Bin, CounterError

GENL = struct.pack("=BBH", 33, 1, 0)


def by_pyroute2(message_class, payload, prefix=GENL):
    """What pyroute2 makes of the same bytes, in our form."""
    data = prefix + payload
    message = message_class(struct.pack("=IHHII", 16 + len(data), 99, 0, 1, 0) + data)
    message.decode()

    def plain(value):
        if isinstance(value, nlmsg) or (hasattr(value, "get") and value.get("attrs") is not None):
            return [(item[0], plain(item[1])) for item in value["attrs"]]
        return value

    return [(item[0], plain(item[1])) for item in message["attrs"]]


@pytest.mark.parametrize(
    ("message_class", "payload", "prefix"),
    [
        (messages.ethtool_stats_msg, replies.STANDARD, GENL),
        (messages.ethtool_fec_msg, replies.FEC, GENL),
        (messages.ethtool_pause_msg, replies.PAUSE, GENL),
        (messages.rdma_nldev_msg, kernel.rdma_reply({"out_of_sequence": 3, "x": 1 << 63}), b""),
        (messages.link_stats_msg, kernel.u64(1, *range(25)), struct.pack("=BBHII", 0, 0, 0, 7, 1)),
    ],
)
def test_both_decoders_agree(message_class, payload, prefix):
    ours = decode(payload, layout(message_class))

    def without_bitsets(attributes):  # which pyroute2 shows in hexadecimal
        return [item for item in attributes if "MODES" not in item[0]]

    assert without_bitsets(ours) == without_bitsets(by_pyroute2(message_class, payload, prefix))


def test_standard_statistics():
    attributes = decode(replies.STANDARD, layout(messages.ethtool_stats_msg))
    native = ethnl.standard(attributes)
    assert native["FrameCheckSequenceErrors"] == 3
    assert native["FrameTooLongErrors"] == 4
    assert native["etherStatsJabbers"] == 8
    assert native["MACControlFramesTransmitted"] == 1
    assert ethnl.ifindex(attributes) == 7
    values, shapes = ETH_STANDARD.canonical(native)
    assert shapes == {}
    assert values == {
        "symbol_errors": 11,
        "tx_packets": 500,
        "crc_errors": 3,
        "alignment_errors": 2,
        "tx_bytes": 9000,
        "length_errors": 4 + 5 + 7 + 8,
    }


def test_a_group_of_a_later_kernel_is_left_out():
    later = kernel.nest(4, kernel.u32(2, 9), kernel.nest(4, kernel.u64(0, 1)))
    attributes = decode(kernel.header(2) + later, layout(messages.ethtool_stats_msg))
    assert ethnl.standard(attributes) == {}


def test_fec_with_histogram():
    attributes = decode(replies.FEC, layout(messages.ethtool_fec_msg))
    values, bins, mode = ethnl.fec(attributes)
    # 122 is the total, 72 and 50 the lanes; corrected bits the device does not know.
    assert values == {"fec_corrected": 122, "fec_uncorrectable": 1}
    assert bins == (Bin(0, 0, 9 << 32), Bin(1, 3, 120), Bin(4, 15, 2))
    assert mode == "RS"


def test_fec_of_an_older_kernel():
    attributes = decode(replies.FEC_OLD, layout(messages.ethtool_fec_msg))
    assert ethnl.fec(attributes)[1] == ()
    assert ethnl.fec([]) == ({}, (), "")


@pytest.mark.parametrize(
    "bins",
    [
        [[("LOW", 4), ("HIGH", 3), ("VAL", 1)]],
        [[("LOW", 0), ("HIGH", 3), ("VAL", 1)], [("LOW", 3), ("HIGH", 5), ("VAL", 1)]],
        [[("LOW", 0), ("HIGH", 3)]],
    ],
)
def test_a_histogram_that_makes_no_sense(bins):
    named = [
        (
            "ETHTOOL_A_FEC_STAT_HIST",
            [(f"ETHTOOL_A_FEC_HIST_BIN_{name}", value) for name, value in one],
        )
        for one in bins
    ]
    with pytest.raises(CounterError, match="histogram"):
        ethnl.fec([("ETHTOOL_A_FEC_STATS", named)])


def test_pause_frames():
    attributes = decode(replies.PAUSE, layout(messages.ethtool_pause_msg))
    assert ethnl.pause(attributes) == {"pause_tx": 14, "pause_rx": 15234}
    assert ethnl.pause([("ETHTOOL_A_PAUSE_RX", 1)]) == {}


def test_rdma_statistic_is_what_sysfs_shows():
    counters = replies.fixture("mlx5_roce.hw_counters")
    counters.pop("lifespan")
    attributes = decode(kernel.rdma_reply(counters), layout(messages.rdma_nldev_msg))
    assert rdma.hwcounters(attributes) == counters


def test_an_rdma_entry_without_value_or_twice():
    name = kernel.attribute(82, b"x\0")
    half = kernel.nest(80, kernel.nest(81, name))
    one = kernel.nest(81, name, kernel.u64(83, 1))
    for payload in (half, kernel.nest(80, one, one)):
        with pytest.raises(CounterError, match="rdma statistic"):
            rdma.hwcounters(decode(payload, layout(messages.rdma_nldev_msg)))


def test_link_statistics():
    data = struct.pack("=25Q", *range(100, 125))
    native = rtnl.stats64(data)
    assert (native["rx_packets"], native["rx_crc_errors"], native["tx_compressed"]) == (
        100,
        112,
        122,
    )
    for wrong in (data[:176], data + b"\0"):
        with pytest.raises(CounterError, match="link statistics"):
            rtnl.stats64(wrong)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x03\x00\x01\x00", "attribute of 3 bytes"),
        (b"\x08\x00\x01\x00\x00", "attribute of 8 bytes in 5"),
        (b"\x01\x00", "2 bytes left"),
        (kernel.attribute(3, b"\1\2"), "ETHTOOL_A_FEC_AUTO: 2 bytes"),
        (kernel.nest(5, kernel.attribute(2, b"\1\2\3")), "ETHTOOL_A_FEC_STAT_CORRECTED: 3 bytes"),
        (
            kernel.nest(5, kernel.nest(5, kernel.attribute(4, b"\1\2"))),
            "ETHTOOL_A_FEC_HIST_BIN_VAL: 2 bytes",
        ),
    ],
)
def test_broken_attributes(data, reason):
    with pytest.raises(CounterError, match=reason):
        ethnl.fec(decode(data, layout(messages.ethtool_fec_msg)))


def test_messages_of_a_datagram():
    one = struct.pack("=IHHII", 20, 2, 0, 7, 0) + struct.pack("=i", -95)
    first, second = split(one + one)
    assert (first.type, first.sequence) == (2, 7)
    assert error_code(second) == 95
    for wrong in (one[:10], one[:19], one + b"\0"):
        with pytest.raises(CounterError, match="netlink"):
            list(split(wrong))
    with pytest.raises(CounterError, match="without a code"):
        error_code(next(iter(split(struct.pack("=IHHII", 16, 2, 0, 7, 0)))))


def test_a_layout_of_an_unknown_kind():
    class odd(nlmsg):  # noqa: N801
        nla_map = (("A", "be128"),)

    with pytest.raises(TypeError, match="be128"):
        layout(odd)
