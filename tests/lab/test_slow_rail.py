"""A rail much slower than the others carries nothing until it is quick again: real packets."""

from test_failover import PATIENCE_S, assert_progress, job
from test_weights import share

from bench.plugin.slow import SLOW_RAIL, slower
from lab.cluster import wait_until


def test_a_rail_at_a_quarter_is_left_and_taken_back(cluster):
    lab = cluster(hosts=2, rails=4, rate="200mbit")
    node = lab.nodes[0]
    rail = f"rail{SLOW_RAIL}"
    with job(lab, env={"FABRIC_ADAPT": "1"}) as perf:
        wait_until(lambda: share(node, rail) > 0.15, PATIENCE_S, "all four rails used")
        with slower(lab.topology, 4):
            wait_until(lambda: share(node, rail) < 0.01, PATIENCE_S, "the slow rail left")
            assert_progress(perf)
        # Quick again, which nobody can see; the rail's own MTU changes with it.
        node.run(["ip", "link", "set", rail, "mtu", "1400"])
        wait_until(lambda: share(node, rail) > 0.15, PATIENCE_S, "the rail taken back")
        assert_progress(perf)
