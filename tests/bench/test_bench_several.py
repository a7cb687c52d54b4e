"""The pure parts of `bench plugin`, part several: ends of jobs, rows, losses during a fence."""

import pytest

from bench.follow import HostEvent
from bench.plugin import repairs, several
from bench.plugin.checked import Ends, JobFailedError
from bench.plugin.repairs import Repair, Scale
from bench.plugin.several import Further, Goodput
from lab.services.perf import RankResult
from telemetry.statspage import StatsEvent, StatsEventKind

MS = 10**6
RATE = 100_000_000


def rank(status=0, said=(), **end):
    return RankResult(0, status, end, [{"text": text} for text in said])


CLEAN = {"errors": 0, "corrupt_bytes": 0, "bytes": 1000}


@pytest.mark.parametrize(
    ("result", "corrupt", "errors"),
    [
        (rank(**CLEAN), 0, 0),
        (rank(**CLEAN | {"corrupt_bytes": 7}), 7, 0),
        (rank(3, **CLEAN), 1, 0),  # says so by its status alone
        (rank(1, ["send: broken"], **CLEAN), 0, 1),
        (rank(1, ["send: broken"], **CLEAN | {"errors": 1}), 0, 1),  # the same one
        (rank(1, **CLEAN), 0, 1),
        (rank(-9), 0, 1),
    ],
)
def test_what_a_rank_did_wrong_is_counted(result, corrupt, errors):
    ends = Ends()
    ends.add([rank(**CLEAN), result])
    wrong, failed = ends.rows("job", "2 losses")
    assert (wrong.got, wrong.ok) == (corrupt, corrupt == 0)
    assert (failed.got, failed.ok) == (errors, errors == 0)


def test_a_job_that_stands_still_is_an_error_and_says_why():
    ends = Ends()
    ends.fail(JobFailedError("nothing over rail1"))
    ends.add([rank(**CLEAN)])
    assert ends.rows("job", "1 loss")[1].got == 1
    assert ends.rows("job", "1 loss")[1].note == "1 loss; 0 MB checked; nothing over rail1"


def test_a_job_that_checked_nothing_has_shown_nothing():
    wrong, errors = Ends().rows("job", "0 losses")
    assert wrong.ok
    assert not errors.ok


def test_goodput_meanwhile_is_held_against_the_rails_that_are_left():
    ends = Ends(checked_bytes=1)
    found = {1: Goodput([4.0, 4.0], [3.0, 2.4]), 2: Goodput([4.0], [2.2]), 3: Goodput()}
    *_, row = several.at_once_rows(4, found, ends)
    assert row.got == pytest.approx(0.8)
    assert row.samples == {"k = 1": [1.0, pytest.approx(0.8)], "k = 2": [pytest.approx(1.1)]}
    assert row.asked is None


def test_a_job_that_died_at_once_has_no_goodput():
    assert len(several.at_once_rows(4, {1: Goodput([4.0], [])}, Ends())) == 2


def event(t_ms, kind, detail=0, host="h0", comm=1, path=(0, 0)):
    return HostEvent(host, StatsEvent(0, t_ms * MS, comm, kind, *path, detail))


def test_losses_during_a_fence_and_a_resend():
    down, done = StatsEventKind.PATH_DOWN, StatsEventKind.FENCE_DONE
    events = [
        event(10, down),
        event(11, down, host="h1"),  # the receiver's end: it asks for no fence
        event(12, down, path=(1, 1)),
        event(30, done, detail=375_000),  # 10 ms of three rails of 100 Mbit/s
        event(50, done, path=(1, 1)),
        event(60, done, path=(2, 2)),  # was under way before: not seen from its begin
    ]
    losses = [at * MS for at in (9, 10, 29, 35, 40, 55)]
    further = Further()
    several.count_further(further, events, losses, RATE)
    assert further == Further(losses=6, in_fence=4, in_resend=1)
    several.count_further(further, events, [31 * MS], RATE)
    assert further == Further(losses=7, in_fence=5, in_resend=2)


def test_further_losses_that_hit_nothing_are_a_miss():
    rows = several.further_rows(Further(9, 3, 0), Ends(checked_bytes=1))
    assert [row.ok for row in rows] == [True, True, True, False]


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.5), (2, 1), (5, 8), (10, 8), (100, 8)])
def test_hold_down_doubles_and_ends(failures, seconds):
    assert repairs.FULL.hold_down(failures) == seconds


def test_a_short_hold_down_stays_short():
    assert Scale((1,), 0.01, 1, 1, 1, 1).hold_down(100) == pytest.approx(0.16)


def test_repair_rows():
    found = {"1 flap": Repair(1.0, 0.7, 0.97, 0.7, 0.69), "away": Repair(1.0, 0.7, 0.99, 0.6, 0.69)}
    rows = repairs.repair_rows(found, Ends(checked_bytes=1))
    assert [row.ok for row in rows[2:]] == [False, True, True, False]
    assert rows[2].got == pytest.approx(0.97)
    assert rows[5].got == pytest.approx(0.6 / 0.69)
