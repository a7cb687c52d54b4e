"""The endpoint: clean for promtool, within its budget, and as docs/reference/metrics.md says."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from telemetry.events import LinkState
from telemetry.link_metrics import LINK_METRICS, MAX_LINK_SERIES
from telemetry.listen import parse_listen
from telemetry.metric_table import HOST_METRICS
from telemetry.metrics import render
from telemetry.snapshot import (
    BrokerSnapshot,
    ClockSnapshot,
    DaemonSnapshot,
    HostSnapshot,
    LinkInfo,
    LinkSnapshot,
    Located,
    PluginSnapshot,
    ProberSnapshot,
    ProbeTotals,
    RailTotals,
)
from telemetry.statslayout import LATENCY_BUCKETS
from telemetry.statspage import Latency

ROOT = Path(__file__).parents[3]
LATENCY = Latency(3_000_000_000, tuple(i + 1 for i in range(LATENCY_BUCKETS)))
FULL = HostSnapshot(
    host="h0",
    links=tuple(
        LinkSnapshot(
            netdev=f"rail{i}",
            rail=i,
            state=LinkState.DOWN if i == 1 else LinkState.UP,
            carrier=i != 1,
            flaps=20 + i,
            last_change_wall_s=1_700_000_000.5,
            penalty=1234.5,
            weight=0.0 if i == 1 else 1.0,
            wanted_weight=0.0 if i == 1 else 0.5,
            outages=i,
            info=LinkInfo(f"h0/{i}", "0000:17:00.0", "mlx5_0", "400G", "mlx5_core", "leaf-a"),
            errors={"hard": 1, "soft": 20, "congestion": 300},
            counters_fresh=i == 0,
            flaps_exact=i == 0,
            speed_ratio=0.25,
            risk=0.25,
            probe=ProbeTotals(100, 90, 4, 6, 0.0002, 0.0001, 11, 1),
            plugin=RailTotals(10, 20, 3, 2, 1, 1, 5, 0.25, 77, 2, LATENCY),
            queueing_s={"rx": 2e-3, "tx": 1e-6},
            slow=i == 1,
        )
        for i in range(2)
    ),
    prober=ProberSnapshot(True, 0.01, 1, 2, 0.5, {"auth": 3, "version": 1}, True, 6),
    daemon=DaemonSnapshot(
        version="0.1.0",
        mode="steer",
        start_wall_s=1.0,
        last_cycle_wall_s=2.0,
        timeline_events=9,
        timeline_failures=1,
        timeline_waiting=2,
        timeline_dropped=8,
        timeline_bytes=4096,
        verdicts_held=3,
        steer_generation=7,
        groups={"front": True, "back": False},
        config_hash="00aa",
        policy_hash="11bb",
        config_loaded_wall_s=3.0,
        detectors={"carrier": True, "loss": False},
        refused={"control_socket": 5, "stats_page": 6},
    ),
    plugin=PluginSnapshot(4, 0, 3, 2, 4, foreign_rails=5),
    silent_peers={"h1": True, "h2": False},
    broker=BrokerSnapshot(
        True,
        2,
        3,
        9,
        4,
        5,
        8192,
        {"host.job": 30_275},
        {"line": 6, "replayed": 0},
        7,
        8,
        {("h0", "h1"): 4},
    ),
    located=(Located("link", "h0/1", "tx"), Located("leaf", "leaf-a")),
)


@pytest.fixture(scope="module")
def scrape():
    return lambda snapshot: render(snapshot)[0].decode()


def samples(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_values(scrape):
    got = samples(scrape(FULL))

    def link(name, link="rail1", **labels):
        labels = {"link": link, "rail": link[-1]} | labels
        return got[f"fabricd_link_{name}", tuple(sorted(labels.items()))]

    assert (link("state"), link("state", "rail0")) == (LinkState.DOWN, LinkState.UP) == (3, 1)
    assert link("flaps_total") == 21
    assert (link("weight_ratio"), link("weight_ratio", "rail0")) == (0, 1)
    assert link("errors_total", **{"class": "soft"}) == 20
    assert (link("flaps_exact"), link("flaps_exact", "rail0")) == (0, 1)
    assert (link("counters_up"), link("failure_risk")) == (0, 0.25)
    assert link("probe_packets_lost_total", direction="tx") == 4
    assert link("probe_packets_lost_total", direction="rx") == 6
    assert link("plugin_stall_seconds_total") == 0.25
    assert link("last_change_timestamp_seconds") == 1_700_000_000.5
    assert got["fabricd_prober_refused_packets_total", (("reason", "auth"),)] == 3
    assert got["fabricd_refused_inputs_total", (("source", "stats_page"),)] == 6
    assert got["fabricd_verdicts_held_total", ()] == 3
    assert got["fabricd_mode", (("mode", "steer"),)] == 1
    assert got["fabricd_timeline_dropped_events_total", ()] == 8
    assert got["fabricd_build_info", (("version", "0.1.0"),)] == 1
    assert (link("wanted_weight_ratio"), link("outages_total")) == (0, 1)
    what = {"element": "h0/1", "device": "0000:17:00.0", "rdma_device": "mlx5_0", "speed": "400G"}
    assert link("info", **what, driver="mlx5_core", leaf="leaf-a") == 1
    assert got["fabricd_peer_silent", (("peer", "h1"),)] == 1
    assert got["fabricd_peer_silent", (("peer", "h2"),)] == 0
    assert got["fabricd_peer_address_conflicts", (("other", "h1"), ("peer", "h0"))] == 4
    where = (("direction", "tx"), ("element", "h0/1"), ("part", "link"))
    assert got["fabricd_located", where] == 1
    assert got["fabricd_broker_connected", ()] == 1
    assert got["fabricd_broker_outbox_messages", ()] == 3
    assert got["fabricd_broker_outbox_unstored_messages", ()] == 9
    assert got["fabricd_broker_outbox_dropped_total", ()] == 4
    assert got["fabricd_broker_packet_limit_bytes", ()] == 8192
    assert got["fabricd_broker_oversize_state_bytes", (("kind", "host.job"),)] == 30_275
    assert got["fabricd_broker_refused_messages_total", (("reason", "line"),)] == 6


def test_deliveries_are_a_histogram_in_seconds(scrape):
    got = samples(scrape(FULL))
    rail = (("link", "rail0"), ("rail", "0"))
    name = "fabricd_link_plugin_delivery_seconds"
    buckets = {
        float(dict(labels)["le"]): value
        for (found, labels), value in got.items()
        if found == f"{name}_bucket" and dict(labels)["link"] == "rail0"
    }
    # Bucket i of the page ends at 2^i µs and holds i + 1 messages here.
    assert buckets == {
        64e-6: sum(range(1, 8)),
        1024e-6: sum(range(1, 12)),
        16384e-6: sum(range(1, 16)),
        262144e-6: sum(range(1, 20)),
        2097152e-6: sum(range(1, 23)),
        float("inf"): LATENCY.count,
    }
    assert got[f"{name}_count", rail] == LATENCY.count == sum(range(1, 29))
    assert got[f"{name}_sum", rail] == 3.0


def test_what_is_not_known_has_no_sample(scrape):
    bare = HostSnapshot("h0", links=(LinkSnapshot("rail0", 0, LinkState.UNKNOWN),))
    names = {name for name, _ in samples(scrape(bare))}
    for absent in (
        "link_carrier",
        "link_probe_rtt_seconds",
        "link_last_change_timestamp_seconds",
        "link_failure_risk",
        "link_flaps_exact",
        "link_errors_total",
    ):
        assert f"fabricd_{absent}" not in names
    assert "fabricd_link_flaps_total" in names


def test_at_most_sixty_series_per_link(scrape):
    text = scrape(FULL)
    for name in ("rail0", "rail1"):
        count = sum(f'link="{name}"' in line for line in text.splitlines())
        assert count <= MAX_LINK_SERIES == 60
        assert count >= len(LINK_METRICS)


def promtool(*arguments, text=""):
    assert shutil.which("promtool"), "promtool comes with Debian's package prometheus"
    return subprocess.run(
        ["promtool", *arguments], input=text, text=True, capture_output=True, check=False
    )


def test_promtool_finds_nothing(scrape):
    done = promtool("check", "metrics", text=scrape(FULL))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_would_find_something(scrape):
    done = promtool("check", "metrics", text=scrape(FULL).replace("_bytes_total", "_kilobytes"))
    assert done.returncode != 0


def test_names_are_unique_and_in_base_units():
    specs = [*LINK_METRICS, *HOST_METRICS]
    names = [spec.name for spec in specs]
    assert len(set(names)) == len(names)
    for spec in specs:
        assert (spec.kind == "counter") == spec.name.endswith("_total"), spec.name
        assert not re.search(r"_(ms|us|ns|kb|mb|percent)(_|$)", spec.name), spec.name
        assert spec.text.endswith("."), spec.name


def test_docs_and_endpoint_agree(scrape):
    text = (ROOT / "docs/reference/metrics.md").read_text()
    row = re.compile(r"^\| `(fabricd_\w+)(?:\{[^}]*\})?` \| (\w+) \|", re.MULTILINE)
    documented = dict(row.findall(text))
    specs = {spec.name: spec.kind for spec in [*LINK_METRICS, *HOST_METRICS]}
    assert documented == specs
    families = re.findall(r"^# TYPE (\S+) (\w+)$", scrape(FULL), re.MULTILINE)
    assert dict(families) == specs


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("fabricd_clock_refused_words_total", "fabricd_clock_refused_messages_total"),
        ("fabricd_prober_refused_promises_total", "fabricd_prober_refused_due_times_total"),
    ],
)
def test_a_renamed_metric_keeps_its_former_name_for_one_release(scrape, former, name):
    shot = replace(FULL, clock=ClockSnapshot(refused_messages=6))
    families = {
        family.name: [sample.value for sample in family.samples]
        for family in text_string_to_metric_families(scrape(shot))
    }
    values = families[former.removesuffix("_total")]
    assert values == families[name.removesuffix("_total")] == [6]


@pytest.mark.patient
def test_rules_are_valid_and_fire(tmp_path):
    rules = ROOT / "deploy" / "prometheus" / "rules.yml"
    done = promtool("check", "rules", str(rules))
    assert done.returncode == 0, done.stdout + done.stderr
    tests = sorted(str(path) for path in rules.parent.glob("rules_*test.yml"))
    assert len(tests) == 3
    done = promtool("test", "rules", *tests)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_dashboard_use_only_metrics_that_exist():
    specs = [*LINK_METRICS, *HOST_METRICS]
    known = {spec.name for spec in specs}
    known |= {
        f"{spec.name}_{part}"
        for spec in specs
        if spec.kind == "histogram"
        for part in ("bucket", "sum", "count")
    }
    deploy = ROOT / "deploy"
    files = [deploy / "prometheus" / "rules.yml", *(deploy / "grafana").glob("fabricd-*.json")]
    assert len(files) >= 2
    for path in files:
        used = set(re.findall(r"(?<![:\w])fabricd_\w+", path.read_text()))
        assert used
        assert used <= known, path


DASHBOARDS = {
    "fabricd-links": [
        f"fabricd_link_{family}"
        for family in (
            *("state", "flaps", "probe", "damping", "wanted_weight"),
            *("plugin_failovers", "plugin_delivery"),
        )
    ],
    "fabricd-clock": [
        f"fabricd_clock_{family}"
        for family in ("state", "bound", "reference_info", "path_delay", "tai_bound", "ptp")
    ],
    "fabric-compute": [
        f"fabric_compute_{family}"
        for family in (
            *("jobs", "job_spares", "job_generation", "job_held", "job_protected"),
            *("recoveries_total", "pause_seconds_bucket", "lost_steps_total", "fences_total"),
            *("refused_messages_total", "hosts", "connected", "stopped"),
        )
    ],
}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_shows_each_family(name):
    dashboard = json.loads((ROOT / "deploy" / "grafana" / f"{name}.json").read_text())
    assert dashboard["uid"] == name
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places, f"{panel['title']} lies on another"
        assert place["x"] + place["w"] <= 24
        places |= cells
    shown = "".join(target["expr"] for panel in panels for target in panel["targets"])
    for family in DASHBOARDS[name]:
        assert family in shown


@pytest.mark.parametrize("name", DASHBOARDS)
def test_expressions_of_a_dashboard_are_promql(tmp_path, name):
    dashboard = json.loads((ROOT / "deploy" / "grafana" / f"{name}.json").read_text())
    rules = [
        {"record": "a:b:c", "expr": target["expr"].replace("$__range", "1h")}
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
    path = tmp_path / "dashboard.yml"  # JSON is YAML
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", "--lint=none", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("127.0.0.1:19200", ("127.0.0.1", 19200)), ("[::1]:0", ("::1", 0)), ("localhost:1", None)],
)
def test_listen(text, parsed):
    assert parse_listen(text) == (parsed or ("localhost", 1))


@pytest.mark.parametrize("text", ["", "19200", "127.0.0.1:", "127.0.0.1:x", "::1:80", "h:70000"])
def test_listen_refused(text):
    with pytest.raises(ValueError, match="ADDRESS:PORT"):
        parse_listen(text)
