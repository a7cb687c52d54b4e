"""The overrides: drains, windows and switches on a whole host, and what is refused."""

import errno
import json
import os
import stat
import time

import pytest
from whole_host import LINKS, WholeHost

from fabricd.operate.manager import OverrideError
from fabricd.operate.overrides import Kind
from telemetry.service import durable

BY = {"reason": "new optics", "by": "uid 0"}


@pytest.fixture
def make(tmp_path):
    made = []

    def whole(**arguments):
        made.append(WholeHost(tmp_path, **arguments))
        return made[-1]

    yield whole
    for each in made:
        each.close()


async def test_a_drained_link_carries_nothing_and_comes_back(make):
    whole = make()
    whole.operate("drain", "rail1", seconds=None, **BY)
    assert whole.weights() == {"rail0": 1000, "rail1": 0, "rail2": 1000}
    assert whole.states()["rail1"] == "ADMIN"
    assert whole.link("rail1").health.reason == "drained by uid 0: new optics"
    whole.operate("undrain", "rail1", "uid 0")
    assert whole.weights()["rail1"] == 1000
    assert whole.states()["rail1"] == "UP"
    assert whole.reasons() == ["drain until taken back: new optics", "drain taken back: new optics"]


async def test_the_work_on_a_drained_link_is_no_failure(make):
    whole = make()
    whole.operate("drain", "rail1", seconds=None, **BY)
    link = whole.link("rail1")
    for _ in range(5):  # the cable is pulled, again and again
        link.carrier, link.pending_downs = False, 1
        whole.host.evaluator.step()
        link.carrier = True
        whole.host.evaluator.step()
    assert link.health.damping.penalty(time.monotonic_ns()) == 0
    whole.operate("undrain", "rail1", "uid 0")
    assert whole.weights()["rail1"] == 1000


async def test_an_undrained_link_is_vouched_for(make):
    whole = make()
    link = whole.link("rail1")
    for _ in range(3):
        link.carrier, link.pending_downs = False, 2
        whole.host.evaluator.step()
        link.carrier = True
        whole.host.evaluator.step()
    assert link.health.damping.is_suppressed(time.monotonic_ns())
    whole.operate("drain", "rail1", seconds=None, **BY)
    whole.operate("undrain", "rail1", "uid 0")
    assert whole.weights()["rail1"] == 1000
    assert link.health.damping.penalty(time.monotonic_ns()) == 0


async def test_undrained_with_the_cable_out_it_carries_nothing(make):
    whole = make()
    whole.operate("drain", "rail1", seconds=None, **BY)
    whole.link("rail1").carrier = False
    whole.operate("undrain", "rail1", "uid 0")
    assert whole.weights()["rail1"] == 0


async def test_never_the_last_that_carries(make):
    whole = make()
    whole.link("rail0").carrier = False
    whole.host.evaluator.step()
    whole.operate("drain", "rail1", seconds=None, **BY)
    with pytest.raises(OverrideError, match="rail2 is the last link that carries"):
        whole.operate("drain", "rail2", seconds=None, **BY)
    assert whole.weights() == {"rail0": 0, "rail1": 0, "rail2": 1000}


async def test_a_drained_link_serves_again_when_all_others_fail(make):
    whole = make()
    whole.operate("drain", "rail1", seconds=None, **BY)
    for name in ("rail0", "rail2"):
        whole.link(name).carrier = False
    whole.host.evaluator.step()
    assert whole.weights() == {"rail0": 0, "rail1": 1000, "rail2": 0}, "a job outranks a plan"


