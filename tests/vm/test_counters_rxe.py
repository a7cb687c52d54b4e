"""Soft-RoCE's counters after traffic, by ``rdma statistic`` and from sysfs: real kernel answers."""

import json
import time

import pytest

from lab.vm import pair

pytestmark = pytest.mark.nightly  # machines of its own: minutes for their boot alone

PYTHON = "/opt/fabricd/bin/python3"
PATIENCE_S = 240  # a program's start takes 20 times longer under emulation

# Prints, a second apart by the sources' clock: statuses, values and increases of rail0 and rxe0.
READER = """
import json, sys, time
from telemetry.counters.ib import HwCounters, PortCounters
from telemetry.counters.rdma import RdmaStatistic
from telemetry.counters.sweep import Sweep

now = time.monotonic_ns()
out = {}
for kind in (RdmaStatistic, HwCounters, PortCounters):
    source = kind.open("rxe0", 1)
    sample = source.read(now)
    status = source.status
    out[status.source] = {"on": status.on, "reason": status.reason, "period": source.period_ns}
    if sample is not None:
        out[status.source] |= {"values": dict(sample.values), "driver": sample.info["driver"]}
sweep = Sweep.open({"rail0": ("rxe0", 1)})
reading = sweep.read(now)["rail0"]
out["sweep"] = {status.source: status.on for status in reading.statuses}
print(json.dumps(out))
"""


def counters(vm):
    return json.loads(vm.run(PYTHON, "-", stdin=READER, timeout=PATIENCE_S).check().out)


def pingpong(rdma, rail, iterations):
    argv = ["ibv_rc_pingpong", "-d", f"rxe{rail}", "-g", "1", "-n", str(iterations)]
    argv += ["-p", str(18615 + rail)]
    server = rdma.beta.begin(*argv, timeout=PATIENCE_S)
    listening = f"ss -Hltn sport = :{18615 + rail} | grep -q ."
    end = time.monotonic() + PATIENCE_S
    while rdma.beta.run("sh", "-c", listening).rc != 0:
        assert time.monotonic() < end, "the server listens"
        time.sleep(0.1)
    rdma.alpha.run(*argv, pair.address(1, rail), timeout=PATIENCE_S).check()
    server.wait().check()


@pytest.fixture(scope="module")
def readings(rdma):
    """Before and after 200 messages each way; each reading starts a Python."""
    before = counters(rdma.alpha)
    pingpong(rdma, 0, 200)
    return before, counters(rdma.alpha)


@pytest.mark.parametrize("source", ["rdma_stat", "ib_hw"])
def test_counters_grow_by_the_traffic(readings, source):
    before, after = (reading[source] for reading in readings)
    assert before["on"], before["reason"]
    assert before["driver"] == "rxe"
    grown = {name: after["values"][name] - value for name, value in before["values"].items()}
    # 200 messages of 4096 bytes each way in packets of 1024, and acknowledgements.
    assert 800 <= grown["rdma_tx_packets"] <= 4000
    assert 800 <= grown["rdma_rx_packets"] <= 4000
    assert grown["link_downed"] == grown["retry_exceeded"] == 0


def test_both_ways_show_the_same(readings):
    _, found = readings
    assert found["rdma_stat"]["values"].keys() == found["ib_hw"]["values"].keys()
    quiet = {"link_downed", "retry_exceeded", "out_of_sequence", "tx_errors"}
    for name in quiet:
        assert found["rdma_stat"]["values"][name] == found["ib_hw"]["values"][name]


def test_a_sweep_takes_netlink_and_leaves_sysfs_alone(readings):
    found = readings[1]["sweep"]
    assert found["rdma_stat"]
    assert "ib_hw" not in found
    assert found["link_stats"]
    assert found["ethtool_driver"]  # virtio_net


def test_an_unplugged_cable_counts_as_link_downed(rdma, readings):
    before = readings[1]["rdma_stat"]["values"]["link_downed"]
    end = time.monotonic() + PATIENCE_S
    try:
        rdma.set_cable(0, up=False)
        while counters(rdma.alpha)["rdma_stat"]["values"]["link_downed"] != before + 1:
            assert time.monotonic() < end, "link_downed counts the loss"
    finally:
        rdma.set_cable(0, up=True)
