"""A link that negotiated less than it had keeps its part of the weight, and says why."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_host import LINKS, WholeHost, text

from fabricd.config.loader import ConfigError, parse
from fabricd.nics import memory, watch
from fabricd.nics.monitor import Nic
from fabricd.nics.reader import RATE_NS, SPEED_NS, CounterReader, Reading, SlowReader
from fabricd.nics.speed import ABSENCES, MOST, LinkSpeed, rate
from fabricd.views.explain import explain
from fabricd.views.report import snapshot

S = 10**9
G = 1e9


# -- the rule --------------------------------------------------------------------------------------


def readings(speed, *values, source="netdev"):
    for value in values:
        speed.read(source, None if value is None else value * G, 7 * S)
    return speed.ratio


def test_two_readings_in_a_row_are_believed():
    speed = LinkSpeed()
    assert (readings(speed, 400), speed.text, speed.slower_ns) == (None, "", None)
    assert (readings(speed, 400), speed.text, speed.slower_ns) == (1.0, "400 Gbit/s", None)
    assert readings(speed, 100, 400, 100, 400) == 1.0
    assert readings(speed, 100, None, 100) == 1.0
    assert readings(speed, 100) == 0.25
    assert (speed.text, speed.slower_ns) == ("negotiated 100 of 400 Gbit/s", 7 * S)
    assert readings(speed, 400) == 0.25
    assert (readings(speed, 400), speed.slower_ns) == (1.0, None)


def test_an_odd_reading_makes_no_best():
    assert readings(LinkSpeed(), 100, 800, 100, 100) == 1.0


def test_a_training_link_s_readings_count_anew():
    speed = LinkSpeed()
    readings(speed, 400, 400, 100)
    speed.unsettled()
    assert readings(speed, 100) == 1.0
    assert readings(speed, 100) == 0.25


def test_the_lesser_of_two_sources_counts_each_by_its_own_best():
    speed = LinkSpeed()
    readings(speed, 56, 56)
    assert readings(speed, 54.3, 54.3, source="verbs") == 1.0
    assert readings(speed, 14, 14, source="verbs") == pytest.approx(14 / 54.3)
    assert speed.text == "negotiated 14 of 54.3 Gbit/s"
    assert readings(speed, 54.2, 54.2, source="verbs") == 1.0, "the same, rounded otherwise"


def test_a_source_that_is_gone_counts_no_more():
    speed = LinkSpeed()
    readings(speed, 100, 100)
    assert readings(speed, 100, 100, 25, 25, source="verbs") == 0.25
    assert readings(speed, *[None] * (ABSENCES - 1), 25, source="verbs") == 0.25
    assert readings(speed, *[None] * (ABSENCES - 1), source="verbs") == 0.25
    assert readings(speed, None, source="verbs") == 1.0
    assert (speed.text, speed.slower_ns) == ("100 Gbit/s", None)
    assert readings(speed, 25, 25, source="verbs") == 0.25, "the best that it had is still known"


def test_absences_before_the_carrier_was_away_count_no_more():
    speed = LinkSpeed()
    readings(speed, 100, 100, 25, 25, source="verbs")
    for _ in range(ABSENCES):
        assert readings(speed, *[None] * (ABSENCES - 1), source="verbs") == 0.25
        speed.unsettled()
    assert speed.ratio == 0.25


def test_a_configured_speed_is_the_netdev_s():
    """Verbs ports say 54.3 where the netdev says 56: 4X FDR, with and without its coding."""
    speed = LinkSpeed(expected=56 * G)
    readings(speed, 56, 56)
    assert readings(speed, 54.3, 54.3, source="verbs") == 1.0
    assert speed.text == "56 Gbit/s"
    assert readings(speed, 28, 28) == 0.5


def test_a_lower_configured_speed_holds_for_the_verbs_port_too():
    speed = LinkSpeed()
    readings(speed, 400, 400, 100, 100)
    assert readings(speed, 400, 400, 100, 100, source="verbs") == 0.25
    speed.expected = 100 * G
    assert speed.ratio == 1.0


def test_a_configured_speed_is_asked_of_verbs_where_the_netdev_says_none():
    assert readings(LinkSpeed(expected=400 * G), 100, 100, source="verbs") == 0.25


def test_a_configured_speed_replaces_the_best():
    speed = LinkSpeed(expected=400 * G)
    assert readings(speed, 100, 100) == 0.25, "it never had more, and should"
    speed.expected = 100 * G
    speed.update(9 * S)
    assert (speed.ratio, speed.slower_ns) == (1.0, None)
    assert readings(speed, 200, 200) == 1.0, "more is no fault"


@given(st.lists(st.one_of(st.none(), st.floats(0.0001, 1e6)), max_size=40))
def test_a_ratio_is_above_0_and_at_most_1(values):
    speed = LinkSpeed()
    for value in values:
        ratio = readings(speed, value)
        assert ratio is None or 0 < ratio <= 1
        assert (speed.slower_ns is not None) is (ratio is not None and ratio < 1)


@pytest.mark.parametrize("odd", [0, -1e-9, 4294967295e6 / G, 2 * MOST / G])
def test_what_a_driver_says_that_does_not_know_is_left_out(odd):
    assert readings(LinkSpeed(), 100, 100, odd, odd) == 1.0


@pytest.mark.parametrize(
    ("said", "bits"),
    [
        ("400 Gb/sec (4X NDR)\n", 400 * G), ("2.5 Gb/sec (1X SDR)\n", 2.5 * G),
        ("14 Gb/sec (1X FDR10)", 14 * G), ("25 Gb/sec", 25 * G),
        ("", None), ("\n", None), ("nan Gb/sec", None), ("inf Gb/sec", None), ("0 Gb/sec", None),
        ("-1 Gb/sec", None), ("25 Mb/sec", None), ("Gb/sec 25", None),
    ],
)  # fmt: skip
def test_rates_of_verbs_ports(said, bits):
    assert rate(said) == bits


@given(st.text(max_size=40))
def test_fuzz_of_rates(said):
    assert rate(said) is None or rate(said) > 0


# -- the daemon ------------------------------------------------------------------------------------


class Host:
    """A host whose links' speeds are read here; `config` are lines of rail1."""

    def __init__(self, tmp_path, config=""):
        links = LINKS.replace('"rail1"\n', f'"rail1"\n{config}\n')
        self.whole = WholeHost(tmp_path, links=links)
        self.now = 100 * S

    def read(self, *gbps, netdev="rail1", gauge="speed"):
        host = self.whole.host
        for value in gbps:
            self.now += 10 * S
            reading = Reading(netdev, "slow", self.now, gauges={gauge: {gauge: value * G}})
            flaps = host.carriers.tracker.totals
            events, changed = host.nics.take([reading], host.engine, flaps, self.now)
            host.evaluator.report(events, changed=changed)
        return self.whole.weights()[netdev]

    def identify(self, hardware):
        """Its counters are read, and the address that it was made with."""
        host = self.whole.host
        self.now += S
        reading = Reading("rail1", "counters", self.now, hardware=hardware)
        flaps = host.carriers.tracker.totals
        events, changed = host.nics.take([reading], host.engine, flaps, self.now)
        host.evaluator.report(events, changed=changed)

    def explain(self):
        return explain(self.whole.host, "rail1", self.now)

    def rows(self):
        return [row for row in self.whole.told if row["kind"] == "finding"]


