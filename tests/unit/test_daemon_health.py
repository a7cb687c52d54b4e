"""Health of one link in virtual time: down fast, up slow, damped only on the way back."""

import pytest

from fabricd.links.damping import DampingRules
from fabricd.links.health import Facts, Health, HoldRules
from telemetry.events import LinkState as S

MS, SEC = 10**6, 10**9
GOOD = Facts()
NO_CARRIER = Facts(carrier=False, downs=1)


def health(**hold) -> Health:
    return Health(DampingRules(), HoldRules(**hold))


def states(done) -> list[S]:
    return [t.to_state for t in done]


def run_until(h: Health, facts: Facts, start: int, state: S, step: int = 10 * MS) -> int:
    now = start
    while h.state is not state:
        h.update(facts, now)
        now += step
        assert now < start + 300 * SEC
    return now - step


def test_never_seen_up_is_not_a_failure():
    h = health()
    assert h.update(Facts(carrier=False), 0) == []
    assert h.update(Facts(carrier=None), 1) == []
    assert h.update(Facts(carrier=False, fault="silent"), 2) == []
    assert h.state is S.UNKNOWN
    assert h.damping.penalty(2) == 0
    assert states(h.update(GOOD, 3)) == [S.UP]


def test_down_at_once_up_after_hold_down():
    h = health()
    h.update(GOOD, 0)
    assert states(h.update(NO_CARRIER, 5)) == [S.DOWN]
    assert h.hard
    assert states(h.update(GOOD, SEC)) == [S.HOLD]
    assert h.due_at() == 3 * SEC
    assert h.update(GOOD, 3 * SEC - 1) == []
    assert states(h.update(GOOD, 3 * SEC)) == [S.PROBATION]
    assert h.due_at() == 13 * SEC
    assert states(h.update(GOOD, 13 * SEC)) == [S.UP]
    assert h.due_at() is None


def test_a_blip_already_over_goes_down_and_to_hold_at_once():
    h = health()
    h.update(GOOD, 0)
    assert states(h.update(Facts(downs=7), 5)) == [S.DOWN, S.HOLD]
    assert h.damping.hourly(5) == 7
    assert h.reason == "healthy again"


def test_blips_in_hold_start_the_hold_again_without_new_states():
    h = health()
    h.update(GOOD, 0)
    h.update(Facts(downs=1), 0)
    assert h.update(Facts(downs=1), SEC) == []
    assert h.due_at() == 3 * SEC
    assert h.update(GOOD, 2 * SEC) == []
    assert states(h.update(GOOD, 3 * SEC)) == [S.PROBATION]


def test_fault_in_probation_goes_down_and_waits_longer():
    h = health()
    h.update(GOOD, 0)
    h.update(NO_CARRIER, 0)
    first = run_until(h, GOOD, 1, S.PROBATION)
    for _ in range(2):
        h.update(NO_CARRIER, first)
        back = run_until(h, GOOD, first + 1, S.PROBATION)
    assert back - first > 10 * SEC, "suppressed"
    assert first < 3 * SEC


def test_suppression_ends_at_its_maximum():
    h = health()
    h.update(GOOD, 0)
    h.update(Facts(downs=10_000), 0)
    back = run_until(h, GOOD, 0, S.PROBATION)
    assert back == pytest.approx(60 * SEC, abs=20 * MS)


def test_not_clean_keeps_it_down_and_a_relapse_resets_the_hold():
    h = health()
    h.update(GOOD, 0)
    h.update(NO_CARRIER, 0)
    assert h.update(Facts(clean=False), SEC) == []
    assert states(h.update(GOOD, 2 * SEC)) == [S.HOLD]
    assert h.update(Facts(clean=False), 3 * SEC) == []
    assert h.due_at() is None
    h.update(GOOD, 4 * SEC)
    assert h.due_at() == 6 * SEC


def test_probe_fault_counts_one_penalty_and_is_not_hard():
    h = health()
    h.update(GOOD, 0)
    h.update(Facts(fault="silent"), 1)
    assert h.out_by_probes
    h.update(Facts(fault="silent"), 2)
    assert h.damping.hourly(2) == 1
    h.update(NO_CARRIER, 3)
    assert not h.out_by_probes, "carrier made it hard"


def test_admin_is_not_a_failure():
    h = health()
    h.update(GOOD, 0)
    assert states(h.update(Facts(admin_up=False, carrier=False, downs=1), 1)) == [S.ADMIN]
    assert h.update(Facts(admin_up=False, carrier=False), 2) == []
    assert h.damping.penalty(2) == 0
    assert states(h.update(GOOD, 3)) == [S.UNKNOWN, S.UP]


@pytest.mark.parametrize("facts", [NO_CARRIER, Facts(fault="x")])
@pytest.mark.parametrize("before", [Facts(suspect="s"), Facts(worse="w")])
def test_down_from_suspect_and_degraded(before, facts):
    h = health()
    h.update(GOOD, 0)
    h.update(before, 1)
    assert h.state in (S.SUSPECT, S.DEGRADED)
    assert states(h.update(facts, 2)) == [S.DOWN]


def test_soft_states_come_and_go():
    h = health()
    h.update(GOOD, 0)
    assert states(h.update(Facts(suspect="s"), 1)) == [S.SUSPECT]
    assert h.update(Facts(suspect="s"), 2) == []
    assert states(h.update(GOOD, 3)) == [S.UP]
    assert states(h.update(Facts(worse="w"), 4)) == [S.DEGRADED]
    assert states(h.update(GOOD, 5)) == [S.UP]


def test_restore_keeps_state_penalty_and_age():
    h = health()
    h.update(GOOD, 0)
    h.update(NO_CARRIER, 10 * SEC)
    h.update(GOOD, 11 * SEC)
    other = health()
    other.restore(h.save(11 * SEC), now=50 * SEC, elapsed_ns=SEC)
    assert other.state is S.HOLD
    assert other.hard
    assert 50 * SEC - other.since_ns == SEC
    other.update(GOOD, 50 * SEC)
    assert other.due_at() == 52 * SEC, "the hold begins anew"


def test_restore_of_garbage_changes_nothing():
    h = health()
    h.update(GOOD, 0)
    good = h.save(0)
    for key, value in (("state", "SIDEWAYS"), ("age_ns", "x"), ("damping", 3)):
        with pytest.raises((KeyError, TypeError, ValueError)):
            h.restore(good | {key: value}, 0, 0)
        assert h.state is S.UP
