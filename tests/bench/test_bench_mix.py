"""The pure parts of ``bench migrate``'s mix: the table, the draw, and what is made of a course."""

import os
from collections import Counter

import pytest

from bench.migrate import failure_table, mix_outcome
from bench.migrate.events import Commit, Draw, Events
from bench.migrate.failure_table import TABLE, TOTAL, Drawn, FailureClass, draw, not_tried
from bench.migrate.jobs import RANKS
from bench.migrate.mix_outcome import Course, Played, outcomes
from bench.migrate.mix_plays import PLAYS
from bench.training.trace import CrashError, Deed, Phase, Trace

STEP_NS = 1_000_000_000
KILL = Drawn(0, "Faulty GPU", "SIGKILL")
TAKEOVER = {"class": "rank", "steps_lost": 0}


def test_the_table_is_the_published_one():
    assert sum(one.count for one in TABLE) == TOTAL
    assert len({one.name for one in TABLE}) == len(TABLE) == 18
    assert [one.count for one in TABLE] == sorted((one.count for one in TABLE), reverse=True)


def test_each_play_of_the_table_can_be_played_and_each_play_is_of_the_table():
    assert {play for one in TABLE for play, _ in one.plays} == PLAYS.keys()
    assert PLAYS.keys() > failure_table.SPOILS


def test_a_seed_says_which_failures_are_drawn():
    assert draw(48, 405) == draw(48, 405)
    assert draw(48, 405) != draw(48, 406)
    assert [one.number for one in draw(5, 1)] == [0, 1, 2, 3, 4]


def test_classes_and_plays_are_drawn_by_their_weights():
    many = draw(20_000, 3)
    classes = Counter(one.failure_class for one in many)
    for one in TABLE:
        assert classes[one.name] / len(many) == pytest.approx(one.count / TOTAL, abs=0.01)
    gpu = Counter(one.play for one in many if one.failure_class == "Faulty GPU")
    hangs = gpu["stopped"] + gpu["stuck in its loop"]
    assert hangs / gpu.total() == pytest.approx(9.9 / (36.1 + 9.9), abs=0.02)


def test_what_was_not_drawn_or_cannot_be_played_is_not_tried():
    table = [FailureClass("a", 5, (("x", 1),)), FailureClass("b", 900, ()),
             FailureClass("c", 1, (("x", 1),))]  # fmt: skip
    drawn = [one for one in draw(20, 1, table) if one.failure_class == "a"]
    assert not any(one.failure_class == "b" for one in draw(20, 1, table))
    assert not_tried(drawn, table) == {"b": "the lab cannot play it", "c": "never drawn"}


def course(*played, steps=12, generation=lambda _: 1, redone=()):
    """Each step takes a second, and is hashed after each fourth; ``redone``: drawn once more."""
    events = Events()
    for step in range(steps):
        for rank in range(RANKS):
            events.draws.append(Draw(step * STEP_NS + 1, rank, rank, step, (1,)))
            events.commits.append(
                Commit((step + 1) * STEP_NS, rank, rank, generation(step), step + 1)
            )
            if (step + 1) % 4 == 0:
                events.states[rank, step + 1].add("right")
    for at_ns, rank, step in redone:
        events.draws.append(Draw(at_ns, rank, rank, step, (1,)))
    return Course(played, events)


def reference():
    return course().events


def at(step):
    """In the middle of a step."""
    return step * STEP_NS + STEP_NS // 2


def test_a_failure_after_which_all_is_as_undisturbed_is_resolved():
    first = Played(KILL, "rank 1", at(2), ledger=(TAKEOVER,))
    second = Played(KILL, "rank 2", at(6), ledger=(TAKEOVER,))
    found = outcomes(course(first, second), reference())
    assert [one.misses for one in found] == [[], []]
    assert [one.next_s for one in found] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("more", "miss"),
    [
        ({"ended": "no spare"}, "the job ended: no spare"),
        ({"person": "killed by hand"}, "killed by hand"),
        ({"ledger": ()}, "the ledger has no record of it"),
        ({"ledger": ({**TAKEOVER, "steps_lost": 2},)}, "2 steps lost, says the ledger"),
    ],
)
def test_what_was_noted_while_it_was_played_is_a_miss(more, miss):
    played = Played(**{"drawn": KILL, "target": "", "at_ns": at(2), "ledger": (TAKEOVER,)} | more)
    (found,) = outcomes(course(played), reference())
    assert found.misses == [miss]


