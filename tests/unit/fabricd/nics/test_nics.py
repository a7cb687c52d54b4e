"""NICs, from readings to findings, events and weights; no thread, no clock."""

import io
import json
import time

import pytest
from rich.console import Console
from whole_host import LINKS, WholeHost

from fabricd.cli import show_explain
from fabricd.detect.rules import RULES
from fabricd.nics import memory
from fabricd.nics.monitor import DROP_NS, STALE_NS, Nic
from fabricd.nics.reader import Reading
from fabricd.predict.forecast import Forecast
from fabricd.views.explain import explain
from fabricd.views.report import links as report_links
from fabricd.views.report import snapshot
from telemetry.counters.linkstate import DownReason
from telemetry.counters.tracker import Step
from telemetry.counters.types import Status
from telemetry.metrics import render

S = 10**9
ON = (Status("link_stats", "rail1", on=True),)
FORECAST = Forecast(0.7, named=True, evidence={"light_trend": "light falls"}, left_s=7200.0)
CALM = Forecast(0.1, named=False, evidence={})


class Nics:
    """A whole host whose readings are made here; seconds are counted from now."""

    def __init__(self, whole):
        self.whole, self.host = whole, whole.host
        self.now = time.monotonic_ns()

    def read(self, netdev="rail1", seconds=1.0, **counters):
        inexact, fell = counters.pop("inexact", ""), counters.pop("fell", False)
        self.now += round(seconds * S)
        steps = {n: Step(k, round(seconds * S), inexact, fell) for n, k in counters.items()}
        return self.take(Reading(netdev, "counters", self.now, steps=steps, statuses=ON))

    def take(self, *readings):
        book = self.host.nics
        flaps = self.host.carriers.tracker.totals
        events, changed = book.take(readings, self.host.engine, flaps, self.now)
        self.host.evaluator.report(events, changed=changed)

    def slow(self, netdev="rail1", source="module", gauges=None, **other):
        self.now += S
        self.take(Reading(netdev, "slow", self.now, gauges={source: gauges or {}}, **other))

    def explain(self, netdev="rail1"):
        return explain(self.host, netdev, self.now)

    def rows(self, kind):
        return [row for row in self.whole.told if row["kind"] == kind]


@pytest.fixture
async def nics(tmp_path):
    made = WholeHost(tmp_path, links=LINKS)
    yield Nics(made)
    made.close()


async def test_what_a_counter_shows_that_fell_is_no_hard_fault(nics):
    nics.read(local_link_integrity_errors=3, link_downed=0, fell=True, inexact="reset: fell")
    nics.read(local_link_integrity_errors=0, link_downed=2, fell=True, inexact="reset: fell")
    nics.read(local_link_integrity_errors=0, link_downed=0)
    assert nics.whole.states()["rail1"] == "UP"
    assert nics.host.nics.nics["rail1"].counted["local_link_integrity_errors"] == 3
    assert "reset: fell" in nics.explain()["nic"]["flaps_inexact"]
    nics.read(local_link_integrity_errors=1)
    assert nics.whole.states()["rail1"] == "DOWN", "what it counts from then on is"


async def test_soft_errors_halve_the_weight_and_say_why(nics):
    for _ in range(5):
        nics.read(crc_errors=100)
    assert nics.whole.weights() == {"rail0": 1000, "rail1": 500, "rail2": 1000}
    said = nics.explain()
    assert (said["state"], said["rule"]["name"]) == ("degraded", "counters")
    (found,) = [e for e in said["evidence"] if e["detector"] == "counters"]
    assert "crc_errors 100/s" in found["says"]
    assert "soft, 60 in 60 s, counted" in found["says"]
    assert found["against"]
    assert 0 < found["age_s"] < 10
    (row,) = nics.rows("finding")
    assert row["link"] == "rail1"
    assert row["data"]["counter"] == "crc_errors"
    assert (row["data"]["class"], row["data"]["window_s"]) == ("soft", 60)
    assert row["data"]["value"] >= 300
    for _ in range(400):
        nics.read(crc_errors=0)
    assert [r["data"]["holds"] for r in nics.rows("finding")] == [True, False]
    assert not [e for e in nics.explain()["evidence"] if e["against"]]


async def test_a_hard_one_takes_it_down_and_its_window_ends(nics):
    nics.read(tx_timeouts=1)
    assert nics.whole.weights()["rail1"] == 0
    assert nics.explain()["reason"] == "tx_timeouts"
    nics.read(seconds=61)
    assert [r["data"]["holds"] for r in nics.rows("finding")] == [True, False]
    assert nics.whole.states()["rail1"] == "HOLD"


