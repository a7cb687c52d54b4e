"""Where a job's traffic goes: striping, standby rails, addresses that change, paths that came back
and pass small packets only. Real processes and packets, no daemon."""

import time

import pytest
from test_failover import (
    PATIENCE_S,
    assert_given_up,
    assert_progress,
    bytes_done,
    events_of,
    job,
    rails_of,
    returned,
)

from lab.cluster import wait_until
from lab.faults.catalog import BlackHole, Carrier
from telemetry.statspage import PathDownReason, StatsEventKind

TOLD = (StatsEventKind.PATH_DOWN, StatsEventKind.PATH_UP, StatsEventKind.RAIL_TOLD_DOWN)


def sent(node, rail):
    return rails_of(node)[rail].tx_bytes


def given_up(lab, since_ns):
    return [
        event
        for event in events_of(lab.nodes[0], StatsEventKind.PATH_DOWN)
        if event.time_ns >= since_ns
    ]


def test_one_comm_striped_over_all_rails_loses_one_and_gets_it_back(cluster):
    lab = cluster(hosts=2, rails=3, rate="200mbit")
    with job(lab, "p2p", env={"FABRIC_STRIPE": "1"}, channels=1) as perf:
        node = lab.nodes[0]
        assert_progress(perf)
        rails = [sent(node, f"rail{i}") for i in range(3)]
        assert min(rails) > max(rails) / 3, rails
        since = time.monotonic_ns()
        with lab.inject(Carrier("h0:rail1")):
            assert_given_up(lab, since)
            assert_progress(perf)
        healthy = time.monotonic_ns()
        wait_until(lambda: returned(lab, healthy), PATIENCE_S, "the rail's return")
        before = sent(node, "rail1")
        wait_until(lambda: sent(node, "rail1") > before + 500_000, PATIENCE_S, "traffic on it")


def test_a_standby_rail_carries_only_while_its_rail_is_dead(cluster):
    lab = cluster(hosts=2, rails=3, rate="200mbit")
    with job(lab, env={"FABRIC_STANDBY": "rail0/rail2"}, channels=2) as perf:
        node = lab.nodes[0]
        assert [d["name"] for d in perf.rows(0)[0]["devices"]] == ["rail0", "rail1"]
        assert_progress(perf)
        assert sent(node, "rail2") == 0
        with lab.inject(Carrier("h0:rail0")):
            wait_until(lambda: sent(node, "rail2") > 500_000, PATIENCE_S, "the standby's traffic")
            assert_progress(perf)
        since = time.monotonic_ns()
        wait_until(lambda: returned(lab, since), PATIENCE_S, "the rail's return")

        def standby_rests() -> bool:  # while 2 MB pass at home
            idle, before = sent(node, "rail2"), sent(node, "rail0")
            wait_until(lambda: sent(node, "rail0") > before + 2_000_000, PATIENCE_S, "traffic home")
            return sent(node, "rail2") == idle

        wait_until(standby_rests, PATIENCE_S, "rest on the standby")


