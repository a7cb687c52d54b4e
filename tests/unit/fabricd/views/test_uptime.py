"""What a daemon does must not depend on how long its machine has been up."""

from types import SimpleNamespace

import pytest
from whole_host import WholeHost

from fabricd.detect.localization import ASK_UNSEEN_NS, Localization
from fabricd.links.carrier_sources import STALL_ROW_NS, CarrierSources
from fabricd.nics.monitor import FORECAST_NS
from fabricd.predict.forecast import Forecast
from fabricd.probes.records import StallRecord

S = 10**9
FORECAST = Forecast(0.7, named=True, evidence={"light_trend": "light falls"}, left_s=7200.0)
uptimes = pytest.mark.parametrize("up_ns", [1, S, 100 * 24 * 3600 * S], ids=["0", "1s", "100d"])


@uptimes
async def test_a_restored_forecast_holds_for_an_hour_from_the_restart(tmp_path, up_ns):
    whole = WholeHost(tmp_path)
    engine, nics = whole.host.engine, whole.host.nics
    whole.host.nic_input.foretold({"rail1": FORECAST})
    saved = engine.save(up_ns)
    whole.close()

    whole = WholeHost(tmp_path)
    engine, nics, link = whole.host.engine, whole.host.nics, whole.link("rail1")
    assert engine.restore(saved, up_ns, 0) == []
    for age in (0, 1, FORECAST_NS // 2, FORECAST_NS):
        assert nics.check(engine, {}, up_ns + age) == ([], False)
        assert link.forecast == FORECAST
    (event,), changed = nics.check(engine, {}, up_ns + FORECAST_NS + 1)
    assert changed
    assert link.forecast is None
    assert "no forecast for an hour" in event.reason
    assert nics.check(engine, {}, up_ns + FORECAST_NS + 2) == ([], False)
    whole.close()


@uptimes
async def test_the_first_stall_of_the_prober_is_told_and_then_one_in_ten_seconds(tmp_path, up_ns):
    whole = WholeHost(tmp_path)
    sources = CarrierSources(
        whole.host.carriers.tracker, whole.host.prober.feed, whole.host.inventory
    )
    told = [
        len(sources._stall(StallRecord(1, up_ns + age, 1, 2, 10**7)))
        for age in (0, 1, STALL_ROW_NS - 1, STALL_ROW_NS)
    ]
    assert told == [1, 0, 0, 1]
    sources.close()
    whole.close()


@uptimes
def test_who_was_never_heard_is_asked_after_at_once_and_then_every_two_seconds(up_ns):
    where = Localization("h")
    path = SimpleNamespace(heard_ever=False, gone=False)
    engine = SimpleNamespace(paths=[path])
    assert where.wants_reports(engine, up_ns)
    where.hear([], up_ns)
    assert not where.wants_reports(engine, up_ns + ASK_UNSEEN_NS - 1)
    assert where.wants_reports(engine, up_ns + ASK_UNSEEN_NS + 1)
