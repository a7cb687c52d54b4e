"""The stats directory as the daemon makes it: not to be listed, readable for the daemon alone."""

import errno
import os
import stat
import struct

import pytest

from fabricd.jobs.directory import STATS_MODE, prepare_stats_directory

ACL = "system.posix_acl_default"


def entries(path):
    raw = os.getxattr(path, ACL)
    assert struct.unpack_from("<I", raw) == (2,)
    return {(tag, who): perm for tag, perm, who in struct.iter_unpack("<HHI", raw[4:])}


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def stats(tmp_path):
    path = tmp_path / "stats"
    if not prepare_stats_directory(path, uid=64003):
        pytest.skip("this file system has neither ACLs nor setgid")
    return path


def test_anybody_makes_files_and_nobody_lists_them(stats):
    assert mode(stats) == STATS_MODE == 0o1733


def test_files_and_directories_made_there_are_the_daemons_to_read(stats):
    try:
        found = entries(stats)
    except OSError:
        pytest.skip("this file system has no ACLs")
    user, group, mask, other, named = 0x01, 0x04, 0x10, 0x20, 0x02
    nobody = 0xFFFFFFFF
    assert found == {
        (user, nobody): 7,
        (named, 64003): 5,
        (group, nobody): 0,
        (mask, nobody): 5,
        (other, nobody): 0,
    }
    page = os.open(stats / "1-1.page", os.O_CREAT | os.O_WRONLY, 0o640)
    os.close(page)
    assert mode(stats / "1-1.page") == 0o640
    raw = os.getxattr(stats / "1-1.page", "system.posix_acl_access")
    own = {(tag, who): perm for tag, perm, who in struct.iter_unpack("<HHI", raw[4:])}
    assert own[named, 64003] & own[mask, nobody] == 4  # to read, nothing else
    assert own[group, nobody] == 0


def test_one_that_is_there_from_before_is_closed(tmp_path):
    path = tmp_path / "stats"
    path.mkdir()
    path.chmod(0o1777)
    assert prepare_stats_directory(path)
    assert mode(path) & 0o777 == 0o733


def test_without_acls_pages_go_to_the_daemons_group(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    path = tmp_path / "stats"
    assert prepare_stats_directory(path)
    assert mode(path) == 0o3733


@pytest.mark.parametrize(("euid", "readable"), [(0, True), (64003, False)])
def test_somebody_elses_directory_is_readable_for_root_only(tmp_path, monkeypatch, euid, readable):
    def refuse(*_):
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    assert prepare_stats_directory(tmp_path / "stats") is readable
