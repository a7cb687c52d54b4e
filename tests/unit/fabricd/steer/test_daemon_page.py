"""The steer page: seqlock, CRC, epochs, take-over, hostile content."""

import os
import random
import struct
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabricd.steer.page import (
    HEADER,
    PAGE_SIZE,
    PATHS_AT,
    RAILS_AT,
    PageError,
    SteerPage,
    crc_of,
    decode,
    offsets,
    packed_address,
    unpacked_address,
)
from fabricd.steer.policy import PathEntry, Plan, RailEntry
from telemetry.events import LinkState as S

UP2 = Plan((RailEntry("rail0", S.UP, 1000), RailEntry("rail1", S.UP, 1000)))
DOWN = Plan(
    (RailEntry("rail0", S.DOWN, 0), RailEntry("rail1", S.UP, 1000)),
    (PathEntry("rail1", "10.1.0.2", S.DOWN, 0), PathEntry("rail1", "fd00::2", S.DOWN, 0)),
)


def fresh(tmp_path, incarnation=7) -> SteerPage:
    page = SteerPage(tmp_path / "steer", incarnation)
    page.open(1)
    return page


def read(tmp_path):
    return decode((tmp_path / "steer").read_bytes())


def test_created_whole_and_empty(tmp_path):
    fresh(tmp_path)
    view = read(tmp_path)
    assert view.rails == ()
    assert view.incarnation == 7
    assert (tmp_path / "steer").stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.iterdir()] == ["steer"], "no temporary file is left"


def test_what_is_written_is_read(tmp_path):
    page = fresh(tmp_path)
    assert page.publish(DOWN, 1, 55)
    view = read(tmp_path)
    assert (view.heartbeat_ns, view.mode) == (55, 1)
    assert [(r.netdev, r.state, r.weight, r.epoch, r.since_ns) for r in view.rails] == [
        ("rail0", S.DOWN, 0, 1, 55),
        ("rail1", S.UP, 1000, 1, 55),
    ]
    assert [(p.netdev, p.remote, p.weight) for p in view.paths] == [
        ("rail1", "10.1.0.2", 0),
        ("rail1", "fd00::2", 0),
    ]


def test_heartbeat_changes_neither_generation_nor_epochs(tmp_path):
    page = fresh(tmp_path)
    page.publish(DOWN, 1, 10)
    first = read(tmp_path)
    assert not page.publish(DOWN, 1, 20)
    second = read(tmp_path)
    assert second.heartbeat_ns == 20
    assert second.generation == first.generation
    assert second.rails == first.rails
    assert second.seq > first.seq
    assert second.seq % 2 == 0


def test_each_change_raises_its_own_epoch_and_the_generation(tmp_path):
    page = fresh(tmp_path)
    page.publish(UP2, 1, 1)
    page.publish(DOWN, 1, 2)
    before = read(tmp_path)
    page.publish(UP2, 1, 3)
    page.publish(DOWN, 1, 4)
    view = read(tmp_path)
    assert view.generation == before.generation + 2
    assert view.rails[0].epoch == before.rails[0].epoch + 2
    assert view.rails[1].epoch == before.rails[1].epoch
    assert view.paths[0].epoch > before.paths[0].epoch, "an exception that came back is a change"
    assert view.rails[0].since_ns == 4
    assert view.rails[1].since_ns == 1


def test_mode_alone_is_a_change(tmp_path):
    page = fresh(tmp_path)
    page.publish(UP2, 0, 1)
    assert page.publish(UP2, 1, 2)


def test_next_daemon_writes_into_the_same_file(tmp_path):
    page = fresh(tmp_path)
    page.publish(DOWN, 1, 5)
    page.close()
    holder = os.open(tmp_path / "steer", os.O_RDONLY)
    other = SteerPage(tmp_path / "steer", 8)
    other.open(9)
    assert {(e.netdev, e.weight) for e in other.taken_over if not e.remote} == {
        ("rail0", 0),
        ("rail1", 1000),
    }
    other.publish(UP2, 1, 10)
    view = decode(os.pread(holder, PAGE_SIZE, 0))
    assert view.incarnation == 8
    assert view.generation == 2
    assert [r.epoch for r in view.rails] == [2, 1]


def test_writer_that_died_in_the_middle_is_taken_over(tmp_path):
    page = fresh(tmp_path)
    page.publish(DOWN, 1, 5)
    with (tmp_path / "steer").open("r+b") as file:
        file.seek(offsets(HEADER)["seq"])
        file.write(struct.pack("<Q", 1001))
    inode = (tmp_path / "steer").stat().st_ino
    other = SteerPage(tmp_path / "steer", 8)
    other.open(9)
    other.publish(UP2, 1, 10)
    assert read(tmp_path).seq == 1004
    assert (tmp_path / "steer").stat().st_ino == inode


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"\0" * PAGE_SIZE, os.urandom(PAGE_SIZE)],
    ids=["empty", "one byte", "zeros", "random"],
)
def test_garbage_under_our_name_is_replaced(tmp_path, content):
    (tmp_path / "steer").write_bytes(content)
    page = fresh(tmp_path)
    page.publish(DOWN, 1, 5)
    assert read(tmp_path).rails[0].weight == 0


