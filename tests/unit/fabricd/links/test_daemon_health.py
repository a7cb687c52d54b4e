"""Health of one link in virtual time: down fast, up slow, damped only on the way back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.links.damping import DampingRules
from fabricd.links.health import Facts, Health, HoldRules, share
from telemetry.events import LinkState as S

pytestmark = pytest.mark.virtual_time

MS, SEC = 10**6, 10**9
GOOD = Facts()
NO_CARRIER = Facts(carrier=False, downs=1)
BAD = Facts(fault="silent", clean=False)
UNCLEAR = Facts(clean=False)
DOUBT = Facts(suspect="s")


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


@pytest.mark.parametrize("unwell", [BAD, UNCLEAR])
def test_back_from_admin_the_silence_of_before_is_no_fault(unwell):
    h = health()
    h.update(GOOD, 0)
    assert states(h.update(Facts(admin_up=False, carrier=False), SEC)) == [S.ADMIN]
    assert states(h.update(unwell, 2 * SEC)) == [S.UNKNOWN]
    assert h.due_at() == 4 * SEC
    assert h.update(GOOD, 2 * SEC + 100 * MS) == []
    assert h.due_at() == 2 * SEC + 300 * MS
    assert h.update(unwell, 2 * SEC + 200 * MS) == []  # routes come back one by one
    assert h.update(GOOD, 3 * SEC) == []
    assert states(h.update(GOOD, 3 * SEC + 200 * MS)) == [S.UP]
    assert h.damping.penalty(4 * SEC) == 0


def test_back_from_admin_what_stays_counts():
    h = health()
    h.update(Facts(admin_up=False, carrier=False), 0)
    assert states(h.update(BAD, SEC)) == [S.UNKNOWN]
    assert h.update(BAD, 3 * SEC - 1) == []
    assert states(h.update(BAD, 3 * SEC)) == [S.UP]
    assert states(h.update(BAD, 3 * SEC + 1)) == [S.DOWN]


def test_back_from_admin_without_carrier_nothing_is_due_in_the_past():
    h = health()
    h.update(Facts(admin_up=False, carrier=False), 0)
    h.update(Facts(carrier=False), SEC)
    for now in range(2 * SEC, 20 * SEC, SEC):
        assert h.update(Facts(carrier=False), now) == []
        assert h.due_at() > now
    assert h.update(GOOD, 20 * SEC) == []
    assert states(h.update(GOOD, 20 * SEC + 200 * MS)) == [S.UP]


def test_silent_when_first_seen_is_up_and_then_down():
    h = health()
    assert states(h.update(BAD, 0)) == [S.UP]
    assert states(h.update(BAD, 1)) == [S.DOWN]


def test_without_carrier_silence_is_never_a_failure():
    h = health()
    for now in range(0, 60 * SEC, SEC):
        assert h.update(Facts(carrier=False, fault="silent"), now) == []
    assert h.due_at() is None


def test_down_at_once_up_after_hold_down():
    h = health()
    h.update(GOOD, 0)
    assert states(h.update(NO_CARRIER, 5)) == [S.DOWN]
    assert h.fault_was_hard
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
    h = Health(DampingRules(max_transitions=0), HoldRules())
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


def test_without_clean_evidence_it_stays_down():
    h = health()
    h.update(GOOD, 0)
    h.update(NO_CARRIER, 0)
    assert h.update(UNCLEAR, SEC) == []
    assert h.update(Facts(carrier=None), SEC) == []
    assert states(h.update(GOOD, 2 * SEC)) == [S.HOLD]


def in_hold(**hold) -> Health:
    """Lost its carrier at 0, has it again since 1 s."""
    h = health(**hold)
    h.update(GOOD, 0)
    h.update(NO_CARRIER, 0)
    h.update(GOOD, SEC)
    assert h.state is S.HOLD
    return h


def test_probes_that_lag_behind_the_carrier_restart_the_hold_and_publish_nothing():
    h = in_hold()
    penalty = h.damping.penalty(SEC)
    for now in range(SEC, 2 * SEC, 10 * MS):
        assert h.update(BAD, now) == []
    assert h.reason == "hold goes on: silent"
    assert h.fault_was_hard, "it is out for its carrier, whatever the probes say now"
    assert h.damping.hourly(now) == 1, "the link was out already: no down, no penalty"
    assert h.damping.penalty(now) < penalty
    h.update(GOOD, 2 * SEC)
    assert h.due_at() == 4 * SEC
    assert h.update(GOOD, 4 * SEC - 1) == []
    assert states(h.update(GOOD, 4 * SEC)) == [S.PROBATION]


def test_bad_and_good_probes_in_turn_never_leave_the_hold_nor_publish():
    h = in_hold()
    for now in range(SEC, 61 * SEC, 100 * MS):
        bad = now // (100 * MS) % 10 == 0
        assert h.update(BAD if bad else GOOD, now) == []
    assert h.damping.hourly(now) == 1
    back = run_until(h, GOOD, now, S.PROBATION)
    assert back - now <= 2 * SEC, "bounded by the hold-down after the last bad evidence"


def test_carrier_loss_in_hold_is_penalised_and_published_only_when_it_stays():
    h = in_hold()
    h.update(BAD, SEC)
    assert h.update(NO_CARRIER, SEC + 1) == []
    assert h.damping.hourly(SEC + 1) == 2
    assert h.reason == "hold goes on: carrier lost"
    assert h.due_at() == 11 * SEC
    assert states(h.update(Facts(carrier=False), 11 * SEC)) == [S.DOWN]
    assert h.fault_was_hard


def test_what_traffic_may_use_is_what_is_published():
    h = health()
    done = h.update(GOOD, 0) + h.update(NO_CARRIER, SEC) + h.update(GOOD, 2 * SEC)
    for now in range(2 * SEC, 20 * SEC, 100 * MS):
        done += h.update(GOOD, now)
    assert [t.to_state for t in done] == [S.UP, S.DOWN, S.HOLD, S.PROBATION, S.UP]
    assert [t.to_state for t in done if t.published] == [S.DOWN, S.PROBATION]


WINDOW = 600 * SEC


def most_within(times, window):
    return max((sum(t - window < other <= t for other in times) for t in times), default=0)


def flapping(hz, seconds, down_share=0.5):
    """Carrier up and down at that pace, seen each 10 ms and at once on a change."""
    h, period = health(), round(SEC / hz)
    published, downs, carrier = [], 0, True
    for now in range(0, seconds * SEC, min(10 * MS, period // 10)):
        is_down = now >= SEC and (now - SEC) % period < down_share * period
        lost = is_down and carrier
        carrier = not is_down
        downs += lost
        moves = h.update(Facts(carrier=carrier, downs=int(lost), clean=carrier), now)
        published += [now for t in moves if t.published]
    return h, published, downs


@pytest.mark.parametrize("hz", [0.02, 0.05, 0.2, 1, 10])
def test_ten_minutes_of_flaps_publish_three_transitions_at_most(hz):
    h, published, downs = flapping(hz, 600)
    assert len(published) <= 3
    assert h.damping.hourly(600 * SEC) == downs, "each one counted"
    assert downs >= 600 * hz * 0.98 - 1


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 60_000)), max_size=25))
def test_no_pattern_of_flaps_publishes_more_and_a_down_is_never_late(pattern):
    h = health()
    h.update(GOOD, 0)
    now, published = 0, []
    for quiet_ms, down_ms in pattern:
        for _ in range(quiet_ms // 500 + 1):
            now += 500 * MS
            published += [now for t in h.update(GOOD, now) if t.published]
        carried = share(h.state) > 0
        moves = h.update(NO_CARRIER, now + 1)
        assert not carried or states(moves) == [S.DOWN], "away at once, whatever the budget"
        published += [now for t in moves if t.published]
        for _ in range(down_ms // 500 + 1):
            now += 500 * MS
            published += [
                now for t in h.update(Facts(carrier=False, clean=False), now) if t.published
            ]
    assert most_within(published, WINDOW) <= 3
    for later in range(now, now + WINDOW + 15 * SEC, SEC):
        h.update(GOOD, later)
    assert h.state is S.UP, "and it comes back"


def test_worse_and_better_in_turn_are_bounded_too():
    h = health()
    published = []
    for second in range(3600):
        worse = "" if second // 30 % 2 else "loss"
        moves = h.update(Facts(worse=worse), second * SEC)
        published += [second * SEC for t in moves if t.published]
    assert most_within(published, WINDOW) <= 3


def test_an_operator_can_vouch_for_a_link():
    h, _, _ = flapping(1, 60)
    assert h.state is S.HOLD
    h.damping.forgive()
    assert run_until(h, GOOD, 61 * SEC, S.PROBATION) <= 63 * SEC + 10 * MS


def test_reboot_keeps_damping_and_what_was_out():
    h, _, downs = flapping(1, 60)
    document = json.loads(json.dumps(h.save(60 * SEC)))
    after = health()
    after.restore_history(document, now=7 * SEC, elapsed_ns=5 * SEC)
    assert after.state is S.HOLD
    assert after.damping.hourly(7 * SEC) == downs
    assert after.damping.penalty(7 * SEC) == pytest.approx(h.damping.penalty(65 * SEC))
    assert after.update(GOOD, 8 * SEC) == []
    back = run_until(after, GOOD, 9 * SEC, S.PROBATION)
    assert 40 * SEC < back < 62 * SEC, "what was left of the suppression"
    up = health()
    up.update(GOOD, 0)
    fresh = health()
    fresh.restore_history(up.save(SEC), SEC, 0)
    assert fresh.state is S.UNKNOWN, "what was up has to be seen up again"
    with pytest.raises((KeyError, TypeError, ValueError)):
        fresh.restore_history(document | {"damping": {}}, 0, 0)
    assert fresh.state is S.UNKNOWN


def test_a_verdict_that_does_not_go_away_in_hold_is_a_fault_of_its_own():
    h = in_hold()
    h.update(BAD, 2 * SEC)
    assert h.due_at() == 12 * SEC
    assert h.update(BAD, 12 * SEC - 1) == []
    assert states(h.update(BAD, 12 * SEC)) == [S.DOWN]
    assert h.reason == "silent"
    assert h.out_by_probes
    assert h.damping.hourly(12 * SEC) == 2
    assert h.due_at() is None


def test_a_verdict_with_a_gap_is_not_one_that_stays():
    h = in_hold()
    h.update(BAD, 2 * SEC)
    h.update(GOOD, 3 * SEC)
    for now in (4, 8, 13):
        assert h.update(BAD, now * SEC) == []


@pytest.mark.parametrize("doubt", [Facts(clean=False), Facts(carrier=None, clean=False)])
def test_inconclusive_evidence_neither_restarts_nor_ends_a_hold(doubt):
    h = in_hold()
    for now in range(SEC, 6 * SEC, 10 * MS):
        assert h.update(doubt, now) == []
        assert h.due_at() is None, "nothing is due before there is evidence"
    assert states(h.update(GOOD, now)) == [S.PROBATION], "the hold-down passed long ago"
    h = in_hold()
    for now in range(SEC, 3 * SEC, 10 * MS):
        assert h.update(doubt if now // (10 * MS) % 3 else GOOD, now) == []
    assert states(h.update(GOOD, 3 * SEC)) == [S.PROBATION]


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
    assert states(h.update(GOOD, 3)) == [S.UNKNOWN]
    assert states(h.update(GOOD, 3 + 200 * MS)) == [S.UP]


@pytest.mark.parametrize("facts", [NO_CARRIER, Facts(fault="x")])
@pytest.mark.parametrize("before", [Facts(suspect="s"), Facts(worse="w")])
def test_down_from_suspect_and_degraded(before, facts):
    h = health()
    h.update(GOOD, 0)
    h.update(before, 1)
    h.update(before, SEC)
    assert h.state in (S.SUSPECT, S.DEGRADED)
    assert states(h.update(facts, SEC + 1)) == [S.DOWN]


def test_degraded_comes_and_goes():
    h = health()
    h.update(GOOD, 0)
    assert states(h.update(Facts(worse="w"), 4)) == [S.DEGRADED]
    assert states(h.update(GOOD, 5)) == [S.UP]


def test_suspect_takes_time_to_come_and_more_to_go():
    h = health()
    h.update(GOOD, 0)
    assert h.update(DOUBT, SEC) == []
    assert h.due_at() == SEC + 200 * MS
    assert h.update(DOUBT, SEC + 200 * MS - 1) == []
    assert states(h.update(DOUBT, SEC + 200 * MS)) == [S.SUSPECT]
    assert h.due_at() is None
    assert h.update(GOOD, 2 * SEC) == []
    assert h.due_at() == 4 * SEC
    assert h.update(DOUBT, 4 * SEC - 1) == [], "not over yet: counts anew"
    assert h.update(GOOD, 4 * SEC) == []
    assert states(h.update(GOOD, 6 * SEC)) == [S.UP]
    assert h.due_at() is None


def test_doubts_that_come_and_go_do_not_chatter():
    h = health()
    h.update(GOOD, 0)
    for now in range(0, 60 * SEC, 10 * MS):
        assert h.update(DOUBT if now // (100 * MS) % 3 == 0 else GOOD, now) == []
    assert states(h.update(DOUBT, now) + h.update(DOUBT, now + SEC)) == [S.SUSPECT]
    for now in range(62 * SEC, 120 * SEC, 10 * MS):
        assert h.update(DOUBT if now // (100 * MS) % 10 == 0 else GOOD, now) == []


def test_an_old_doubt_is_forgotten_over_an_outage():
    h = health()
    h.update(GOOD, 0)
    h.update(DOUBT, SEC)
    h.update(NO_CARRIER, 2 * SEC)
    back = run_until(h, GOOD, 3 * SEC, S.PROBATION)
    up = run_until(h, GOOD, back, S.UP)
    assert h.update(DOUBT, up + 1) == []


def test_restore_keeps_state_penalty_and_age():
    h = health()
    h.update(GOOD, 0)
    h.update(NO_CARRIER, 10 * SEC)
    h.update(GOOD, 11 * SEC)
    other = health()
    other.restore(h.save(11 * SEC), now=50 * SEC, elapsed_ns=SEC)
    assert other.state is S.HOLD
    assert other.fault_was_hard
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
