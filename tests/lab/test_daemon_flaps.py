"""Flap counts are exact: against the kernel, the ground truth, and over kill -9."""

import time

import pytest

from fabricd.cli import client
from lab.cluster import wait_until
from lab.faults.flap import Flap

SLOW_S = 30.0


def ask(node, op, **request):
    return client.request(node.run_dir / "ctl.sock", {"op": op, **request})


def answers(node):
    try:
        return bool(ask(node, "status")["prober"]["up"])
    except client.DaemonError:
        return False


def lab_with_one_watched_host(make):
    lab = make(hosts=2, rails=2)
    lab.start_daemons(hold={"hold_down_s": 0.3, "probation_s": 0.5})
    wait_until(lambda: all(answers(n) for n in lab.nodes), SLOW_S, "daemons and probers")
    return lab, lab.nodes[0]


def flap_rows(node):
    found = ask(node, "timeline", kind="flap", link="rail1", limit=100_000)
    return sum(row["count"] for row in found)


def metric(node):
    text = node.fetch("http://127.0.0.1:19200/metrics")
    line = next(
        x for x in text.splitlines() if x.startswith('fabricd_link_flaps_total{link="rail1')
    )
    return float(line.split()[-1])


def check(lab, node, kernel_before, expected):
    """Timeline, metric, kernel and ground truth say the same number."""
    wait_until(lambda: flap_rows(node) >= expected, SLOW_S, f"{expected} flaps on the timeline")
    wait_until(lambda: metric(node) >= expected, SLOW_S, "the metric has them")
    time.sleep(1.5)  # what is counted twice would come now
    truth = sum(row["fault"] == "flap" and row["phase"] == "down" for row in lab.truth())
    kernel = node.carrier_down_count(1) - kernel_before
    assert (flap_rows(node), metric(node), kernel) == (truth, truth, truth)
    assert truth == expected


@pytest.mark.parametrize(
    ("period_ms", "count"),
    [
        (2, 100),
        (20, 100),
        pytest.param(200, 30, marks=pytest.mark.nightly),
        pytest.param(600, 30, marks=pytest.mark.nightly),
    ],
)
def test_flaps_are_counted_exactly(cluster, period_ms, count):
    lab, node = lab_with_one_watched_host(cluster)
    before = node.carrier_down_count(1)
    with lab.inject(Flap("h0:rail1", period_ms=period_ms, count=count)) as fault:
        fault.wait()
    check(lab, node, before, count)


@pytest.mark.parametrize(
    "who",
    [
        pytest.param("daemon", marks=pytest.mark.nightly),
        pytest.param("prober", marks=pytest.mark.nightly),
        "both",
    ],
)
def test_flaps_stay_exact_over_kill_9(cluster, who):
    lab, node = lab_with_one_watched_host(cluster)
    before = node.carrier_down_count(1)
    with lab.inject(Flap("h0:rail1", period_ms=40, count=150)) as fault:
        for _ in range(3):
            time.sleep(0.9)
            if who in ("daemon", "both"):
                old = node.kill_daemon()
            if who in ("prober", "both"):
                node.prober.wait_restarted(node.kill_prober(), 10)
            if who in ("daemon", "both"):
                node.daemon.wait_restarted(old, 10)
        fault.wait()
    wait_until(lambda: answers(node), SLOW_S, "daemon and prober are back")
    check(lab, node, before, 150)
    links = {link["netdev"]: link for link in ask(node, "links")}
    assert links["rail1"]["flaps"] == 150
    assert links["rail1"]["penalty"] > 1000, "the penalty was not forgotten"
    rows = ask(node, "timeline", limit=100_000)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1)), "no row is missing"
