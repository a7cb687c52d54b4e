"""Traffic follows the weights of the steer page, between nothing and full. Real processes and
packets; the page is written here, by the daemon's own writer, as no fault asks for a quarter.

The messages leave room on the rails: where all are full, each carries what it can."""

import threading
import time
from contextlib import contextmanager

import pytest
from test_failover import PATIENCE_S, assert_progress, job, pages, rails_of

from fabricd.steer.page import WEIGHT_FULL, SteerPage
from fabricd.steer.policy import Plan, RailEntry
from lab.cluster import wait_until
from telemetry.events import LinkState

STEER = 1


class Steering:
    """The steer page of one host, its heartbeat included."""

    def __init__(self, node):
        self.plan = Plan(())
        self._page = SteerPage(node.run_dir / "steer", incarnation=1)
        self._page.open(time.monotonic_ns())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()

    def _beat(self):
        while not self._ended.wait(0.1):
            self._page.publish(self.plan, STEER, time.monotonic_ns())

    def weigh(self, **weights):
        """``rail1=250``: all that are not named have the full weight."""
        self.plan = Plan(
            tuple(
                RailEntry(
                    rail, LinkState.UP if weight == WEIGHT_FULL else LinkState.DEGRADED, weight
                )
                for rail, weight in weights.items()
            )
        )

    def end(self):
        self._ended.set()
        self._thread.join()
        self._page.close()


@contextmanager
def steering(node):
    made = Steering(node)
    try:
        yield made
    finally:
        made.end()


def share(node, rail, amount=8_000_000):
    """What part of the next ``amount`` bytes that leave the host leaves by this rail."""
    before = {name: r.tx_bytes for name, r in rails_of(node).items()}

    def sent():
        return {name: r.tx_bytes - before[name] for name, r in rails_of(node).items()}

    wait_until(lambda: sum(sent().values()) > amount, PATIENCE_S, "traffic")
    now = sent()
    return now[rail] / sum(now.values())


def settles(node, rail, low, high):
    """That part comes to lie between the two, and stays there."""
    wait_until(lambda: low < share(node, rail) < high, PATIENCE_S, f"{rail} at {low} to {high}")
    longer = share(node, rail, 40_000_000)
    assert low < longer < high, longer


@pytest.mark.parametrize("striped", [True, False], ids=["striped", "at-home"])
def test_traffic_follows_a_weight_of_a_quarter_and_returns(cluster, striped):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    node = lab.nodes[0]
    env = {"FABRIC_STRIPE": "1"} if striped else {}
    with (
        steering(node) as steer,
        job(lab, "p2p", size=65536, env=env, channels=1 if striped else 2) as perf,
    ):
        steer.weigh(rail0=1000, rail1=1000)
        wait_until(lambda: all(p.steer_present for p in pages(node)), PATIENCE_S, "the page read")
        settles(node, "rail1", 0.4, 0.6)
        steer.weigh(rail0=1000, rail1=250)
        settles(node, "rail1", 0.1, 0.3)  # 1 of 5
        steer.weigh(rail0=1000, rail1=1000)
        settles(node, "rail1", 0.4, 0.6)
        assert_progress(perf)
