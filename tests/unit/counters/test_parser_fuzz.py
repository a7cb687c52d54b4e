"""Damaged inputs by the thousand in each run, ten million for each parser nightly."""

import random

import pytest

from lab.parserfuzz import TARGETS, damaged, fuzz


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_inputs(target):
    got = fuzz(target, 3_000)
    assert got.finding == ""
    assert got.inputs == 3_000
    # Some inputs are still whole enough to be read, some are not; a sysfs file is only skipped.
    assert 0 < got.refused < 3_000 or target == "sysfs"


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", TARGETS)
def test_ten_million_damaged_inputs(target):
    assert fuzz(target, 10_000_000, seed=random.randrange(1 << 32)).finding == ""


def test_a_parser_that_crashes_is_found(monkeypatch):
    def crashes(data):
        return data[3]

    monkeypatch.setitem(TARGETS, "pause", (crashes, [b"12345"]))
    got = fuzz("pause", 10_000)
    assert got.finding.startswith("IndexError")
    assert len(bytes.fromhex(got.finding.rsplit(": ", 1)[1])) < 4
    assert fuzz("pause", 10_000).finding == got.finding


def test_whole_inputs_are_read():
    for parse, wholes in TARGETS.values():
        for whole in wholes:
            parse(whole)


def test_damage_is_the_same_for_a_seed():
    one, two = ([damaged(b"abcdef", b"xyz", random.Random(7)) for _ in range(5)] for _ in range(2))
    assert one == two
