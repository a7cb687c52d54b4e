"""Slow, congested and broken rails of a real cluster are told apart."""

import subprocess

import pytest

from fabricd.cli import client
from lab.cluster import wait_until
from lab.faults.catalog import Loss
from telemetry.timeline import Timeline

SLOW_S = 60.0
HOSTS, RAILS = 3, 3


def link(node, netdev):
    links = client.request(node.run_dir / "ctl.sock", {"op": "links"})
    return next(x for x in links if x["netdev"] == netdev)


def conditions(node):
    try:
        links = client.request(node.run_dir / "ctl.sock", {"op": "links"})
    except client.DaemonError:  # not started yet
        return {}
    return {x["netdev"]: x["condition"] for x in links}


def rows(node, kind):
    with Timeline(node.state_dir / "timeline.db", host=node.name, read_only=True) as timeline:
        return timeline.query(kind=kind, limit=None)


@pytest.fixture(scope="module")
def lab(module_cluster):
    cluster = module_cluster(hosts=HOSTS, rails=RAILS)
    cluster.start_daemons(hold={"hold_down_s": 0.3, "probation_s": 0.3})
    return cluster


@pytest.fixture
def calm(lab):
    """The lab, with all base delays learned and nothing wrong."""
    wait_until(
        lambda: all(set(conditions(node).values()) == {"fine"} for node in lab.nodes),
        SLOW_S, "all links are fine",
    )  # fmt: skip
    return lab


def flood(receiver, senders, seconds=40):
    """TCP from all senders to one rail: the programs."""
    programs = []
    for number, sender in enumerate(senders):
        port = 5300 + number
        server = ["iperf3", "-s", "-1", "-p", str(port), "-B", receiver.address(1)]
        programs.append(receiver.popen(server, stdout=subprocess.DEVNULL))
        wait_until(lambda port=port: listens(receiver, port), 10, "a server listens")
        words = ["iperf3", "-c", receiver.address(1), "-B", sender.address(1), "-p", str(port)]
        words += ["-P", "2", "-t", str(seconds)]
        programs.append(sender.popen(words, stdout=subprocess.DEVNULL))
    return programs


def listens(node, port):
    return str(port) in node.run(["ss", "-ltnH", f"sport = :{port}"]).stdout


@pytest.mark.nightly
def test_flooded_by_others_is_congested_with_its_way_and_keeps_carrying(calm):
    """Two neighbours fill the leaf's port to h0:rail1; nothing of it is the link's fault."""
    victim, *others = calm.nodes
    began = {row.seq for row in rows(victim, "link_state")}
    programs = flood(victim, others)
    try:
        wait_until(lambda: link(victim, "rail1")["condition"] == "congested", 30, "congested")
        wait_until(lambda: link(victim, "rail1")["delay"]["queue_rx_p50_us"] > 500, 10, "a queue")
        delay = link(victim, "rail1")["delay"]
        assert delay["queue_rx_p50_us"] > 3 * delay["queue_tx_p50_us"]
        assert conditions(victim) == {"rail0": "fine", "rail1": "congested", "rail2": "fine"}
    finally:
        for program in programs:
            program.kill()
            program.wait()
    told = [r for r in rows(victim, "condition") if r.data["condition"] == "congested"]
    assert [r.link for r in told] == ["rail1"]
    assert told[0].data["direction"] == "rx"
    new = [row for row in rows(victim, "link_state") if row.seq not in began]
    assert not [row for row in new if row.to_state.name in ("DOWN", "DEGRADED")]
    wait_until(lambda: link(victim, "rail1")["condition"] == "fine", SLOW_S, "fine again")


def test_a_rail_of_less_rate_is_slow(calm):
    """Before its stamps, as PCIe or CPU would be: probes see no queue, messages take longer."""
    node = calm.nodes[0]
    shape = [
        "tc",
        "qdisc",
        "change",
        "dev",
        "rail1",
        "root",
        "handle",
        "1:",
        "tbf",
        "burst",
        "65536",
    ]
    shape += ["latency", "10ms", "rate"]
    job = calm.start_perf("ring", "--duration", "180", "--channels", str(RAILS), "--size", "8M")
    try:
        job.wait_started()
        node.run([*shape, "100mbit"])
        wait_until(lambda: link(node, "rail1")["condition"] == "slow", 120, "slow")
        assert {k: v for k, v in conditions(node).items() if k != "rail1"} == {
            "rail0": "fine", "rail2": "fine",
        }  # fmt: skip
        assert link(node, "rail1")["state"] == "up"
    finally:
        node.run([*shape, "500mbit"])
        job.kill()
    told = [r for r in rows(node, "condition") if r.data["condition"] == "slow"]
    assert [r.link for r in told] == ["rail1"]
    assert "other rails of the same job" in told[0].reason


def test_a_rail_that_loses_is_broken(calm):
    node = calm.nodes[0]
    with calm.inject(Loss("h0:rail1", 8.0, "rx")):
        wait_until(lambda: link(node, "rail1")["condition"] == "broken", SLOW_S, "broken")
        assert link(node, "rail1")["state"] == "degraded"
        assert {k: v for k, v in conditions(node).items() if k != "rail1"} == {
            "rail0": "fine", "rail2": "fine",
        }  # fmt: skip


def test_with_fabric_time_the_base_delays_are_one_way(calm):
    """By the clock service's document; the ways of the lab are alike, so each is half."""
    node = calm.nodes[0]
    assert link(node, "rail0")["delay"]["base_tx_us"] is None
    for each in calm.nodes:
        each.start_clock(restart=False)
    wait_until(
        lambda: all(link(node, x)["delay"]["base_tx_us"] is not None for x in conditions(node)),
        SLOW_S, "one-way delays of all links",
    )  # fmt: skip
    for netdev in conditions(node):
        delay = link(node, netdev)["delay"]
        # Each is of the path in the middle, and not of the same.
        assert abs(delay["base_tx_us"] - delay["base_rx_us"]) < 2 * delay["bound_us"] + 10
        assert 0 < delay["bound_us"] <= 50

    def halved() -> bool:
        delays = [link(node, netdev)["delay"] for netdev in conditions(node)]
        return all(
            each["base_tx_us"] is not None and 0.3 < each["base_tx_us"] / each["base_rtt_us"] < 0.7
            for each in delays
        )

    # The clocks' first lines may be off by more than half of so short a round trip.
    wait_until(halved, SLOW_S, "each way half of the round trip")
    paths = client.request(node.run_dir / "ctl.sock", {"op": "explain", "link": "rail0"})
    assert paths["delay"]["base_rx_us"] is not None
    for each in calm.nodes:
        each.clock.stop()
    wait_until(
        lambda: link(node, "rail0")["delay"]["base_tx_us"] is None,
        SLOW_S,
        "the clock service is gone",
    )
