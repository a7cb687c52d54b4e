"""Every driver's own names, from fixtures, as canonical counters."""

import re
from pathlib import Path

import pytest
from counter_replies import FIXTURES, files, fixture

from lab.inputs.kernel_replies import gstats, gstrings
from telemetry.counters import ethdriver, ib
from telemetry.counters.table import Row, Table
from telemetry.counters.tables.ethtool import ETHTOOL_TABLES
from telemetry.counters.tables.ib_port import IB_PORT
from telemetry.counters.tables.rdma import RDMA_TABLES, recognise
from telemetry.counters.tables.standard import ETH_STANDARD, LINK_STATS
from telemetry.counters.types import CounterError, Shape
from telemetry.counters.vocabulary import COUNTERS

HW = {
    "mlx5.hw_counters": (
        "mlx5",
        {
            "timeouts": 131,
            "out_of_sequence": 1,
            "packet_seq_err": 1,
            "duplicate_requests": 41,
            "retransmits": 99,
            "slow_restarts": 0,
            "cqe_errors": 3481,
            "rnr_nak_retry": 0,
        },
    ),
    "mlx5_roce.hw_counters": (
        "mlx5",
        {
            "cnp_sent": 3773741,
            "ecn_marked": 79402419,
            "cnp_received": 120,
            "icrc_errors": 7,
            "retry_exceeded": 2,
        },
    ),
    "bnxt_re.hw_counters": (
        "bnxt_re",
        {
            "timeouts": 12,
            "packet_seq_err": 3,
            "retry_exceeded": 1,
            "rnr_nak_retry": 4,
            "local_errors": 7,
            "duplicate_requests": 6,
            "out_of_sequence": 31,
            "pcie_transfer_errors": 3,
            "rcv_discards": 8,
            "rdma_rx_bytes": 3141592653589,
            "rdma_tx_packets": 912345678,
        },
    ),
    "irdma.hw_counters": (
        "irdma",
        {
            "rdma_rx_bytes": 1000000,
            "rdma_rx_packets": 1000,
            "rdma_tx_bytes": 5000,
            "rcv_discards": 7,
            "retransmits": 11,
            "cnp_received": 70,
            "cnp_ignored": 1,
            "cnp_sent": 80,
            "ecn_marked": 90,
        },
    ),
    "irdma_gen3.hw_counters": (
        "irdma",
        {
            "rnr_nak_retry": 5,
            "packet_seq_err": 6,
            "implied_nak_seq_err": 7,
            "timeouts": 8,
            "out_of_sequence": 9,
            "icrc_errors": 10,
            "retransmits": 11,
            "rcv_errors": 1,
        },
    ),
    "efa.hw_counters": (
        "efa",
        {
            "retransmits": 6,
            "timeouts": 8,
            "retry_exceeded": 9,
            "slow_restarts": 10,
            "rcv_discards": 5,
            "remote_errors": 3,
            "rdma_tx_bytes": 111111,
        },
    ),
    "rxe.hw_counters": (
        "rxe",
        {
            "rdma_tx_packets": 1203,
            "rdma_rx_packets": 1199,
            "duplicate_requests": 2,
            "out_of_sequence": 3,
            "packet_seq_err": 4,
            "retransmits": 5,
            "link_downed": 1,
        },
    ),
}

