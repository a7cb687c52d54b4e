"""What the endpoint says of faults: in observe as in steer, and no longer than they last."""

import pytest
from whole_host import WholeHost, link_tables, peer_tables

from fabricd.detect.locate import Blame, Kind, Way
from fabricd.detect.loss_rules import LossVerdict
from fabricd.nics.reader import Reading
from fabricd.steer.modes import Mode
from fabricd.views.report import snapshot
from telemetry.counters.identity import bus_info, driver_and_bus, permanent_address
from telemetry.snapshot import LinkInfo, Located


@pytest.fixture
async def whole(tmp_path):
    made = WholeHost(tmp_path, peer_tables(), link_tables(addressed=True))
    yield made
    made.close()


def link(whole, at=1):
    return snapshot(whole.host).links[at]


@pytest.mark.parametrize("mode", [Mode.STEER, Mode.OBSERVE])
async def test_what_is_wanted_is_the_same_in_observe(whole, mode):
    whole.host.publisher.modes.promote(mode)
    whole.link("rail1").carrier = False
    whole.host.evaluator.step()
    shot = link(whole)
    assert (shot.wanted_weight, shot.outages) == (0.0, 1)
    assert shot.weight == (0.0 if mode is Mode.STEER else 1.0)
    assert (link(whole, 0).wanted_weight, link(whole, 0).outages) == (1.0, 0)


async def test_an_outage_counts_once_however_long_it_lasts(whole):
    for carrier in (False, False, True, False):
        whole.link("rail1").carrier = carrier
        whole.host.evaluator.step()
    # Out since the first: what is held is out already, and its fault no outage of its own.
    assert link(whole).outages == 1


async def test_places_of_losses_end_with_them(whole):
    where, engine = whole.host.detectors.localization, whole.host.engine
    own = Blame(Kind.LINK, "h/1", Way.IN, 0.9)
    leaf = Blame(Kind.LEAF, "rail2", confidence=0.95)
    nobody = Blame(Kind.UNKNOWN, "", confidence=1.0)

    def named(at=None, elsewhere=()):
        where.lost(LossVerdict(at=at or {}, elsewhere=elsewhere), engine)
        return [blame.element for blame in where.located()]

    assert named({1: own}, [leaf]) == ["rail2", "h/1"], "the surest first"
    assert named({1: nobody}, [leaf]) == ["rail2"], "asked again, nobody can say"
    assert named({}, [leaf]) == ["rail2"], "the link is well, and a path is not"
    assert named({}, [own]) == [], "paths lose, and the link does not"
    assert named() == []
    where.places.now = [own, *(Blame(Kind.PATH, f"p{i}") for i in range(40))]
    assert len(where.located()) == 16
    assert Located("path", "p0", "both") in snapshot(whole.host).located


async def test_a_link_is_named_by_what_is_behind_it(whole):
    host = whole.host
    assert link(whole).info == LinkInfo(element="h/1", leaf="rail1")
    reading = Reading(
        "rail1", "counters", 1, device="0000:17:00.0", rdma_device="mlx5_0", driver="mlx5_core"
    )
    host.nic_input.nics_read(
        [reading, Reading("rail1", "slow", 2, gauges={"speed": {"speed": 4e11}})]
    )
    wanted = LinkInfo("h/1", "0000:17:00.0", "mlx5_0", "400G", "mlx5_core", "rail1")
    assert link(whole).info == wanted
    host.nic_input.nics_read([Reading("rail1", "slow", 3, gauges={"speed": {"speed": 1e8}})])
    assert link(whole).info.speed == "100M"


def test_a_device_that_is_not_there_has_no_driver():
    assert driver_and_bus("none-such") == ("", "")
    assert permanent_address("none-such") == ""
    assert permanent_address("lo") == "", "it has none"
    info = bytes(100) + b"0000:17:00.0" + bytes(84)
    assert bus_info(info) == "0000:17:00.0"
    assert bus_info(b"") == ""
