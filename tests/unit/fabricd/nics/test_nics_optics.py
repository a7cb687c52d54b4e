"""A module that loses its light, from the bytes of its memory to the weight on the steer page.

Readings are those of recorded images; seconds are counted, not waited for. Windows are judged by
the child's code, one of them by the child itself.
"""

import asyncio
import gc
import json
import math
import struct
import sys

import pytest
from optics_images import Bus, qsfp
from test_nics import Nics
from whole_host import LINKS, WholeHost

from fabricd.nics.reader import SlowReader
from fabricd.nics.watch import NicWatch, ask, make_request
from fabricd.predict import child
from fabricd.predict.forecast import Forecast
from telemetry.counters.optics.memory import LOWER
from telemetry.counters.optics.source import ModuleSource

S = 10**9
READ_S, WINDOW_S = 30, 300
FALL_DB = 0.25
"""A window: 13 dB are in hand, so the link fails after four and a half hours."""


class Optic:
    """A QSFP28 in rail1's cage; its light is set in dBm."""

    def __init__(self):
        self.memory = qsfp()
        self.bus = Bus(self.memory)

    def light(self, dbm):
        tenths = round(10 ** (dbm / 10) * 1e4)  # units of 0.1 µW
        struct.pack_into(">4H", self.memory[LOWER], 34, tenths, 9000, 9500, 10000)
        self.bus.memory = {half: bytes(data) for half, data in self.memory.items()}

    def replaced(self):
        fresh = qsfp()
        upper = next(half for half in fresh if half.upper and half.page == 0)
        fresh[upper][68:84] = b"AO24Q00099".ljust(16)
        fresh[upper][95] = sum(fresh[upper][64:95]) & 0xFF
        self.memory = fresh


class Run:
    """Windows of a host whose rail1 has the optic."""

    def __init__(self, whole):
        self.nics, self.host = Nics(whole), whole.host
        self.optic = Optic()
        source = ModuleSource("rail1", openers=[lambda _: self.optic.bus])
        self.reader = SlowReader("rail1", module_ns=READ_S * S, module=source)
        self.windows = 0

    def window(self, dbm):
        """One window of readings at this light, and the request that ends it."""
        for _ in range(WINDOW_S // READ_S):
            self.nics.now += READ_S * S
            wobble = 0.01 * math.sin(self.nics.now)
            self.optic.light(dbm + wobble)
            reading = self.reader.read(self.nics.now)
            self.nics.take(reading)
        self.windows += 1
        return json.loads(json.dumps(self.request()))

    def request(self):
        """Of the window that ends now."""
        host = self.host
        return make_request(host.config, host.nics, host.engine.overrides.planned)

    def judged(self, dbm):
        answer = child.run(self.window(dbm))
        assert answer["notes"] == []
        self.host.nic_input.foretold({n: Forecast.of(each) for n, each in answer["links"].items()})


@pytest.fixture
async def run(tmp_path):
    whole = WholeHost(tmp_path, links=LINKS)
    object.__setattr__(whole.host.config.paths, "state_dir", str(tmp_path))
    yield Run(whole)
    whole.close()


async def test_light_that_falls_steadily_lowers_the_weight_before_the_link_fails(run):
    dbm = -1.0
    for _ in range(40):
        run.judged(dbm)
    assert run.nics.whole.weights()["rail1"] == 1000
    assert run.nics.rows("risk") == []
    while run.nics.whole.weights()["rail1"] == 1000:
        dbm -= FALL_DB
        assert dbm > -11.0, "its maker's low alarm is at -14.4 dBm; nobody was warned"
        run.judged(dbm)
    assert run.nics.whole.weights() == {"rail0": 1000, "rail1": 420, "rail2": 1000}
    (row,) = run.nics.rows("risk")
    assert row["data"]["evidence"].split(", ")[0] == "light_trend"
    assert "rx power" in row["data"]["measured"]
    said = run.nics.explain()
    (found,) = [e for e in said["evidence"] if e["detector"] == "prediction"]
    for part in ("failure risk 0.6", "light_trend: received light", "limit in", "now rx power"):
        assert part in found["says"], found["says"]
    assert said["state"] == "up", "a forecast changes no state"
    assert said["nic"]["module"] == "ACME OPTICS AO-Q28-CWDM4 AO24Q00042"
    # Hysteresis: it no longer falls, and still is named.
    for _ in range(30):
        run.judged(dbm)
    assert run.nics.whole.weights()["rail1"] < 1000
    # Another module: another life.
    run.optic.replaced()
    run.judged(-1.0)
    assert run.nics.whole.weights()["rail1"] == 1000
    assert run.nics.rows("risk")[-1]["data"]["named"] is False


async def test_the_child_judges_a_window_and_keeps_its_state(run, tmp_path):
    request = run.window(-1.0)
    assert request["window"]["rx_dbm"][1] == pytest.approx(-1.0, abs=0.05)
    assert request["window"]["rx_dbm"][0] is None
    forecasts, notes = await ask(request)
    assert notes == []
    assert {name: f.risk for name, f in forecasts.items()} == {"rail0": 0, "rail1": 0, "rail2": 0}
    stored = json.loads((tmp_path / "forecast.json").read_text())
    assert stored["rail1"]["module"].endswith("AO24Q00042")
    (tmp_path / "forecast.json").write_text('{"rail1": {"predictor": {"names": []')
    forecasts, notes = await ask(run.window(-1.0))
    assert forecasts["rail1"].risk == 0
    assert "begun anew" in notes[0]


async def test_a_child_that_fails_stops_nothing(run, monkeypatch):
    host = run.host
    watch = NicWatch(host.settings, host.engine, host.nics, host.nic_input, None)
    run.host.nic_input.foretold({"rail1": Forecast(0.7, named=True, evidence={})})
    for broken in ({"state": 5}, {"names": ["rail1"], "window": {}}):
        monkeypatch.setattr("fabricd.nics.watch.make_request", lambda *_, b=broken: b)
        await watch.window()
    assert run.nics.whole.weights()["rail1"] == 400, "the last forecast stands"


async def test_a_child_that_ends_before_it_has_read_is_told_by_its_status_alone(caplog):
    request = {"rows": "x" * (1 << 20)}  # more than a pipe holds
    with pytest.raises(OSError, match="exit status 3"):
        await ask(request, [sys.executable, "-c", "raise SystemExit(3)"])
    await asyncio.sleep(0)
    gc.collect()
    assert not caplog.records, "asyncio logs what nobody waited for when it is collected"


async def test_a_state_that_cannot_be_stored_is_said(run, tmp_path):
    request = run.window(-1.0) | {"state": str(tmp_path / "nowhere" / "forecast.json")}
    answer = child.run(request)
    assert answer["links"]["rail1"]["risk"] == 0
    assert "not stored: No such file or directory" in answer["notes"][0]