@pytest.fixture
async def host(tmp_path):
    made = Host(tmp_path)
    yield made
    made.whole.close()


async def test_a_quarter_of_the_speed_is_a_quarter_of_the_weight(host):
    assert host.read(400, 400, 400) == 1000
    assert host.read(100) == 1000
    assert host.read(100) == 250
    assert host.whole.states()["rail1"] == "DEGRADED"
    said = host.explain()
    assert "negotiated 100 of 400 Gbit/s" in said["reason"]
    assert said["rule"]["name"] == "speed"
    assert said["steering"] == ["25 % follows from the state"]
    assert said["nic"]["speed"] == "negotiated 100 of 400 Gbit/s"
    (row,) = host.rows()
    assert (row["link"], row["data"]["counter"]) == ("rail1", "link_speed")
    assert "negotiated 100 of 400 Gbit/s" in row["reason"]
    ratios = [link.speed_ratio for link in snapshot(host.whole.host).links]
    assert ratios == [None, 0.25, None]
    assert host.read(200, 200) == 500, "it follows the speed"
    assert host.read(400, 400) == 1000
    assert [row["data"]["holds"] for row in host.rows()] == [True, False]


async def test_a_verbs_port_of_one_lane_of_four(host):
    assert host.read(100, 100, gauge="rate") == 1000
    assert host.read(25, 25, gauge="rate") == 250


