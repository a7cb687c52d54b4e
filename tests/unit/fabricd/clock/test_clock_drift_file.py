"""The rate that outlives a boot: what is kept, when it counts, and files that are damaged."""

import json
import random
from dataclasses import asdict

import pytest
from structlog.testing import capture_logs

from clocksync.mesh.host import MeshHost
from clocksync.mesh.model import HostRules, Status
from clocksync.page.clock_page import State
from fabricd.clock import drift_file
from fabricd.clock.drift_file import Model, ModelError, RawClock, load, parse, raw_clock, store
from fabricd.clock.rate import STORE_S, RateKeeper

SECOND = 10**9
WALL = 1_800_000_000.0
STEADY = RawClock("boot-b", steady=True)
MEASURED = RawClock("boot-b", steady=False)
KEPT = Model(-12.5e-6, WALL, "boot-a", steady=True)


def test_what_is_stored_is_read(tmp_path):
    assert load(tmp_path) is None
    store(tmp_path, KEPT)
    assert load(tmp_path) == KEPT


@pytest.mark.parametrize(
    ("kept", "now", "days", "used"),
    [
        (KEPT, STEADY, 0, True),
        (KEPT, STEADY, 1000, True),
        (KEPT, STEADY, 10_000, False),
        (KEPT, MEASURED, 0, True),
        (Model(3e-6, WALL, "boot-a", steady=True), MEASURED, 0, False),
        (Model(3e-6, WALL, "boot-a", steady=False), STEADY, 0, False),
        (Model(3e-6, WALL, "boot-b", steady=False), MEASURED, 0, True),
        (Model(1e-7, WALL, "boot-a", steady=True), STEADY, 0, False),
        (Model(3e-6, WALL, "", steady=False), RawClock("", steady=False), 0, False),
    ],
)
def test_a_rate_counts_where_it_is_better_than_none(kept, now, days, used):
    wall = WALL + 86_400 * days
    assert kept.start(now, wall) == (kept.rate if used else 0.0)
    assert kept.error(now, wall) >= kept.error(now, WALL) > 0


def test_a_host_that_begins_a_mesh_goes_on_at_its_rate():
    core = MeshHost(7, 100, 0, 1, HostRules(listen_ns=0), KEPT.rate)
    core.step(SECOND, 10**18)
    line = core.step(2 * SECOND, 10**18 + SECOND)
    assert line.slope == pytest.approx(KEPT.rate)
    minute = line.at(62 * SECOND)
    # The crystal is fast by 12.5 ppm: at its nominal rate time would be 750 us ahead by now.
    assert minute.ns - line.fabric_ns == pytest.approx(60 * SECOND - 750_000, abs=5)


class Core:
    """What the keeper looks at."""

    def __init__(self):
        self.status = Status(state=State.LOCKED, neighbours=2, slope=5e-6)


def test_only_what_others_share_is_learnt_and_not_too_often(tmp_path):
    keeper, core = RateKeeper(tmp_path, STEADY), Core()
    assert keeper.start() == 0.0
    for second in range(59):
        keeper.look(core, second, WALL)
        keeper.wait()
    assert load(tmp_path) is None
    keeper.look(core, 61, WALL)
    keeper.wait()
    assert load(tmp_path) == Model(5e-6, WALL, "boot-b", steady=True)
    core.status.slope = 6e-6
    keeper.look(core, 62, WALL)
    keeper.wait()
    assert load(tmp_path).rate == 5e-6
    core.status.neighbours = 0
    keeper.look(core, 61 + STORE_S, WALL)
    keeper.wait()
    assert load(tmp_path).rate == 5e-6, "alone a host learns nothing"
    core.status.neighbours = 1
    for second in (500, 561):
        keeper.look(core, second, WALL)
        keeper.wait()
    assert load(tmp_path).rate == 6e-6
    assert RateKeeper(tmp_path, STEADY).start(WALL) == 6e-6


def test_a_place_that_cannot_be_written_is_complained_of_once_and_is_no_end(tmp_path):
    place = tmp_path / "rate"
    keeper, core = RateKeeper(place, STEADY), Core()
    with capture_logs() as said:
        for second in range(0, 2000, 30):
            keeper.look(core, second, WALL)
            keeper.wait()
    (complaint,) = said
    assert complaint["event"] == "the clock's rate is not kept"
    assert complaint["log_level"] == "warning"
    assert str(place) in complaint["reason"]
    place.mkdir()
    with capture_logs() as said:
        keeper.look(core, 2000 + STORE_S, WALL)
        keeper.wait()
    assert said == []
    assert load(place) == Model(5e-6, WALL, "boot-b", steady=True)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"\xff", b"{" * 4000, json.dumps(asdict(KEPT) | {"rate": 1e-3}).encode(),
     json.dumps(asdict(KEPT) | {"rate": float("nan")}).encode(),
     json.dumps(asdict(KEPT) | {"rate": True}).encode(),
     json.dumps(asdict(KEPT) | {"boot": 3}).encode(),
     json.dumps(asdict(KEPT) | {"steady": 1}).encode(),
     json.dumps(asdict(KEPT) | {"learnt_s": 10**400}).encode(),
     json.dumps(asdict(KEPT) | {"more": 1}).encode(), b" " * 5000],
)  # fmt: skip
def test_what_is_no_model_is_left_out(tmp_path, data):
    (tmp_path / drift_file.NAME).write_bytes(data)
    with pytest.raises(ModelError):
        load(tmp_path)
    assert RateKeeper(tmp_path, STEADY).start() == 0.0


def test_any_bytes_are_a_model_or_refused():
    rng = random.Random(3)
    sound = json.dumps(asdict(KEPT)).encode()
    refused = 0
    for _ in range(5000):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = parse(bytes(data))
        except ModelError:
            refused += 1
        else:
            assert abs(found.start(STEADY, WALL)) <= drift_file.MOST_RATE
    assert 1000 < refused < 5000


@pytest.mark.parametrize(
    ("source", "flags", "steady"),
    [("tsc", "fpu tsc_known_freq", True), ("tsc", "fpu", False),
     ("hpet", "tsc_known_freq", False), ("arch_sys_counter", "", True), ("", "", False)],
)  # fmt: skip
def test_whether_the_next_boot_has_the_same_rate_the_kernel_says(tmp_path, source, flags, steady):
    place = tmp_path / "devices/system/clocksource/clocksource0"
    place.mkdir(parents=True)
    (place / "current_clocksource").write_text(source + "\n")
    (tmp_path / "cpuinfo").write_text(f"flags\t: {flags}\n")
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("abc\n")
    assert raw_clock(tmp_path, tmp_path) == RawClock("abc", steady)
