"""Of which boot a clock page is: sleep, boots, and a file that is damaged."""

import json
from dataclasses import replace

import pytest

from clocksync.page.clock_page import NOTHING, Line, State
from fabricd.clock import boot as module
from fabricd.clock.boot import Boot, BootError, load, parse, still, store, this_boot

SECOND = 10**9
RAW = 5_000 * SECOND
LINE = Line(
    RAW, 1_800_000_000 * SECOND, 10e-6, 800_000.0, 1e-8, 0.0, SECOND, 3600 * SECOND, State.LOCKED,
    7, epoch=40,
)  # fmt: skip
THEN = Boot("one", 70 * SECOND)


@pytest.mark.parametrize(
    ("now", "bound"),
    [
        (THEN, 800_000.0),
        (THEN._replace(asleep_ns=70 * SECOND + 500), 800_000.0),
        (THEN._replace(asleep_ns=70 * SECOND - 500), 800_000.0),
        (THEN._replace(asleep_ns=70 * SECOND + 700_000), 1_500_000.0),
        (THEN._replace(asleep_ns=70 * SECOND + 900_000), None),
        (THEN._replace(asleep_ns=3670 * SECOND), None),
        (THEN._replace(asleep_ns=0), None),
        (THEN._replace(boot="two"), None),
        (THEN._replace(boot=""), None),
    ],
    ids=[
        "same",
        "looked",
        "looked before",
        "dozed",
        "slept",
        "an hour",
        "less",
        "booted",
        "not known",
    ],
)
def test_what_a_line_is_worth(now, bound):
    found = still(LINE, THEN, now, RAW + SECOND)
    assert found == (None if bound is None else replace(LINE, bound_ns=bound))


def test_two_boots_that_are_not_known_are_not_the_same():
    assert still(LINE, Boot("", 0), Boot("", 0), RAW + SECOND) is None


def test_what_nobody_said_is_taken_as_it_is():
    assert still(LINE, None, THEN, RAW) == LINE
    assert still(NOTHING, THEN, Boot("two", 0), RAW) == NOTHING


def test_a_line_that_has_ended_absorbs_nothing():
    now = THEN._replace(asleep_ns=70 * SECOND + 20_000)
    assert still(LINE, THEN, now, RAW + 3601 * SECOND) is None


def test_what_is_stored_is_there_and_whole(tmp_path):
    assert load(tmp_path) is None
    store(tmp_path, THEN)
    store(tmp_path, THEN._replace(asleep_ns=5))
    assert load(tmp_path) == THEN._replace(asleep_ns=5)
    assert [path.name for path in tmp_path.iterdir()] == [module.NAME]


@pytest.mark.parametrize(
    "said",
    [
        b"", b"{", b"[" * 3000, b"\xff", b"null", b"{}", b"[]",
        json.dumps({"boot": 5, "asleep_ns": 0}).encode(),
        json.dumps({"boot": "x" * 65, "asleep_ns": 0}).encode(),
        json.dumps({"boot": "x", "asleep_ns": 1.5}).encode(),
        json.dumps({"boot": "x", "asleep_ns": True}).encode(),
        json.dumps({"boot": "x", "asleep_ns": 0, "more": 1}).encode(),
    ],
)  # fmt: skip
def test_what_says_nothing_is_refused(said):
    with pytest.raises(BootError):
        parse(said)


def test_a_file_that_has_no_end_is_damaged(tmp_path):
    (tmp_path / module.NAME).write_bytes(b" " * 5000)
    with pytest.raises(BootError, match="too long"):
        load(tmp_path)


def test_the_kernel_names_its_boot(tmp_path):
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("abc\n")
    assert this_boot(9, tmp_path) == Boot("abc", 9)
    assert this_boot(9, tmp_path / "nowhere") == Boot("", 9)