def test_a_rail_gets_another_address_and_the_peers_find_it(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    with job(lab) as perf:
        node = lab.nodes[1]
        since = time.monotonic_ns()
        node.run(["ip", "addr", "del", f"{node.address(0)}/24", "dev", "rail0"])
        assert_given_up(lab, since)
        assert_progress(perf)
        told = StatsEventKind.RAIL_TOLD_DOWN
        wait_until(lambda: events_of(lab.nodes[0], told), PATIENCE_S, "the peer's word")
        new = node.address(0).rsplit(".", 1)[0] + ".77"
        healthy = time.monotonic_ns()
        node.run(["ip", "addr", "add", f"{new}/24", "dev", "rail0"])

        def there():
            used = node.run(["ss", "-Htn", "state", "established"]).stdout
            return new in used and returned(lab, healthy)

        wait_until(there, PATIENCE_S, "connections of the new address")
        before = rails_of(node)["rail0"].rx_bytes
        wait_until(
            lambda: rails_of(node)["rail0"].rx_bytes > before + 500_000, PATIENCE_S, "payload there"
        )


@pytest.mark.parametrize("rails", [1, 2])
def test_all_rails_of_a_host_get_other_addresses_at_once(cluster, rails):
    lab = cluster(hosts=2, rails=rails, rate="200mbit")
    with job(lab) as perf:
        node = lab.nodes[1]
        assert_progress(perf)
        new = [node.address(rail).rsplit(".", 1)[0] + ".77" for rail in range(rails)]
        for rail in range(rails):
            node.run(["ip", "addr", "del", f"{node.address(rail)}/24", "dev", f"rail{rail}"])
            node.run(["ip", "addr", "add", f"{new[rail]}/24", "dev", f"rail{rail}"])

        def there():
            used = node.run(["ss", "-Htn", "state", "established"]).stdout
            return all(address in used for address in new)

        wait_until(there, PATIENCE_S, "connections of the new addresses")
        assert_progress(perf)
        before = sum(r.rx_bytes for r in rails_of(node).values())
        wait_until(
            lambda: sum(r.rx_bytes for r in rails_of(node).values()) > before + 500_000,
            PATIENCE_S,
            "payload there",
        )


def test_an_address_is_put_back_identically(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    with job(lab) as perf:
        node = lab.nodes[1]
        assert_progress(perf)
        since = time.monotonic_ns()
        node.run(["ip", "addr", "del", f"{node.address(0)}/24", "dev", "rail0"])
        assert_given_up(lab, since)
        healthy = time.monotonic_ns()
        node.run(["ip", "addr", "add", f"{node.address(0)}/24", "dev", "rail0"])
        wait_until(lambda: returned(lab, healthy), PATIENCE_S, "the rail's return")
        before = rails_of(node)["rail0"].rx_bytes
        wait_until(
            lambda: rails_of(node)["rail0"].rx_bytes > before + 500_000, PATIENCE_S, "payload there"
        )
        # And so fast that nobody may have looked meanwhile.
        node.run(["ip", "addr", "del", f"{node.address(0)}/24", "dev", "rail0"])
        node.run(["ip", "addr", "add", f"{node.address(0)}/24", "dev", "rail0"])
        assert_progress(perf)
        before = rails_of(node)["rail0"].rx_bytes
        wait_until(
            lambda: rails_of(node)["rail0"].rx_bytes > before + 500_000, PATIENCE_S, "payload there"
        )


def test_a_path_that_passes_small_packets_only_stays_out(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    port = lab.topology.leaf_port(1, 1)

    def shaper(handle, burst):
        # A new one each time: a bucket made smaller in place keeps what stands in its queue, and if
        # the first of that is too large for it nothing passes any more, small packets neither.
        where = ["-n", port.ns, "qdisc", "replace", "dev", port.ifname, "root", "handle", handle]
        how = ["tbf", "rate", "200mbit", "burst", str(burst), "latency", "10ms"]
        lab.nodes[0].run(["tc", *where, *how])

    with job(lab) as perf:
        since = time.monotonic_ns()
        shaper("2:", 400)  # what is larger than the bucket is dropped
        assert_given_up(lab, since)
        out = time.monotonic_ns()
        # It connects, for that takes small packets, and fails at what it has to deliver.
        try:
            wait_until(lambda: len(given_up(lab, out)) >= 4, PATIENCE_S, "validations that failed")
        except TimeoutError as error:  # seen twice
            told = [(kind.name, events_of(node, kind)) for node in lab.nodes for kind in TOLD]
            links = [node.run(["ss", "-Htinp"]).stdout for node in lab.nodes]
            raise AssertionError(f"{error}; {out=}: {told}\n{''.join(links)}") from None
        assert not returned(lab, out)
        assert_progress(perf)
        healthy = time.monotonic_ns()
        shaper("3:", lab.topology.burst_bytes)
        wait_until(lambda: returned(lab, healthy), PATIENCE_S, "the rail's return")
        assert_progress(perf)


def test_any_rail_that_returns_is_enough(cluster):
    lab = cluster(hosts=2, rails=3, rate="200mbit")
    with job(lab) as perf:
        assert_progress(perf)
        with lab.inject(Carrier("h0:rail0")), lab.inject(Carrier("h0:rail1")):
            with lab.inject(Carrier("h0:rail2")):
                time.sleep(1)
                before = bytes_done(perf)
                time.sleep(1)
                assert bytes_done(perf) == before, "nothing is left that could carry"
            assert_progress(perf)
        assert_progress(perf)


@pytest.mark.nightly
def test_a_comm_on_which_nothing_passes_finds_its_path_dead(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    work = ["--iters", "4", "--size", "64K", "--channels", "1", "--wait", "block"]
    perf = lab.start_perf("p2p", *work, "--linger", "15")
    perf.wait_started(PATIENCE_S)
    node = lab.nodes[0]
    wait_until(lambda: sent(node, "rail0") >= 4 << 16, PATIENCE_S, "the last message")
    time.sleep(2)  # so long that nobody looks often any more
    before = {name: rail.tx_bytes for name, rail in rails_of(node).items()}
    since = time.monotonic_ns()
    with lab.inject(BlackHole("h0:rail0", "both")):
        wait_until(lambda: given_up(lab, since), 10, "the path given up")
        after = {name: rail.tx_bytes for name, rail in rails_of(node).items()}
        assert after == before, "by no message of the job"
    for result in perf.wait(PATIENCE_S):
        assert result.status == 0, perf.log(result.rank).read_text()[-1500:]


@pytest.mark.nightly
def test_a_path_that_stays_slow_is_opened_again_from_another_port(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    node, port = lab.nodes[0], lab.topology.leaf_port(1, 1)

    def data_ports():
        """Of the connections that carry payload on rail 1, on the sender's side."""
        lines = node.run(["ss", "-Htn", "state", "established"]).stdout.splitlines()
        return {line.split()[2] for line in lines if f"{node.address(1)}%" in line}

    with job(lab, "p2p", env={"FABRIC_ADAPT": "1", "FABRIC_STRIPE": "1"}, channels=1) as perf:
        assert_progress(perf)
        before = data_ports()
        where = ["-n", port.ns, "qdisc", "replace", "dev", port.ifname, "root", "handle", "2:"]
        node.run(["tc", *where, "tbf", "rate", "20mbit", "burst", "64k", "latency", "100ms"])

        def opened_again():
            downs = events_of(node, StatsEventKind.PATH_DOWN)
            return any(event.detail == PathDownReason.REHASH for event in downs)

        wait_until(opened_again, PATIENCE_S, "a path opened again")
        wait_until(lambda: data_ports() - before, PATIENCE_S, "another source port")
        assert_progress(perf)