async def test_one_that_loses_too_keeps_no_more_than_half(host):
    host.read(400, 400, 300, 300)
    assert host.whole.weights()["rail1"] == 750
    host.whole.link("rail1").worse = "1 % of probes from a, b lost"
    host.whole.host.evaluator.step()
    assert host.whole.weights()["rail1"] == 500


async def test_all_rails_may_be_slower_and_share_alike(host):
    for rail in ("rail0", "rail1", "rail2"):
        host.read(400, 400, 100, 100, netdev=rail)
    assert host.whole.weights() == {"rail0": 250, "rail1": 250, "rail2": 250}


async def test_what_is_read_without_carrier_is_no_evidence(host):
    host.read(400, 400)
    link = host.whole.link("rail1")
    link.carrier = False
    host.read(10, 10, 10)
    link.carrier = True
    assert host.read(400) == 1000
    assert host.whole.link("rail1").speed_ratio == 1.0


async def test_a_port_that_becomes_active_late_is_to_be_read_anew(host):
    host.read(400, 400, 100, 100)
    settlings = host.whole.host.nics.settlings
    link, before = host.whole.link("rail1"), settlings("rail1")
    link.port_active = False
    assert host.read(400, 400, 400) == 250
    assert settlings("rail1") == before
    link.port_active = True
    host.read(400)
    assert settlings("rail1") == before + 1
    assert host.read(400) == 1000
    assert settlings("rail1") == before + 1, "once"
    assert settlings("nosuch9") == 0


async def test_in_maintenance_it_changes_nothing(host):
    host.read(400, 400)
    host.whole.host.engine.overrides = type(host.whole.host.engine.overrides)(planned={"rail1"})
    assert host.read(100, 100) == 1000


async def test_the_best_is_kept_over_a_restart(host):
    host.read(400, 400)
    kept = json.loads(json.dumps(memory.save(host.whole.host.nics.nics)))
    host.whole.host.nics.nics["rail1"] = Nic("rail1")
    assert memory.restore(host.whole.host.nics.nics, kept) == []
    assert host.read(100, 100) == 250


@pytest.mark.parametrize(
    ("hardware", "weight"),
    [("02:00:00:00:00:01", 250), ("02:00:00:00:00:02", 1000), ("", 250)],
)
@pytest.mark.parametrize("restarted", [True, False])
async def test_another_nic_of_the_name_is_not_measured_by_the_last_one(
    host, hardware, weight, restarted
):
    """Names moved after a card was put in, or another card is in the slot."""
    host.identify("02:00:00:00:00:01")
    host.read(400, 400)
    if restarted:
        kept = json.loads(json.dumps(memory.save(host.whole.host.nics.nics)))
        host.whole.host.nics.nics["rail1"] = Nic("rail1")
        assert memory.restore(host.whole.host.nics.nics, kept) == []
    host.identify(hardware)
    assert host.read(100, 100) == weight
    told = [x for x in host.whole.told if "another NIC has this name" in x.get("reason", "")]
    assert len(told) == (weight == 1000)
    host.identify(hardware)
    assert host.read(50, 50) == round(weight / 2), "from then on it has a speed of its own"


