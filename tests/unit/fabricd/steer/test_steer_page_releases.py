"""Steer pages between releases: those before RDMA had weights of its own, and this one."""

import struct
import zlib
from itertools import product

import pytest

from fabricd.steer.page import CRC_FROM, PAGE_SIZE, PATHS_AT, RAILS_AT, SteerPage, decode
from fabricd.steer.policy import PathEntry, Plan, RailEntry, RdmaEntry
from telemetry.events import LinkState as S

# As the header file of release 0.1.0 has them.
OLD_HEADER = struct.Struct("<IHHQIIQQQIII68s")
OLD_RAIL = struct.Struct("<16sIHBBQ32s")
OLD_PATH = struct.Struct("<16s16sIHBBQ16s")

TAKEN = RdmaEntry(S.DOWN, 0)
SOUND = RdmaEntry(S.UP, 1000)
PLAN = Plan(
    (RailEntry("rail0", S.UP, 1000, TAKEN), RailEntry("rail1", S.DOWN, 0, SOUND)),
    (PathEntry("rail0", "10.1.0.2", S.DEGRADED, 500, TAKEN),),
)


def read_by_old(page):
    """Weights of rails and paths as release 0.1.0 reads them, by netdev."""
    head = OLD_HEADER.unpack_from(page)
    magic, version, size, seq, page_size, crc, _, _, _, rails, paths, mode, _ = head
    assert (magic, version, size, page_size) == (0x52545346, 1, 128, 65536)
    assert seq % 2 == 0
    assert mode in (0, 1, 2)
    used = page[CRC_FROM : RAILS_AT + 64 * rails] + page[PATHS_AT : PATHS_AT + 64 * paths]
    assert zlib.crc32(used) == crc
    entries = [OLD_RAIL.unpack_from(page, RAILS_AT + 64 * i) for i in range(rails)]
    entries += [OLD_PATH.unpack_from(page, PATHS_AT + 64 * i) for i in range(paths)]
    return [(entry[0].rstrip(b"\0").decode(), entry[-5], entry[-4]) for entry in entries]


def written_by_old(plan):
    """The page of release 0.1.0, which knows nothing of RDMA."""
    rails = b"".join(
        OLD_RAIL.pack(entry.netdev.encode(), 1, entry.weight, entry.state, 0, 5, b"")
        for entry in plan.rails
    )
    head = bytearray(
        OLD_HEADER.pack(0x52545346, 1, 128, 4, 65536, 0, 9, 7, 1, len(plan.rails), 0, 1, b"")
    )
    struct.pack_into("<I", head, 20, zlib.crc32(bytes(head[CRC_FROM:]) + rails))
    return (bytes(head) + rails).ljust(PAGE_SIZE, b"\0")


def published(tmp_path, plan):
    page = SteerPage(tmp_path / "steer", 7)
    page.open(1)
    page.publish(plan, 1, 55)
    page.close()
    return (tmp_path / "steer").read_bytes()


def test_an_older_plugin_finds_ip_where_it_was(tmp_path):
    assert read_by_old(published(tmp_path, PLAN)) == [
        ("rail0", 1000, S.UP), ("rail1", 0, S.DOWN), ("rail0", 500, S.DEGRADED),
    ]  # fmt: skip


def test_what_an_older_daemon_wrote_says_nothing_of_rdma(tmp_path):
    view = decode(written_by_old(PLAN))
    assert [(entry.weight, entry.rdma) for entry in view.rails] == [(1000, None), (0, None)]


def test_a_newer_daemon_takes_over_the_page_of_an_older_one(tmp_path):
    (tmp_path / "steer").write_bytes(written_by_old(PLAN))
    page = SteerPage(tmp_path / "steer", 8)
    page.open(1)
    assert [entry.rdma for entry in page.taken_over] == [None, None]
    page.publish(PLAN, 1, 60)
    view = decode((tmp_path / "steer").read_bytes())
    assert [(entry.epoch, entry.rdma) for entry in view.rails] == [(2, TAKEN), (2, SOUND)]
    page.close()


@pytest.mark.parametrize(("before", "after"), [*product((None, TAKEN, SOUND), repeat=2)])
def test_a_word_on_rdma_alone_is_a_change(tmp_path, before, after):
    page = SteerPage(tmp_path / "steer", 7)
    page.open(1)
    page.publish(Plan((RailEntry("rail0", S.UP, 1000, before),)), 1, 55)
    was = decode((tmp_path / "steer").read_bytes())
    assert page.publish(Plan((RailEntry("rail0", S.UP, 1000, after),)), 1, 66) == (before != after)
    now = decode((tmp_path / "steer").read_bytes())
    changed = int(before != after)
    assert now.generation == was.generation + changed
    assert now.rails[0].epoch == was.rails[0].epoch + changed
    assert (now.rails[0].weight, now.rails[0].rdma) == (1000, after)
    page.close()