def test_a_failure_that_moves_no_rank_needs_no_record():
    (found,) = outcomes(course(Played(KILL, "", at(2), moves=False)), reference())
    assert found.misses == []


def test_steps_that_are_run_again_are_a_miss_of_the_failure_before_them():
    first = Played(KILL, "", at(3), ledger=(TAKEOVER,))
    second = Played(KILL, "", at(8), ledger=(TAKEOVER,))
    played = course(first, second, redone=[(at(8) + 1, 2, 6)])
    assert [one.misses for one in outcomes(played, reference())] == [[], ["2 steps were run again"]]
    under_way = course(first, second, redone=[(at(8) + 1, 2, 8)])
    assert [one.misses for one in outcomes(under_way, reference())] == [[], []]


def test_a_state_that_differs_is_a_miss_of_the_failure_before_it():
    played = [Played(KILL, "", at(step), ledger=(TAKEOVER,)) for step in (1, 5, 9)]
    wrong = course(*played)
    wrong.events.states[3, 8] = {"right", "wrong"}
    misses = [one.misses for one in outcomes(wrong, reference())]
    assert misses == [[], ["1 of 4 states differ from the undisturbed job's"], []]


def test_a_state_that_the_undisturbed_job_does_not_have_proves_nothing():
    known = reference()
    del known.states[0, 4]
    (found,) = outcomes(course(Played(KILL, "", at(1), ledger=(TAKEOVER,))), known)
    assert found.misses == ["1 of 12 states differ from the undisturbed job's"]


def test_a_failure_without_a_compared_state_of_all_ranks_is_a_miss():
    played = course(Played(KILL, "", at(1), ledger=(TAKEOVER,)), steps=7)
    del played.events.states[3, 4]
    (found,) = outcomes(played, reference())
    assert found.misses == ["no state of all ranks was compared"]


def test_a_job_that_stands_still_is_a_miss():
    (found,) = outcomes(course(Played(KILL, "", at(11) + STEP_NS, ledger=(TAKEOVER,))), reference())
    assert found.misses == ["not all ranks went on"]
    assert found.next_s is None


def test_the_rows_count_every_failure_and_name_each_miss():
    hang = Drawn(1, "NIC", "flap")
    found = [
        mix_outcome.Outcome(KILL, "rank 1", 0.5, (TAKEOVER,)),
        mix_outcome.Outcome(hang, "h1:rail0", 2.0, (), ["the cause"]),
    ]
    rows = {row.name: row for row in mix_outcome.rows(found, 7, "here")}
    share = rows["mix: failures resolved at 0 steps lost, part of all that were drawn"]
    assert (share.got, share.ok) == (50.0, False)
    assert "1 of 2" in share.note
    assert "seed 7" in share.note
    assert rows["mix: misses"].note == "#1 NIC, flap, h1:rail0: the cause"
    assert rows["mix: Faulty GPU (148 in the table), resolved of 1 drawn"].got == 1
    assert rows["mix: NIC (7 in the table), resolved of 1 drawn"].got == 0
    absent = rows["mix: classes of the table that were not tried"]
    assert absent.got == len(TABLE) - 2
    assert "CPU: never drawn" in absent.note


def test_a_process_is_told_what_to_do_where(tmp_path):
    trace = Trace(tmp_path)
    seen = []
    trace.corrupt = seen.append
    trace.control.crash(os.getpid(), Phase.GATE, Deed.CORRUPT)
    for phase in (Phase.FORWARD, Phase.GATE, Phase.GATE):
        trace.phase(phase)
    assert seen == [Phase.GATE]


def test_an_exception_of_a_rank_is_that_of_every_process_with_it(tmp_path):
    trace = Trace(tmp_path)
    trace.control.crash_rank(2, Phase.FORWARD)
    trace.phase(Phase.FORWARD)  # it has no rank yet
    trace.draw(2, 0, (1,))
    for _ in range(2):
        with pytest.raises(CrashError):
            trace.phase(Phase.FORWARD)
