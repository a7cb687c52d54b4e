"""fabric-compute as a process, hosts and a mosquitto on loopback: takeovers, kill -9, stop."""

import contextlib
import json

import pytest
from compute_world import Compute, Mosquitto, RealWorld, settings

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def broker(tmp_path):
    broker = Mosquitto(tmp_path / "mosquitto")
    broker.start()
    yield broker
    broker.stop()


@contextlib.asynccontextmanager
async def site(tmp_path, broker, *names, nodes=3, spares=1, mode="migrate", extra=""):
    computes = [Compute(tmp_path, broker, name, extra) for name in names]
    world = RealWorld(settings(broker), nodes=nodes, spares=spares)
    try:
        for one in computes:
            (one.directory / "state").mkdir(mode=0o750)
            one.call("promote", mode)
            one.start()
        yield world, *computes
        for one in computes:
            one.stop()
        assert world.violations == []
    finally:
        for one in computes:
            if one.process is not None:
                one.kill()
                print(one.log.read_text()[-5000:])
        await world.close()


async def test_a_lost_host_is_replaced_though_a_fabric_compute_dies_meanwhile(tmp_path, broker):
    async with site(tmp_path, broker, "c0", "c1") as (world, c0, c1):
        await world.until(lambda: world.step > 3, "the job trains")
        assert world.progress[0] == 1
        await world.kill("h1")
        c0.kill()
        await world.until(lambda: world.takeovers == 1, "the spare has taken over")
        await world.until(lambda: _recoveries(c1) == 1, "the recovery is counted")
        c0.start()
        await world.until(c0.is_ready, "back")
        await world.go(1.0)
        assert world.takeovers == 1, "a restart repeats nothing"
        [job] = json.loads(c1.call("jobs", "--json"))
        assert job["phase"] == "running"
        assert job["generation"] >= 2
        for one in (c0, c1):
            assert json.loads(one.call("ledger", "verify", "--json"))["ok"]
        report = json.loads(c1.call("slo", "report", "--json"))
        assert report["verdict"] == "not enough data"
        assert report["shares"][0]["no_progress_lost"] == 1


def _recoveries(compute):
    return compute.metrics().get(
        'fabric_compute_recoveries_total{class="host",outcome="recovered"}'
    )
