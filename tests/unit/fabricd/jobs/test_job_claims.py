"""Errors that pages claim: evidence from two users or root, or beside a fault of this host."""

import os
from dataclasses import replace

import pytest
from stats_page_files import NOW, SECOND, lay, make

from fabricd.jobs.error_claims import MOST_ERRORS, WINDOW_NS, ErrorClaims
from fabricd.jobs.owners import Owners, subordinate_ranges
from fabricd.jobs.stats_pages import Jobs
from telemetry.statsdir import StatsDirectory

ALICE, MALLORY = 1001, 1002
OWNERS = Owners(frozenset({0}), (range(100_000, 165_536),))


@pytest.fixture
def pages(tmp_path):
    """Makes the page of a user's process with so many errors."""

    def made(uid, errors, *, pid=7, start_ns=NOW + SECOND):
        lay(tmp_path, make(pid=pid, start_ns=start_ns, errors=errors, job=b"train"), pid, start_ns)
        reader = StatsDirectory(tmp_path, seen=lambda *_: True)
        (page,) = [found for found in reader.scan(NOW) if found.page.pid == pid]
        page.path.unlink()
        return replace(page, uid=uid)

    return made


def test_one_users_error_is_a_claim_with_its_name_for_five_minutes(pages):
    claims = ErrorClaims(OWNERS, NOW)
    page = pages(MALLORY, 3)
    claims.update([page], NOW, fault=False)
    assert claims.confirmed == 0
    assert (claims.unconfirmed.uid, claims.unconfirmed.job) == (MALLORY, "train")
    claims.update([page], NOW + WINDOW_NS, fault=False)
    assert claims.unconfirmed.errors == 3
    claims.update([page], NOW + WINDOW_NS + 1, fault=False)
    assert claims.unconfirmed is None
    claims.update([page], NOW + WINDOW_NS + 2, fault=True)
    assert claims.confirmed == 0, "what is old is not confirmed by what comes"


def test_roots_word_is_enough(pages):
    claims = ErrorClaims(OWNERS, NOW)
    claims.update([pages(0, 2)], NOW, fault=False)
    assert (claims.confirmed, claims.unconfirmed) == (2, None)


def test_two_users_confirm_each_other_and_subordinate_uids_do_not(pages):
    claims = ErrorClaims(OWNERS, NOW)
    own, subordinate = pages(MALLORY, 2), pages(100_005, 1, pid=8)
    claims.update([own, subordinate], NOW, fault=False)
    assert claims.confirmed == 0
    other = pages(ALICE, 1, pid=9)
    claims.update([own, subordinate, other], NOW + WINDOW_NS, fault=False)
    assert (claims.confirmed, claims.unconfirmed) == (4, None)
    claims.update([own, subordinate, other], NOW + WINDOW_NS + 1, fault=False)
    assert claims.confirmed == 4, "each error counts once"


@pytest.mark.parametrize("first", ["fault", "error"])
def test_a_fault_that_this_host_saw_confirms(pages, first):
    claims = ErrorClaims(OWNERS, NOW)
    page = pages(ALICE, 1)
    claims.update([page] if first == "error" else [], NOW, fault=first == "fault")
    assert claims.confirmed == 0
    claims.update([page], NOW + WINDOW_NS, fault=first == "error")
    assert (claims.confirmed, claims.unconfirmed) == (1, None)


def test_an_old_fault_confirms_nothing(pages):
    claims = ErrorClaims(OWNERS, NOW)
    claims.update([], NOW, fault=True)
    claims.update([pages(MALLORY, 1)], NOW + WINDOW_NS + 1, fault=False)
    assert claims.confirmed == 0


def test_errors_of_before_the_daemons_start_are_no_news(pages):
    claims = ErrorClaims(OWNERS, NOW)
    old = pages(0, 5, start_ns=NOW - SECOND)
    claims.update([old], NOW, fault=False)
    assert claims.confirmed == 0
    claims.update([replace(old, page=replace(old.page, errors=6))], NOW + 1, fault=False)
    assert claims.confirmed == 1


def test_absurd_counts_and_those_that_fall_are_bounded(pages):
    claims = ErrorClaims(OWNERS, NOW)
    page = pages(0, 2**63)
    claims.update([page], NOW, fault=False)
    assert claims.confirmed == MOST_ERRORS
    claims.update([replace(page, page=replace(page.page, errors=0))], NOW + 1, fault=False)
    assert claims.confirmed == MOST_ERRORS


def test_subordinate_ranges_are_those_of_subuid():
    text = "alice:100000:65536\n# note\n\nbob:x:1\ncarol:200000\n1003:300000:10\n"
    assert subordinate_ranges(text) == (range(100_000, 165_536), range(300_000, 300_010))


def test_this_process_and_root_are_trusted(tmp_path):
    owners = Owners.of(tmp_path / "none")
    assert owners == Owners(frozenset({0, os.geteuid()}))
    assert not owners.confirm([])


async def test_a_scan_tells_claims_and_rows_name_the_user(tmp_path, monkeypatch):
    jobs = Jobs(tmp_path, ["rail0"], NOW - SECOND, owners=OWNERS)
    event = {"kind": 7, "time_ns": NOW - 5}
    lay(tmp_path, make(pid=7, heartbeat_ns=NOW, errors=2, events=[event], start_ns=NOW), 7, NOW)
    scan = jobs._directory.scan
    monkeypatch.setattr(
        jobs._directory, "scan", lambda *args: [replace(p, uid=MALLORY) for p in scan(*args)]
    )
    (row,) = await jobs.scan(settled=True, now=NOW)
    assert row.data["uid"] == MALLORY
    figures = jobs.plugin()
    assert (figures.errors, figures.confirmed_errors, figures.error_claim_uid) == (2, 0, MALLORY)