ETHTOOL = {
    "mlx5_core.ethtool": {
        "link_downed": 5,
        "crc_errors": 3,
        "symbol_errors": 386,
        "fec_corrected_bits": 17750739,
        "length_errors": 3,
        "out_of_buffer": 17,
        "pfc_rx": 14,
        "pfc_tx": 15234,
        "pause_tx": 0,
        "pause_tx_time": 88,
        "pcie_tx_recoveries": 2,
        "module_faults": 1,
        "rx_packets": 15005729,
        "tx_bytes": 865069260,
        "rdma_rx_packets": 1000,
        "rdma_tx_bytes": 4096000,
    },
    "bnxt_en.ethtool": {
        "link_downed": 6,
        "crc_errors": 4,
        "length_errors": 6,
        "pause_rx": 10,
        "pfc_tx": 11,
        "pfc_rx": 12,
        "pause_storms": 3,
        "symbol_errors": 13,
        "fec_corrected_bits": 14000,
        "fec_corrected": 900,
        "fec_uncorrectable": 2,
        "rcv_discards": 7,
        "tx_errors": 8,
        "rx_packets": 70000,
        "tx_packets": 60000,
        "rx_bytes": 7000000,
    },
    "ice.ethtool": {
        "rx_bytes": 5000,
        "rx_packets": 51,
        "tx_packets": 70,
        "pause_rx": 3,
        "pause_tx": 3,
        "pfc_rx": 27,
        "pfc_tx": 15,
        "xmit_discards": 4,
        "length_errors": 4,
        "rcv_discards": 8,
        "crc_errors": 9,
        "symbol_errors": 10,
        "mac_local_faults": 11,
        "mac_remote_faults": 12,
    },
    "ena.ethtool": {
        "tx_timeouts": 1,
        "resets": 2,
        "allowance_exceeded": 120,
        "rx_packets": 21,
        "tx_bytes": 3000,
        "tx_errors": 3,
        "out_of_buffer": 4,
        "rcv_errors": 5,
    },
    "virtio_net.ethtool": {
        "rx_packets": 30,
        "rx_bytes": 100,
        "tx_bytes": 200,
        "rcv_discards": 3,
        "tx_timeouts": 1,
    },
    "virtio_net_new.ethtool": {"rcv_discards": 0, "tx_timeouts": 0},
}


def asserted(found, expected):
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("name", HW)
def test_hw_counters_by_driver(name):
    driver, expected = HW[name]
    table = recognise(fixture(name))
    assert table is not None
    assert table.driver == driver
    values, shapes, skipped = ib.parse(files(name), table)
    asserted(values, expected)
    assert skipped == {}
    # Q counters of mlx5 are 32 bits wide, everything else here is 64.
    assert bool(shapes) == (driver == "mlx5")
    assert set(shapes.values()) <= {Shape(32)}
    assert "ecn_marked" not in shapes


@pytest.mark.parametrize("name", ETHTOOL)
def test_ethtool_statistics_by_driver(name):
    numbers = fixture(name)
    driver = name.removesuffix(".ethtool").removesuffix("_new")
    picked = ethdriver.pick(
        ethdriver.strings(gstrings(numbers), len(numbers)), ETHTOOL_TABLES[driver]
    )
    values, shapes = ethdriver.values(memoryview(gstats(list(numbers.values()))), picked)
    asserted(values, ETHTOOL[name])
    # What a driver counts elsewhere than at the port (rings, channels) is not counted again.
    assert set(shapes) <= {
        "link_downed",
        "out_of_buffer",
        "pcie_rx_recoveries",
        "pcie_tx_recoveries",
    }


def test_port_counters_are_narrow_and_saturate():
    values, shapes, skipped = ib.parse(files("sick.counters"), IB_PORT)
    ended = ("symbol_error", "link_downed", "local_link_integrity_errors", "port_xmit_wait")
    assert skipped.keys() == set(ended), "what stands at its end says so"
    assert "end, 15: it counts no more" in skipped["local_link_integrity_errors"]
    asserted(
        values,
        {
            "symbol_errors": 65535,
            "link_downed": 255,
            "local_link_integrity_errors": 15,
            "buffer_overrun_errors": 3,
            "rcv_errors": 4120,
            "xmit_wait": 4294967295,
            "tx_bytes": 4 * 123456,
            "rx_bytes": 4 * 654321,
        },
    )
    assert shapes["link_downed"] == Shape(8, saturates=True)
    assert shapes["local_link_integrity_errors"] == Shape(4, saturates=True)
    assert "tx_bytes" not in shapes


