"""The daemon reads the NICs' counters: a real device whose errors rise, one that is away.

A VXLAN device without a route to its remote counts `tx_carrier_errors` for what is sent on it,
while its carrier is up: a device of any kernel that counts errors of its own on demand.
"""

import socket
import threading
import time

import pytest
from test_daemon_links import SLOW_S, ask, link, state, weights

from lab.cluster import wait_until
from lab.network import netns

DEVICE = "bad9"


def links(node):
    return [
        *({"netdev": f"rail{r}", "rail": r, "address": node.address(r)} for r in (0, 1)),
        {"netdev": DEVICE, "rail": 9},
    ]


def rows(node, kind):
    return [r for r in ask(node, "timeline", kind=kind) if r["link"] == DEVICE]


def evidence(node, detector):
    return [e for e in ask(node, "explain", link=DEVICE)["evidence"] if e["detector"] == detector]


def module_of(node):
    sources = ask(node, "explain", link=DEVICE)["nic"]["sources"]
    return next(s["reason"] for s in sources if s["source"] == "module")


@pytest.fixture
def node(cluster):
    lab = cluster(hosts=2, rails=2)
    node = lab.nodes[0]
    node.run(["ip", "link", "add", DEVICE, "type", "vxlan", "id", "9", "dstport", "4789",
              "remote", "192.0.2.9"])  # fmt: skip
    node.run(["ip", "link", "set", DEVICE, "up"])
    node.start_daemon(
        links=links(node), hold={"hold_down_s": 0.3, "probation_s": 0.3}, predict={"window_s": 2}
    )
    wait_until(lambda: state(node, DEVICE) == "up", SLOW_S, "it is up")
    wait_until(lambda: weights(node).get(DEVICE) == 1000, SLOW_S, "it carries")
    return node


class Sender:
    """Frames that cannot be sent, about 300 a second, until the block ends."""

    def __init__(self, node):
        self.node, self.stop = node, threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=netns.run_in, args=(self.node.ns, self.send))
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(30)

    def send(self):
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
            out.bind((DEVICE, 0x88B5))
            while not self.stop.is_set():
                out.send(b"\x02" + bytes(11) + b"\x88\xb5" + bytes(60))
                time.sleep(0.003)


@pytest.mark.nightly
def test_errors_that_rise_halve_the_weight_and_are_told_everywhere(node):
    wait_until(lambda: link(node, DEVICE)["counters"] == "read", SLOW_S, "its counters are read")
    assert link(node, DEVICE)["findings"] == []
    assert [e["says"] for e in evidence(node, "counters")] == ["no rule holds"]
    with Sender(node):
        wait_until(lambda: weights(node)[DEVICE] == 500, SLOW_S, "half of its weight is gone")
        assert state(node, DEVICE) == "degraded"
        assert weights(node) == {"rail0": 1000, "rail1": 1000, DEVICE: 500}
        said = ask(node, "explain", link=DEVICE)
        assert said["rule"]["name"] == "counters"
        assert "carrier_errors" in said["reason"]
        (found,) = evidence(node, "counters")
        assert found["against"]
        assert found["age_s"] < SLOW_S
        assert "soft, 5 in 60 s, counted" in found["says"]
        wait_until(lambda: rows(node, "finding"), SLOW_S, "it is on the timeline")
        (row,) = rows(node, "finding")
        assert row["data"]["counter"] == "carrier_errors"
        assert row["data"]["value"] > row["data"]["threshold"] == 5
        wait_until(
            lambda: (
                f'fabricd_link_errors_total{{class="soft",link="{DEVICE}",rail="9"}}'
                in node.fetch("http://127.0.0.1:19200/metrics")
            ),
            SLOW_S,
            "and in the metrics",
        )
        sources = {s["source"]: s for s in said["nic"]["sources"]}
        assert sources["link_stats"]["on"]
        for name in ("ethtool_fec", "pci", "devlink", "verbs", "module"):
            assert not sources[name]["on"]
            assert sources[name]["reason"]
        wait_until(
            lambda: module_of(node) == "the driver gives no module memory",
            SLOW_S, "optics say why they are off",
        )  # fmt: skip
        # The kill switch: measured, shown, and the weight is back.
        ask(node, "detector", name="counters", on=False, seconds=600, reason="test")
        wait_until(lambda: weights(node)[DEVICE] == 1000, SLOW_S, "the switch gives it back")
        assert evidence(node, "counters")[0]["off"]
    ask(node, "detector", name="counters", on=True)
    wait_until(lambda: weights(node)[DEVICE] == 500, SLOW_S, "it is judged again")


def test_a_device_that_goes_is_no_error_and_the_forecast_runs_beside(node):
    file = node.state_dir / "forecast.json"
    wait_until(file.exists, SLOW_S, "a window was judged")
    wait_until(lambda: link(node, "rail0")["risk"] == 0, SLOW_S, "and told")
    node.run(["ip", "link", "del", DEVICE])
    wait_until(
        lambda: link(node, DEVICE)["counters"] == "no such device",
        SLOW_S,
        "it says that it is gone",
    )
    assert link(node, "rail0")["counters"] == "read"
    assert ask(node, "status")["counters"] == {"rail0": "", "rail1": "", DEVICE: "no such device"}
    assert link(node, DEVICE)["findings"] == []
    pid = node.kill_daemon()
    node.daemon.wait_restarted(pid, SLOW_S)
    wait_until(lambda: (found := link(node, "rail0")) and found["risk"] == 0, SLOW_S, "as before")