def test_link_under_our_name_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"\0" * PAGE_SIZE)
    (tmp_path / "steer").symlink_to(victim)
    fresh(tmp_path).publish(DOWN, 1, 5)
    assert victim.read_bytes() == b"\0" * PAGE_SIZE
    assert not (tmp_path / "steer").is_symlink()


@pytest.mark.parametrize("how", ["unlink", "replace", "truncate"])
def test_file_taken_away_while_running_is_made_anew(tmp_path, how):
    page = fresh(tmp_path)
    page.publish(DOWN, 1, 5)
    path = tmp_path / "steer"
    if how == "unlink":
        path.unlink()
    elif how == "replace":
        (tmp_path / "x").write_bytes(b"?")
        (tmp_path / "x").rename(path)
    else:
        os.truncate(path, 100)
    page.publish(DOWN, 1, 6)
    assert read(tmp_path).heartbeat_ns == 6
    assert read(tmp_path).rails[0].weight == 0


def test_directory_that_cannot_be_written_is_an_error_and_counted(tmp_path):
    page = fresh(tmp_path)
    (tmp_path / "steer").unlink()
    (tmp_path / "steer").mkdir()
    with pytest.raises(PageError):
        page.publish(DOWN, 1, 6)
    (tmp_path / "steer").rmdir()
    assert page.publish(DOWN, 1, 7), "the change is not forgotten"
    assert read(tmp_path).rails[0].weight == 0


def test_more_entries_than_fit_are_left_out(tmp_path):
    many = tuple(PathEntry("rail0", f"10.{i >> 8}.{i & 255}.1", S.DOWN, 0) for i in range(1200))
    page = fresh(tmp_path)
    page.publish(Plan(UP2.rails, many), 1, 5)
    assert len(read(tmp_path).paths) == 960


def test_long_names_are_cut_and_terminated(tmp_path):
    page = fresh(tmp_path)
    page.publish(Plan((RailEntry("x" * 15, S.UP, 1000),)), 1, 5)
    assert read(tmp_path).rails[0].netdev == "x" * 15


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, PAGE_SIZE - 1), st.integers(1, 255))
def test_any_changed_byte_of_the_used_part_is_found(tmp_path, at, flip):
    page = fresh(tmp_path)
    page.publish(DOWN, 1, 5)
    content = bytearray((tmp_path / "steer").read_bytes())
    content[at] ^= flip
    used = at < RAILS_AT + 2 * 64 or PATHS_AT <= at < PATHS_AT + 2 * 64
    seq = 8 <= at < 16
    if used and not seq:
        with pytest.raises(PageError):
            decode(bytes(content))
    elif not seq:
        decode(bytes(content))


@given(st.binary(max_size=300))
def test_decode_of_any_bytes_raises_only_its_own_error(head):
    page = head + b"\0" * (PAGE_SIZE - len(head))
    with pytest.raises(PageError):
        decode(page)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_counts_out_of_range_are_refused_before_they_are_used(rails, paths):
    raw = bytearray(PAGE_SIZE)
    struct.pack_into("<IHHQII", raw, 0, 0x52545346, 1, 128, 2, PAGE_SIZE, 0)
    struct.pack_into("<II", raw, offsets(HEADER)["rail_count"], rails, paths)
    if rails <= 32 and paths <= 960:
        struct.pack_into("<I", raw, offsets(HEADER)["crc"], crc_of(bytes(raw), rails, paths))
        assert len(decode(bytes(raw)).rails) == rails
    else:
        with pytest.raises(PageError):
            decode(bytes(raw))


@given(st.ip_addresses())
def test_addresses_survive(address):
    raw = packed_address(str(address))
    assert len(raw) == 16
    if address.version == 4:
        assert raw[:12] == b"\0" * 10 + b"\xff\xff"
    back = unpacked_address(raw)
    assert packed_address(back) == raw


def test_reader_beside_a_busy_writer_never_sees_a_mixture(tmp_path):
    """Every page that passes the checks says one weight everywhere."""
    page = fresh(tmp_path)
    plans = [
        Plan(tuple(RailEntry(f"rail{i}", S.UP, weight) for i in range(32)))
        for weight in range(1, 9)
    ]
    page.publish(plans[0], 1, 1)
    stop = threading.Event()

    def write():
        source = random.Random(1)
        now = 2
        while not stop.is_set():
            page.publish(source.choice(plans), 1, now)
            now += 1

    writer = threading.Thread(target=write)
    writer.start()
    fd = os.open(tmp_path / "steer", os.O_RDONLY)
    good = torn = 0
    deadline = time.monotonic() + 60
    try:
        while good < 1000:
            assert time.monotonic() < deadline, f"{good} good, {torn} torn"
            try:
                view = decode(os.pread(fd, PAGE_SIZE, 0))
            except PageError:
                torn += 1
                continue
            good += 1
            assert len({rail.weight for rail in view.rails}) == 1
    finally:
        stop.set()
        writer.join()
        os.close(fd)