@pytest.mark.parametrize("name", ["mlx5.counters", "mlx4.counters"])
def test_captured_port_counters(name):
    numbers = fixture(name)
    values, _, skipped = ib.parse(files(name), IB_PORT)
    assert not skipped
    assert values["rx_bytes"] == 4 * numbers["port_rcv_data"]
    assert values["tx_packets"] == numbers["port_xmit_packets"]
    assert values["link_downed"] == 0


def test_a_counter_wider_than_the_table_says_is_taken_as_wide():
    _, shapes, _ = ib.parse({"link_downed": b"256\n", "symbol_error": b"9\n"}, IB_PORT)
    assert "link_downed" not in shapes
    assert shapes["symbol_errors"].width == 16


def test_a_sum_without_a_part_is_skipped():
    table = Table("x", "", (Row("a", "crc_errors"), Row("b", "crc_errors"), Row("c", "tx_errors")))
    values, _, skipped = ib.parse({"a": b"5", "b": b"N/A (no PMA)\n", "c": b"1"}, table)
    assert values == {"tx_errors": 1}
    assert skipped == {"b": "no number: b'N/A (no PMA)'"}


def test_a_data_counter_stuck_at_32_bits_is_skipped():
    values, _, skipped = ib.parse({"port_xmit_data": b"4294967295\n"}, IB_PORT)
    assert values == {}
    assert "stuck" in skipped["port_xmit_data"]


def test_each_fixture_is_recognised_as_its_own_driver_only():
    for path in FIXTURES.glob("*.hw_counters"):
        known = {table.driver: table.known(fixture(path.name)) for table in RDMA_TABLES}
        best = max(known, key=known.get)
        assert path.name.startswith(best)
        assert sorted(known.values())[-2] <= known[best] // 2


def test_names_of_no_known_driver():
    assert recognise(["foo", "bar", "link_downed"]) is None


def test_a_table_must_be_readable_exactly():
    with pytest.raises(ValueError, match="vocabulary"):
        Table("x", "", (Row("a", "no_such_counter"),))
    with pytest.raises(ValueError, match="not 64 bits"):
        Table("x", "", (Row("a", "crc_errors", Shape(32)), Row("b", "crc_errors")))
    with pytest.raises(ValueError, match="not 64 bits"):
        Table("x", "", (Row("rx[i]_a", "crc_errors", Shape(32)),))


def test_every_table_names_its_source_and_no_name_twice():
    for table in (*RDMA_TABLES, *ETHTOOL_TABLES.values(), IB_PORT, ETH_STANDARD, LINK_STATS):
        assert "/" in table.source
        natives = [row.native for row in table.rows]
        assert len(set(natives)) == len(natives)
        for row in table.rows:
            sample = row.native.replace("[i]", "12")
            assert table.row(sample) == row
            assert table.row(sample + "x") != row


def test_values_that_are_no_counts():
    with pytest.raises(CounterError, match="64-bit"):
        LINK_STATS.canonical({"rx_errors": -1})
    with pytest.raises(CounterError, match="64-bit"):
        LINK_STATS.canonical({"rx_errors": 1 << 64})


def test_a_mapped_name_that_comes_twice_is_refused():
    with pytest.raises(CounterError, match="twice"):
        ethdriver.pick(["tx_timeout", "tx_timeout"], ETHTOOL_TABLES["ena"])


def test_the_doc_has_every_counter_as_it_is():
    doc = (Path(__file__).parents[4] / "docs/reference/counters.md").read_text()
    rows = [
        line for line in doc.splitlines() if re.match(r"\| `\w+` \| (hard|soft|cong|info)", line)
    ]
    assert rows == [f"| `{m.name}` | {m.cls} | {m.unit} | {m.text} |" for m in COUNTERS.values()]
    for table in (*RDMA_TABLES, *ETHTOOL_TABLES.values()):
        assert f"`{table.driver}`" in doc
