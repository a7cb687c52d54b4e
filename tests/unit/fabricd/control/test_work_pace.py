"""Who asks much waits: measured work, for each user and for all who may only ask."""

import pytest

from fabricd.control.places import Standing
from fabricd.control.work_pace import BURST_S, SHARE, SHARE_OF_READERS, WorkPace

READER, ADMIN, ROOT = Standing.READER, Standing.ADMIN, Standing.ROOT


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def share_of(pace, clock, users, seconds=300.0, slice_s=0.01):
    """What part of a core they get who ask all the time, after a burst."""
    had = 0.0
    for rank, uid in users:
        pace.spent(rank, uid, BURST_S / len(users))
    while clock.now < seconds:
        for rank, uid in users:
            if not pace.delay_s(rank, uid):
                pace.spent(rank, uid, slice_s)
                had += slice_s
        clock.now += slice_s
    return had / seconds


@pytest.mark.parametrize(
    ("users", "most"),
    [
        ([(READER, 1)], SHARE),
        ([(ADMIN, 1)], SHARE),
        ([(READER, uid) for uid in range(1, 9)], SHARE_OF_READERS),
        ([(ADMIN, uid) for uid in range(1, 4)], 3 * SHARE),
    ],
)
def test_so_much_of_a_core_and_no_more(users, most):
    clock = Clock()
    assert share_of(WorkPace(clock), clock, users) == pytest.approx(most, rel=0.25)


def test_who_asks_now_and_then_never_waits_and_root_does_not_at_all():
    clock = Clock()
    pace = WorkPace(clock)
    pace.spent(READER, 1, BURST_S)
    assert pace.delay_s(READER, 1) == 0
    pace.spent(READER, 1, 0.3)
    assert pace.delay_s(READER, 1) == pytest.approx(0.3 / SHARE)
    assert pace.delay_s(ADMIN, 2) == 0, "what readers have is not taken from admins"
    pace.spent(ROOT, 0, 100.0)
    assert pace.delay_s(ROOT, 0) == 0
    clock.now = 100.0
    assert pace.delay_s(READER, 1) == 0