async def test_an_operator_accepts_another_speed_by_a_reload(host):
    host.read(400, 400, 100, 100)
    links = LINKS.replace('"rail1"\n', '"rail1"\nspeed_gbps = 100\n')
    config = parse(text(host.whole.directory, links=links), "f")
    host.whole.host.reconfigure(config)
    assert host.read(100) == 1000
    assert host.whole.link("rail1").speed_ratio == 1.0


async def test_a_speed_that_is_expected_and_never_was(tmp_path):
    host = Host(tmp_path, "speed_gbps = 400")
    assert host.read(100, 100) == 250
    host.whole.close()


@pytest.mark.parametrize("value", ["0", "-1", '"fast"', "100001", "nan"])
def test_nonsense_in_the_configuration_is_refused(tmp_path, value):
    links = LINKS.replace('"rail1"\n', f'"rail1"\nspeed_gbps = {value}\n')
    with pytest.raises(ConfigError, match="speed_gbps"):
        parse(text(tmp_path, links=links), "f")


# -- the readers -----------------------------------------------------------------------------------


def files(root, **contents):
    for name, content in contents.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_a_link_that_trained_anew_is_asked_until_readings_agree(tmp_path):
    net = {"net__rail1__speed": "400000\n", "net__rail1__carrier_changes": "1\n"}
    files(tmp_path, **net)
    reader = SlowReader("rail1", sysfs=tmp_path)

    def speeds(seconds):
        out = []
        for _ in range(round(seconds / 5)):
            speeds.now += 5 * S
            found = reader.read(speeds.now)
            if found is not None and "speed" in found.gauges:
                out.append(found.gauges["speed"].get("speed"))
        return out

    speeds.now = 0
    assert speeds(50) == [400e9] * 3
    assert len(speeds(SPEED_NS / S)) == 1
    files(tmp_path, net__rail1__speed="100000\n", net__rail1__carrier_changes="3\n")
    assert speeds(15) == [100e9] * 3
    (tmp_path / "net/rail1/speed").unlink()
    files(tmp_path, net__rail1__carrier_changes="4\n")
    assert speeds(5) == [None]
    reader.close()


def test_a_link_that_settled_is_asked_soon(tmp_path):
    """Its port became active after the readings that its carrier caused."""
    files(tmp_path, net__rail1__speed="400000\n", net__rail1__carrier_changes="1\n")
    settlings, now, asked = 0, 0, []
    reader = SlowReader("rail1", sysfs=tmp_path, settlings=lambda: settlings)
    for second in range(0, 60, 5):
        settlings = second >= 40
        found = reader.read(now + second * S)
        if found is not None and "speed" in found.gauges:
            asked.append(second)
    assert asked == [0, 5, 10, 40, 45, 50]
    reader.close()


async def test_the_daemon_s_reader_is_told_when_a_link_settled(host, monkeypatch):
    made = {}
    monkeypatch.setattr(watch.sys, "setswitchinterval", lambda _seconds: None)
    monkeypatch.setattr(watch, "Sweeper", lambda name, make, *_, **__: made.setdefault(name, make))
    of, loop = host.whole.host, asyncio.get_running_loop()
    watch.NicWatch(of.settings, of.engine, of.nics, of.nic_input, loop)._make(of.config)
    reader = made["slow"]("rail1")
    before = reader._settlings()
    host.whole.link("rail1").port_active = False
    host.read(400)
    host.whole.link("rail1").port_active = True
    host.read(400)
    assert reader._settlings() == before + 1
    reader.close()


def test_the_rate_of_the_verbs_port_is_read(tmp_path):
    files(
        tmp_path,
        infiniband__mlx5_0__ports__1__rate="400 Gb/sec (4X NDR)\n",
        infiniband__mlx5_0__ports__1__gid_attrs__ndevs__0="rail1\n",
        net__rail1__address="",
    )
    reader = CounterReader("rail1", sysfs=tmp_path)
    assert reader.read(S).gauges == {"rate": {"rate": 400e9}}
    assert reader.read(2 * S).gauges == {}, "not each second"
    files(tmp_path, infiniband__mlx5_0__ports__1__rate="?\n")
    assert reader.read(S + RATE_NS).gauges == {"rate": {}}
    reader.close()