async def test_a_host_that_observes_drains_nothing(make):
    whole = make()
    whole.host.publisher.modes._stop_file.touch()
    whole.host.publisher.modes.check_stop()
    wanted = r"the stop file \S+/STOP is present.*once that file is removed: rm \S+/STOP"
    with pytest.raises(OverrideError, match=wanted):
        whole.operate("drain", "rail1", seconds=None, **BY)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda d, h: d.drain(h, "eth9", seconds=None, **BY), 'no link "eth9"; allowed: rail0'),
        (lambda d, h: d.drain(h, "rail0", seconds=10**9, **BY), "allowed: from 1 s to 30 d"),
        (lambda d, h: d.undrain(h, "rail0", "uid 0"), "rail0 is not drained"),
        (lambda d, h: d.undrain(h, "eth9", "uid 0"), "no link"),
        (lambda d, h: d.open_window(h, "eth9", seconds=60, **BY), "no link"),
        (lambda d, h: d.open_window(h, "rail0", seconds=10**9, **BY), "to 7 d"),
        (lambda d, h: d.close_window(h, "rail0", "uid 0"), "in no maintenance window"),
        (lambda d, h: d.detector_off(h, "nose", seconds=None, **BY), 'no detector "nose"'),
        (lambda d, h: d.detector_on(h, "loss", "uid 0"), "loss is on already"),
        (lambda d, h: d.detector_on(h, "port", "uid 0"), "off by the configuration"),
    ],
)
async def test_what_is_refused_says_why(make, ask, text):
    whole = make(extra='[detectors]\noff = ["port"]\n')
    with pytest.raises(OverrideError, match=text):
        ask(whole.overrides, whole.host.operator.host)


async def test_in_a_window_soft_evidence_and_flaps_have_no_consequence(make):
    whole = make()
    whole.operate("open_window", "rail1", seconds=600, **BY)
    link = whole.link("rail1")
    link.worse = "10 % lost"
    whole.host.evaluator.step()
    assert whole.weights()["rail1"] == 1000
    link.worse = ""
    for _ in range(60):
        link.carrier, link.pending_downs = False, 1
        whole.host.evaluator.step()
        assert whole.weights()["rail1"] == 0, "hard evidence steers all the same"
        link.carrier = True
        whole.host.evaluator.step()
    assert link.health.damping.penalty(time.monotonic_ns()) == 0
    assert link.health.damping.publications(time.monotonic_ns()) == 0
    assert whole.reasons("daemon") == [], "nobody is told to replace the cable"
    other = whole.link("rail0")
    other.worse = "10 % lost"
    whole.host.evaluator.step()
    assert whole.weights()["rail0"] == 500, "another link's evidence counts"


async def test_a_window_over_the_host_is_over_all_links_and_ends(make):
    whole = make()
    whole.operate("open_window", "host", seconds=600, **BY)
    assert whole.host.engine.overrides.planned == {"rail0", "rail1", "rail2"}
    whole.host.operator.tick(time.monotonic_ns() + 601 * 10**9)
    assert whole.host.engine.overrides.planned == frozenset()
    assert whole.reasons()[-1] == "maintenance of host ended: its time was over: new optics"


async def test_a_detector_that_is_off_judges_nothing(make):
    whole = make()
    link = whole.link("rail1")
    whole.operate("detector_off", "carrier", seconds=60, **BY)
    link.carrier, link.pending_downs = False, 1
    whole.host.evaluator.step()
    assert whole.weights()["rail1"] == 1000
    whole.operate("detector_on", "carrier", "uid 0")
    assert whole.weights()["rail1"] == 0
    link.carrier = True
    whole.operate("detector_off", "loss", seconds=60, **BY)
    whole.link("rail0").worse = "10 % lost"
    whole.host.evaluator.step()
    assert whole.weights()["rail0"] == 1000
    whole.host.operator.tick(time.monotonic_ns() + 61 * 10**9)
    assert whole.weights()["rail0"] == 500, "the switch ended"


async def test_all_that_is_in_force_survives_a_restart(make):
    before = make()
    before.operate("drain", "rail1", seconds=900, **BY)
    before.operate("open_window", "host", seconds=900, **BY)
    before.operate("detector_off", "loss", seconds=None, **BY)
    after = make()
    assert after.refused == []
    assert after.weights()["rail1"] == 0
    assert after.host.engine.overrides == before.host.engine.overrides
    document = after.host.operator.document()
    assert [w["target"] for w in document["drain"]] == ["rail1"]
    assert 0 < document["drain"][0]["left_s"] <= 900
    assert document["detectors"]["loss"] is False