async def test_congestion_is_told_and_does_nothing(nics):
    for _ in range(20):
        nics.read(cnp_received=5000, pfc_rx=9000)
    assert set(nics.whole.weights().values()) == {1000}
    found = [e for e in nics.explain()["evidence"] if e["detector"] == "counters"]
    assert len(found) == 2
    assert not any(e["against"] for e in found)
    for _ in range(30):  # it comes and goes, and the timeline says so once
        nics.read(seconds=20, cnp_received=0, pfc_rx=0)
        nics.read(cnp_received=50_000, pfc_rx=90_000)
    began = [r for r in nics.rows("finding") if r["data"]["holds"]]
    assert len(began) <= 2 * (1 + 630 // 600)


async def test_what_a_dead_peer_makes_is_no_fault_of_the_link(nics):
    for _ in range(10):
        nics.read(timeouts=500, retry_exceeded=50, out_of_sequence=500)
    assert set(nics.whole.weights().values()) == {1000}
    said = [e for e in nics.explain()["evidence"] if e["detector"] == "counters"]
    assert all("adds to other evidence only" in e["says"] for e in said)
    for _ in range(5):
        nics.read(crc_errors=100, timeouts=500)
    assert nics.whole.weights()["rail1"] == 500
    assert "timeouts" in nics.explain()["reason"]


async def test_errors_of_a_carrier_that_was_away_are_no_evidence(nics):
    link = nics.whole.link("rail1")
    link.carrier = False
    for _ in range(10):
        nics.read(symbol_errors=10**6, mac_local_faults=50)
    link.carrier = True
    nics.read(symbol_errors=10**6)
    assert link.counters == []
    for _ in range(5):
        nics.read(symbol_errors=10**6)
    assert [f.rule.counter for f in link.counters] == ["symbol_errors"]


async def test_a_pulled_cable_makes_no_hard_fault_of_its_own(nics):
    link = nics.whole.link("rail1")
    link.carrier = False
    nics.read(local_link_integrity_errors=3, buffer_overrun_errors=1)
    link.carrier = True
    nics.read(local_link_integrity_errors=1)
    assert link.counters == [], "as any error of an interval that a carrier loss touches"
    assert nics.host.nics.nics["rail1"].totals["hard"] == 5, "counted all the same"
    link.carrier = False
    nics.read(resets=1)
    assert [f.rule.counter for f in link.counters] == ["resets"], "it took the carrier along"
    link.carrier = True
    nics.read()
    nics.read(local_link_integrity_errors=1)
    assert "local_link_integrity_errors" in [f.rule.counter for f in link.counters]


async def test_link_downed_counts_what_no_event_told_and_says_when_it_is_not_exact(nics):
    host = nics.host
    nics.read(link_downed=0)
    host.carriers.tracker.totals["rail1"] = 2
    nics.read(link_downed=2)
    nics.read(link_downed=0)
    assert nics.explain()["nic"]["flaps_exact"] is True
    assert nics.whole.link("rail1").counters == [], "the carrier has told these"
    nics.read(link_downed=3)
    assert nics.whole.link("rail1").counters == [], "an event may be on its way"
    nics.read(link_downed=0)
    (finding,) = nics.whole.link("rail1").counters
    assert (finding.rule.counter, finding.count) == ("link_downed", 3)
    assert nics.whole.weights()["rail1"] == 0
    nic = nics.explain()["nic"]
    assert nic["flaps_inexact"] == "link_downed counted 5, port events 2"
    assert snapshot(host).links[1].flaps_exact is False
    assert report_links(host)[1]["flaps_exact"] is False
    assert snapshot(host).links[0].flaps_exact is None


async def test_a_saturated_count_is_not_exact(nics):
    nics.read(link_downed=0)
    nics.read(link_downed=0, inexact="saturated at 255")
    assert "saturated at 255" in nics.explain()["nic"]["flaps_inexact"]
    assert snapshot(nics.host).links[1].flaps_exact is False


async def test_totals_go_by_class(nics):
    nics.read(tx_timeouts=1, crc_errors=7, rcv_errors=2, ecn_marked=30, xmit_wait=10**9, rx_bytes=5)
    shot = snapshot(nics.host).links[1]
    assert shot.errors == {"hard": 1, "soft": 9, "congestion": 30}
    assert snapshot(nics.host).links[0].errors == {}
    counted = nics.explain()["nic"]["counted"]
    assert list(counted)[:3] == ["xmit_wait", "ecn_marked", "crc_errors"], "the largest first"
    assert counted["crc_errors"] == {"count": 7, "class": "soft"}
    assert "rx_bytes" not in counted, "traffic is no error"
    text = io.StringIO()
    show_explain.explain(Console(file=text, width=200), nics.explain() | {"history": []})
    assert "ecn_marked 30 (congestion), crc_errors 7 (soft)" in text.getvalue()


async def test_a_detector_that_is_off(nics):
    nics.whole.operate("detector_off", "counters", seconds=60, reason="", by="uid 9")
    for _ in range(5):
        nics.read(crc_errors=100, tx_timeouts=1)
    assert nics.whole.weights()["rail1"] == 1000
    assert all(e["off"] for e in nics.explain()["evidence"] if e["detector"] == "counters")


async def test_readings_that_stop_are_reported_and_then_dropped(nics):
    for _ in range(5):
        nics.read(crc_errors=100)
    host, book = nics.host, nics.host.nics

    def check(after_ns, hanging=None):
        events, changed = book.check(host.engine, hanging or {}, nics.now + after_ns)
        host.evaluator.report(events, changed=changed)

    check(STALE_NS // 2)
    assert nics.rows("daemon") == []
    check(STALE_NS + S, {"rail1": 16.0})
    check(STALE_NS + 2 * S, {"rail1": 17.0})
    assert [r["reason"] for r in nics.rows("daemon")] == [
        "NIC counters not read: it does not answer, for 16 s"
    ]
    assert nics.whole.link("rail1").counters, "it was sick a moment ago"
    check(DROP_NS + S, {"rail1": 61.0})
    assert nics.whole.link("rail1").counters == []
    nics.now += DROP_NS + 2 * S
    nics.read(crc_errors=0)
    check(0)
    assert nics.rows("daemon")[-1]["reason"] == "NIC counters are read again"


async def test_a_reader_that_fails_says_so(nics):
    nics.take(Reading("rail1", "counters", nics.now, error="OSError(5, 'io')"))
    assert nics.explain()["nic"]["stale"] == "OSError(5, 'io')"
    assert snapshot(nics.host).links[1].counters_fresh is False


async def test_another_device_begins_anew(nics):
    for _ in range(5):
        nics.read(crc_errors=100)
    nics.now += S
    nics.take(Reading("rail1", "counters", nics.now, statuses=ON, reborn=frozenset({"crc_errors"})))
    assert nics.whole.link("rail1").counters == []


async def test_pcie_below_what_it_had(nics):
    wide = {"pcie_width": 16.0, "pcie_width_max": 16.0, "pcie_speed": 32e9, "pcie_speed_max": 32e9}
    narrow = wide | {"pcie_width": 8.0}
    for _ in range(3):
        nics.slow(source="pci", gauges=narrow)
    assert nics.whole.weights()["rail1"] == 1000, "it never was better: a slot, not a fault"
    assert nics.explain()["nic"]["pcie"] == "8 of 16 lanes"
    for _ in range(3):
        nics.slow(source="pci", gauges=wide)
        nics.slow(source="pci", gauges=narrow)
        assert nics.whole.weights()["rail1"] == 1000, "one odd reading is no evidence"
    nics.slow(source="pci", gauges=narrow)
    assert nics.whole.weights()["rail1"] == 500
    assert "pcie_downgrade 8 of 16 lanes" in nics.explain()["reason"]
    nics.slow(source="pci", gauges=wide)
    assert nics.whole.link("rail1").counters == []


UPLINK = {"pcie_uplink_width": 16.0, "pcie_uplink_width_max": 16.0,
          "pcie_uplink_speed": 32e9, "pcie_uplink_speed_max": 32e9}  # fmt: skip


async def test_the_uplink_of_the_switch_above_is_a_finding(nics):
    half = WIDE | UPLINK | {"pcie_uplink_width": 8.0}
    nics.slow(source="pci", gauges=half)
    assert nics.whole.link("rail1").counters == [], "one reading"
    nics.slow(source="pci", gauges=half)
    assert [str(f) for f in nics.whole.link("rail1").counters] == ["pcie_uplink 8 of 16 lanes"]
    assert nics.whole.weights()["rail1"] == 1000, "it never was better: no weight by itself"
    assert nics.explain()["nic"]["pcie"] == "switch uplink 8 of 16 lanes"
    assert any("pcie_uplink" in row["reason"] for row in nics.rows("finding"))
    nics.slow(source="pci", gauges=WIDE | UPLINK)
    assert nics.whole.link("rail1").counters == []


async def test_an_uplink_below_what_it_had_costs_weight(nics):
    nics.slow(source="pci", gauges=WIDE | UPLINK)
    half = WIDE | UPLINK | {"pcie_uplink_width": 8.0}
    nics.slow(source="pci", gauges=half)
    assert nics.whole.weights()["rail1"] == 1000, "one odd reading is no evidence"
    nics.slow(source="pci", gauges=half)
    assert nics.whole.weights()["rail1"] == 500
    assert "pcie_downgrade switch uplink 8 of 16 lanes" in nics.explain()["reason"]


WIDE = {"pcie_width": 16.0, "pcie_width_max": 16.0, "pcie_speed": 32e9, "pcie_speed_max": 32e9}


@pytest.mark.parametrize(("could", "weight"), [(16.0, 500), (8.0, 1000)])
async def test_what_a_nic_had_is_kept_over_a_reboot_unless_it_is_another_one(nics, could, weight):
    nics.slow(source="pci", gauges=WIDE)
    kept = json.loads(json.dumps(memory.save(nics.host.nics.nics)))
    nics.host.nics.nics["rail1"] = Nic("rail1")
    assert memory.restore(nics.host.nics.nics, kept) == []
    for _ in range(2):
        nics.slow(source="pci", gauges=WIDE | {"pcie_width": 8.0, "pcie_width_max": could})
    assert nics.whole.weights()["rail1"] == weight
    assert memory.save({"rail1": nics.host.nics.nics["rail1"]})["rail1"]["pcie"]


async def test_a_count_that_was_not_exact_stays_so_over_a_restart(nics):
    nics.read(link_downed=1, inexact="saturated at 255")
    kept = memory.save(nics.host.nics.nics)
    fresh = {"rail1": Nic("rail1"), "rail9": Nic("rail9")}
    assert memory.restore(fresh, kept) == []
    assert "saturated" in fresh["rail1"].downs.state.inexact
    assert fresh["rail9"].downs.state.exact


@pytest.mark.parametrize("bad", [
    3, [], {"rail1": 3}, {"rail1": {"pcie": 3}}, {"rail1": {"pcie": {"pcie_width": "x"}}},
    {"rail1": {"pcie": {"pcie_width": float("nan")}}}, {"rail1": {"pcie": {"other": 1}}},
    {"rail1": {"inexact": 3}}, {"rail1": {"hardware": 3}}, {"rail1": {"speed": {"netdev": "x"}}},
    {"rail1": {"speed": {"netdev": -1.0}}}, {"rail1": {"speed": {"other": 1.0}}},
    {"rail1": {"speed": 3}},
])  # fmt: skip
def test_what_is_not_of_a_nic_is_refused(bad):
    known = {"rail1": Nic("rail1")}
    assert memory.restore(known, bad)
    assert not known["rail1"].pcie_kept
    assert not known["rail1"].speed.best
    assert known["rail1"].downs.state.exact


async def test_counters_without_a_rule_are_shown_and_traffic_is_not(nics):
    nics.read(fec_corrected=7, rx_bytes=10**9)
    assert nics.explain()["nic"]["counted"] == {"fec_corrected": {"count": 7, "class": "soft"}}


async def test_where_only_codewords_are_counted_they_stand_for_bits(nics):
    seen = []
    nics.host.nics._gather.count = lambda netdev, counts, _seconds: seen.append((netdev, counts))
    nics.read(fec_corrected=7)
    assert seen == [("rail1", {"fec_corrected_bits": 7})]
    nics.read("rail0", fec_corrected=7, fec_corrected_bits=9)
    nics.read("rail0", fec_corrected=7)
    assert seen[1:] == [("rail0", {"fec_corrected_bits": 9})]


async def test_a_module_that_raises_an_alarm(nics):
    gauges = {"rx_power/0": 1e-4, "module_temperature": 71.0}
    for _ in range(3):
        nics.slow(gauges=gauges, flags=frozenset({"rx_power_low_alarm/0"}), module="ACME X 1")
    (row,) = nics.rows("finding")
    assert "rx_power_low_alarm/0" in row["reason"]
    assert row["data"]["measured"] == "rx power 0.1 mW, temperature 71 °C"
    assert nics.host.nics.modules() == {"rail1": "ACME X 1"}
    assert nics.whole.weights()["rail1"] == 1000, "single readings accuse nobody"


# -- forecast


async def test_a_forecast_lowers_the_weight_and_names_its_evidence(nics):
    nics.slow(gauges={"rx_power/0": 1e-4, "rx_power/1": 5e-4})
    nics.host.nic_input.foretold({"rail1": FORECAST, "rail0": CALM})
    assert nics.whole.weights() == {"rail0": 1000, "rail1": 400, "rail2": 1000}
    said = nics.explain()
    assert "likely to fail: 40 %" in said["steering"][0]
    (found,) = [e for e in said["evidence"] if e["detector"] == "prediction"]
    assert found["against"]
    for part in ("failure risk 0.70", "light_trend", "limit in 2.0 h", "rx power 0.1 mW"):
        assert part in found["says"]
    (row,) = nics.rows("risk")
    assert (row["link"], row["data"]["risk"], row["data"]["named"]) == ("rail1", 0.7, True)
    assert nics.rows("steer")[-1]["reason"].startswith("failure risk 0.70")
    assert snapshot(nics.host).links[1].risk == 0.7
    nics.host.nic_input.foretold({"rail1": CALM})
    assert nics.whole.weights()["rail1"] == 1000
    assert [r["data"]["named"] for r in nics.rows("risk")] == [True, False]


async def test_a_forecast_never_takes_more_than_half(nics):
    nics.host.nic_input.foretold({"rail2": FORECAST})
    nics.host.nic_input.foretold(dict.fromkeys(("rail0", "rail1", "rail2"), FORECAST))
    assert nics.whole.weights() == {"rail0": 1000, "rail1": 1000, "rail2": 400}
    assert "half of the links at most" in nics.explain("rail0")["steering"][-1]
    nics.whole.link("rail0").carrier = False
    nics.host.evaluator.step()
    assert nics.whole.weights() == {"rail0": 0, "rail1": 1000, "rail2": 1000}


@pytest.mark.parametrize("how", ["detector", "window", "config"])
async def test_a_forecast_that_may_not_steer(tmp_path, how):
    whole = WholeHost(tmp_path, extra="[predict]\nsteer = false\n" if how == "config" else "")
    if how == "detector":
        whole.operate("detector_off", "prediction", seconds=60, reason="", by="uid 9")
    if how == "window":
        whole.operate("open_window", "rail1", seconds=60, reason="", by="uid 9")
    whole.host.nic_input.foretold({"rail1": FORECAST})
    assert whole.weights()["rail1"] == 1000
    assert whole.link("rail1").forecast.risk == 0.7, "it is still measured"
    whole.close()


async def test_a_forecast_outlives_the_daemon(nics):
    nics.host.nic_input.foretold({"rail1": FORECAST})
    engine = nics.host.engine
    saved = engine.save(nics.now)
    nics.whole.link("rail1").forecast = None
    assert engine.restore(saved, nics.now, 0) == []
    assert nics.whole.link("rail1").forecast == FORECAST


@pytest.mark.parametrize("bad", [{}, {"risk": 2}, None, {"risk": 0.5, "left_s": -1}])
def test_what_is_no_forecast(bad):
    good = CALM.document()
    with pytest.raises((KeyError, TypeError, ValueError)):
        Forecast.of(bad and good | bad)


# -- reading


def test_every_rule_with_a_window_has_a_class_that_is_known():
    assert {rule.cls.value for rule in RULES.values()} == {"hard", "soft", "congestion"}


async def test_why_there_is_no_carrier_is_in_row_reason_and_metric(nics):
    no_cable = DownReason("no_cable", "no cable")
    link = nics.whole.link("rail1")
    link.carrier = False
    nics.host.evaluator.step()

    def reading(down):
        nics.now += S
        nics.take(Reading("rail1", "counters", nics.now, statuses=ON, down=down))

    for _ in range(3):
        reading(no_cable)
    (row,) = [row for row in nics.rows("finding") if row["data"].get("source") == "link_state"]
    assert (row["reason"], row["data"]["down_reason"]) == ("no carrier: no cable", "no_cable")
    assert nics.explain()["reason"].endswith(": no cable")
    (shown,) = [one for one in report_links(nics.host) if one["netdev"] == "rail1"]
    assert shown["reason"].endswith(": no cable")
    assert shown["down_reason"] == "no_cable"
    body, _ = render(snapshot(nics.host))
    assert b'fabricd_link_down_reason{link="rail1",rail="1",reason="no_cable"} 1' in body
    reading(DownReason("remote_fault", "remote fault"))
    assert len([r for r in nics.rows("finding") if "down_reason" in r["data"]]) == 2
    link.carrier = True
    reading(None)
    assert b"fabricd_link_down_reason{" not in render(snapshot(nics.host))[0]
    assert "cable" not in nics.explain()["reason"]
