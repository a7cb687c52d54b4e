"""Configured interfaces that are not there: a sentence, a row, a metric, and the end of it."""

import time

import pytest
from whole_host import LINKS, WholeHost

from fabricd.links.interfaces import GRACE_NS, InterfaceChange, InterfaceWatch, sentence
from fabricd.links.inventory import Inventory, Reading
from fabricd.views import host_check, report
from fabricd.views.explain import explain
from telemetry.events import LinkState

SEC = 10**9
LINK = [("mlx5_99", 3)]


def test_the_sentence_names_what_there_is_the_likest_first():
    names = ["lo", "eth0", "mlx5_9", "mlx5_98", *(f"veth{n}" for n in range(9))]
    text = sentence("mlx5_99", names)
    assert text.startswith("no interface of that name; there are mlx5_9, mlx5_98, ")
    assert text.endswith(" and 6 more")
    assert "lo" not in text.split(", ")
    assert sentence("x", ["lo"]) == "no interface of that name; there are none but lo"
    assert sentence("x", ["lo", "eth0"]) == "no interface of that name; there is eth0"


def test_it_is_told_after_a_while_once_and_again_when_it_comes():
    watch = InterfaceWatch()
    assert watch.tick(LINK, None, 0) == [], "the kernel was not asked yet"
    assert watch.tick(LINK, {"eth0"}, SEC) == []
    assert watch.tick(LINK, {"eth0"}, SEC + GRACE_NS - 1) == []
    text = "no interface of that name; there is eth0"
    assert watch.tick(LINK, {"eth0"}, SEC + GRACE_NS) == [InterfaceChange("mlx5_99", 3, True, text)]
    assert watch.missing == {"mlx5_99": text}
    assert watch.tick(LINK, {"eth0"}, 100 * SEC) == []
    here = InterfaceChange("mlx5_99", 3, False, "the interface is there")
    assert watch.tick(LINK, {"mlx5_99"}, 101 * SEC) == [here]
    assert watch.missing == {}
    assert watch.tick(LINK, {"eth0"}, 102 * SEC) == [], "it begins anew"


def test_a_link_that_the_configuration_drops_is_forgotten():
    watch = InterfaceWatch()
    watch.tick(LINK, set(), 0)
    watch.tick(LINK, set(), GRACE_NS)
    assert watch.tick([], set(), GRACE_NS) == []
    assert watch.missing == {}


@pytest.fixture
async def whole(tmp_path):
    devices = {f"rail{n}": Reading(f"rail{n}", n + 2, True, True, 0, 1) for n in (0, 2)}
    made = WholeHost(tmp_path, links=LINKS, inventory=Inventory(devices, loaded=True))
    missing = made.link("rail1")
    missing.carrier, missing.health.state = None, LinkState.UNKNOWN
    yield made
    made.close()


async def test_a_name_with_a_slip_is_said_everywhere(whole):
    host, now = whole.host, time.monotonic_ns()
    shot = {link.netdev: link.present for link in report.link_snapshots(host)}
    assert shot == {"rail0": True, "rail1": False, "rail2": True}
    links = [(link.netdev, link.rail) for link in host.engine.links]
    host.detectors.interfaces.tick(links, host.planner.devices(), now - GRACE_NS)
    host.probe_tick.watch_probing()
    text = "no interface of that name; there are rail0, rail2"
    (row,) = [row for row in whole.told if row["reason"] == text]
    assert (row["kind"], row["link"]) == ("daemon", "rail1")
    status = report.status(host) | {"config": {"problems": []}}
    assert status["missing_interfaces"] == {"rail1": text}
    assert [x["reason"] for x in status["not_carrying"] if x["netdev"] == "rail1"] == [text]
    verdict = host_check.judge(status, report.links(host))
    assert any(f.level == host_check.Level.WARNING and text in f.text for f in verdict.findings)
    page = explain(host, "rail1", now)
    assert (page["reason"], page["rule"]["name"]) == (text, "no-interface")