@pytest.mark.parametrize("gone", ["overrides", "wishes"])
async def test_the_file_is_read_by_its_old_key_and_by_its_new_one(make, tmp_path, gone):
    """For one release it has both: a version before knows ``wishes`` alone and keeps the drain."""
    before = make()
    before.operate("drain", "rail1", seconds=None, **BY)
    path = tmp_path / "operator.json"
    document = json.loads(path.read_text())
    assert document["overrides"] == document["wishes"]
    del document[gone]
    path.write_text(json.dumps(document))
    after = make()
    assert after.refused == []
    assert after.states()["rail1"] == "ADMIN"


async def test_garbage_in_the_file_is_set_aside(make, tmp_path):
    (tmp_path / "operator.json").write_text("{garbage")
    whole = make()
    assert "kept as operator.json.unusable-" in whole.refused[0]
    assert len(list(tmp_path.glob("operator.json.unusable-*"))) == 1
    whole.operate("drain", "rail1", seconds=None, **BY)
    assert make().states()["rail1"] == "ADMIN"


async def test_a_directory_that_cannot_be_synced_is_no_refusal(make, monkeypatch):
    """The file says the new thing by then: undone, the override would be back after a start."""
    whole = make()
    fsync = os.fsync

    def fails_for_directories(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(durable.os, "fsync", fails_for_directories)
    whole.operate("drain", "rail1", seconds=None, **BY)
    assert whole.weights()["rail1"] == 0
    assert list(make().overrides.active.of(Kind.DRAIN)) == ["rail1"]


async def test_a_full_disk_refuses_the_override_and_changes_nothing(make, monkeypatch):
    whole = make()
    link = whole.link("rail0")
    for carrier, downs in ((False, 2), (True, 0)):
        link.carrier, link.pending_downs = carrier, downs
        whole.host.evaluator.step()
    whole.operate("drain", "rail0", seconds=60, **BY)

    def full(_fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(OverrideError, match=r"not stored, so not done: .*No space left"):
        whole.operate("drain", "rail1", seconds=None, **BY)
    with pytest.raises(OverrideError, match="not stored"):
        whole.operate("undrain", "rail0", "uid 0")
    assert whole.weights() == {"rail0": 0, "rail1": 1000, "rail2": 1000}
    assert whole.link("rail0").health.damping.penalty(time.monotonic_ns()) > 0, "nobody vouched"
    whole.host.operator.tick(time.monotonic_ns() + 61 * 10**9)
    assert whole.weights()["rail0"] == 1000, "an end needs no disk"
    assert whole.overrides.errors == 1
    monkeypatch.undo()
    whole.host.operator.tick(time.monotonic_ns())
    assert make().overrides.active.of(Kind.DRAIN) == {}, "stored when the disk had room"


GROUPS = LINKS.replace("rail = 0\n", 'rail = 0\ngroup = "front"\n')


async def test_a_group_is_steered_while_the_rest_observes(make, tmp_path):
    (tmp_path / "mode").write_text("observe\ngroup front steer\n")
    whole = make(links=GROUPS)
    for name in ("rail0", "rail1"):
        whole.link(name).carrier = False
    whole.host.evaluator.step()
    assert whole.weights() == {"rail0": 0, "rail1": 1000, "rail2": 1000}
    would = [row["link"] for row in whole.told if row["kind"] == "would_steer"]
    did = [row["link"] for row in whole.told if row["kind"] == "steer"]
    assert (would, did) == (["rail1"], ["rail0"])


async def test_a_file_that_is_too_long_is_set_aside(make, tmp_path, monkeypatch):
    monkeypatch.setattr("fabricd.operate.store.MAX_BYTES", 100)
    (tmp_path / "operator.json").write_text(" " * 101)
    assert "too long; kept as operator.json.unusable-" in make().refused[0]
