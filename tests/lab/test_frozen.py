"""Ranks that hang are replaced, whatever keeps them, and healthy ones are not: one machine."""

import pytest

from bench.migrate.hangs import play, stopped_while_healthy

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

SHORT = {"FABRIC_TRAIN_HANG_S": "6"}
STEPS = 60
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def undisturbed():
    return play({}, STEPS).end


def test_a_stopped_process_and_a_held_interpreter_are_replaced_and_nothing_changes(undisturbed):
    got = play({"stop": "1:15", "held": "2:35"}, STEPS)
    assert got.reasons == [
        "rank 1: hangs: it is stopped by a signal, for 5 s already",
        "rank 2: hangs: it runs no Python, for a call holds the interpreter's lock (GIL), for 5 s "
        "already",
    ]
    assert got.end == undisturbed
    assert max(got.replaced_s.values()) < PATIENCE_S


def test_a_silent_loop_is_replaced_by_its_own_limit(undisturbed):
    got = play({"silent": "0:20"}, STEPS, **SHORT)
    assert got.reasons == [
        "rank 0: hangs: it works without a collective, for 6 s already, and the others wait"
    ]
    assert got.end == undisturbed
    assert got.replaced_s["silent"] > 6.0


@pytest.mark.nightly
def test_without_limits_of_ones_own_a_silent_loop_is_waited_for_half_a_minute(undisturbed):
    got = play({"silent": "3:20"}, STEPS)
    assert "it works without a collective, for 30 s already" in got.reasons[0]
    assert got.end == undisturbed
    assert got.replaced_s["silent"] > 30.0


@pytest.mark.nightly
def test_healthy_ranks_with_uneven_steps_evaluations_checkpoints_and_pauses_go_on():
    assert stopped_while_healthy(4.0, 0.5, FABRIC_TRAIN_HANG_S="16") == []
