"""Fences on the steer page: what is written, kept over restarts, refused, and found damaged."""

import errno
import os
import struct
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabricd.steer.page import (
    HEADER,
    MAX_FENCES,
    PAGE_SIZE,
    PATHS_AT,
    PageError,
    SteerPage,
    decode,
    fence_number,
    offsets,
)
from fabricd.steer.policy import PathEntry, Plan, RailEntry
from telemetry.events import LinkState as S

PLAN = Plan((RailEntry("rail0", S.UP, 1000),), (PathEntry("rail0", "10.1.0.2", S.DOWN, 0),))
ONE, TWO = "00112233445566ff", "deadbeefdeadbeef"


def published(tmp_path, plan=PLAN) -> SteerPage:
    page = SteerPage(tmp_path / "steer", 7)
    page.open(1)
    page.publish(plan, 1, 2)
    return page


def content(tmp_path) -> bytes:
    return (tmp_path / "steer").read_bytes()


def fences(tmp_path) -> tuple[int, ...]:
    return decode(content(tmp_path)).fences


def test_numbers_are_those_of_the_plugin():
    """nccl_plugin/tests/fences_test.cpp has the same ones."""
    assert fence_number("00112233445566ff") == 0x00112233445566FF
    assert fence_number("DEADBEEFdeadbeef") == 0xDEADBEEFDEADBEEF
    assert fence_number("a") == 0xAF63DC4C8601EC8C
    assert fence_number("an incarnation") == 0xE038C9A552DC25CE
    assert fence_number("") == fence_number("0" * 16) == 0


def test_fences_are_written_beside_the_plan_and_replaced(tmp_path):
    page = published(tmp_path)
    before = decode(content(tmp_path))
    page.set_fences([ONE, TWO, ONE], 3)
    view = decode(content(tmp_path))
    assert view.fences == (int(ONE, 16), int(TWO, 16))
    assert (view.rails, view.paths, view.mode) == (before.rails, before.paths, before.mode)
    assert view.generation == before.generation + 1, "a reader looks at once"
    page.set_fences([TWO], 4)
    assert fences(tmp_path) == (int(TWO, 16),)
    page.set_fences([], 5)
    assert fences(tmp_path) == ()


def test_fences_that_hold_already_write_nothing(tmp_path):
    page = published(tmp_path)
    page.set_fences([ONE], 3)
    before = content(tmp_path)
    page.set_fences([ONE], 4)
    assert content(tmp_path) == before


def test_heartbeats_and_other_plans_keep_them(tmp_path):
    page = published(tmp_path)
    page.set_fences([ONE], 3)
    page.publish(PLAN, 1, 4)
    page.publish(Plan((RailEntry("rail1", S.DOWN, 0),)), 0, 5)
    assert fences(tmp_path) == (int(ONE, 16),)


def test_a_later_daemon_keeps_them_until_it_knows(tmp_path):
    published(tmp_path).set_fences([ONE], 3)
    later = SteerPage(tmp_path / "steer", 8)
    later.open(4)
    with pytest.raises(PageError, match="not written yet"):
        later.set_fences([TWO], 4)
    later.publish(PLAN, 1, 5)
    assert fences(tmp_path) == (int(ONE, 16),)
    later.set_fences([TWO], 6)
    assert fences(tmp_path) == (int(TWO, 16),)


def test_a_page_taken_away_is_made_anew_with_them(tmp_path):
    page = published(tmp_path)
    page.set_fences([ONE], 3)
    (tmp_path / "steer").unlink()
    page.publish(PLAN, 1, 4)
    assert fences(tmp_path) == (int(ONE, 16),)


def test_nobody_is_no_fence(tmp_path):
    page = published(tmp_path)
    page.set_fences(["", "0" * 16, ONE], 3)
    assert fences(tmp_path) == (int(ONE, 16),)


def test_more_than_fit_are_refused_and_change_nothing(tmp_path):
    page = published(tmp_path)
    page.set_fences([ONE], 3)
    with pytest.raises(PageError, match="4097 fences"):
        page.set_fences([f"{i + 1:016x}" for i in range(MAX_FENCES + 1)], 4)
    page.publish(PLAN, 1, 5)
    assert fences(tmp_path) == (int(ONE, 16),)


def test_all_fences_find_room_and_paths_give_way(tmp_path):
    many = tuple(PathEntry("rail0", f"10.{i >> 8}.{i & 255}.1", S.DOWN, 0) for i in range(960))
    page = published(tmp_path, Plan(PLAN.rails, many))
    page.set_fences([f"{i + 1:016x}" for i in range(MAX_FENCES)], 3)
    view = decode(content(tmp_path))
    assert view.fences == tuple(range(1, MAX_FENCES + 1))
    assert len(view.paths) == (PAGE_SIZE - PATHS_AT - 8 * MAX_FENCES) // 64
    page.set_fences([ONE], 4)
    page.publish(Plan(PLAN.rails, many), 1, 5)
    assert len(decode(content(tmp_path)).paths) == 960


def test_a_failed_write_is_no_fence(tmp_path, monkeypatch):
    page = published(tmp_path)

    def fail(*_):
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(PageError):
        page.set_fences([ONE], 3)
    monkeypatch.undo()
    assert page.fences == ()
    page.set_fences([ONE], 4)
    assert fences(tmp_path) == (int(ONE, 16),)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 16), st.integers(1, 255))
def test_any_changed_byte_of_a_fence_is_found(tmp_path, back, flip):
    published(tmp_path).set_fences([ONE, TWO], 3)
    damaged = bytearray(content(tmp_path))
    damaged[PAGE_SIZE - back] ^= flip
    with pytest.raises(PageError, match="CRC of the fences"):
        decode(bytes(damaged))


@given(st.integers(0, 2**32 - 1), st.integers(0, 960))
def test_counts_that_overlap_or_run_out_of_the_page_are_refused(count, paths):
    raw = bytearray(PAGE_SIZE)
    struct.pack_into("<IHHQII", raw, 0, 0x52545346, 1, 128, 2, PAGE_SIZE, 0)
    at = offsets(HEADER)
    struct.pack_into("<I", raw, at["path_count"], paths)
    fits = count <= MAX_FENCES and PATHS_AT + 64 * paths + 8 * count <= PAGE_SIZE
    crc = zlib.crc32(bytes(8 * count)) if fits else 0
    struct.pack_into("<II", raw, at["fence_count"], count, crc)
    crc = zlib.crc32(raw[24:128])
    struct.pack_into("<I", raw, at["crc"], zlib.crc32(raw[PATHS_AT : PATHS_AT + 64 * paths], crc))
    if fits:
        assert decode(bytes(raw)).fences == (0,) * count
    else:
        with pytest.raises(PageError):
            decode(bytes(raw))
