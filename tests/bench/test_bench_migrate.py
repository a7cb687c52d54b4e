"""The pure parts of ``bench migrate``: what processes recorded, and what is made of it."""

import os

import pytest

from bench.migrate import planned, takeovers
from bench.migrate.events import (
    ChangeOver,
    Commit,
    Events,
    Resumed,
    changes_over,
    merge_steps,
    parse_events,
    resumed,
    wrong_samples,
    wrong_states,
)  # fmt: skip
from bench.migrate.takeovers import Fault, Play
from bench.training.samples import BATCH, SAMPLES, Sampler, samples_of
from bench.training.trace import CrashError, Phase, Trace, read_page

WORLD = 2


def expected(steps):
    return {
        (rank, step): samples_of(step, rank, WORLD)
        for rank in range(WORLD)
        for step in range(steps)
    }


def draw(at, rank, step, samples=None):
    numbers = samples_of(step, rank, WORLD) if samples is None else samples
    return f"draw {at} {rank} {step} {','.join(map(str, numbers))}\n"


def commit(at, rank, generation, step):
    return f"commit {at} {rank} {generation} {step}\n"


def test_a_trace_is_read_as_it_was_written(tmp_path):
    trace = Trace(tmp_path)
    trace.draw(1, 7, (3, 4))
    trace.phase(Phase.OPTIMIZER)
    trace.commit(1, 2, 8)
    trace.state(1, 8, "ab")
    page = read_page(tmp_path, os.getpid())
    assert (page.phase, page.rank, page.step, page.committed) == (Phase.OPTIMIZER, 1, 8, 2)
    events = parse_events({9: (tmp_path / f"events.{os.getpid()}").read_text()})
    assert [(one.pid, one.rank, one.step, one.samples) for one in events.draws] == [
        (9, 1, 7, (3, 4))
    ]
    assert [(one.generation, one.step) for one in events.commits] == [(2, 8)]
    assert events.states == {(1, 8): {"ab"}}


def test_a_process_crashes_once_where_the_benchmark_says(tmp_path):
    trace = Trace(tmp_path)
    trace.control.crash(os.getpid(), Phase.BACKWARD)
    trace.phase(Phase.FORWARD)
    with pytest.raises(CrashError, match="BACKWARD"):
        trace.phase(Phase.BACKWARD)
    trace.phase(Phase.BACKWARD)


def test_a_process_has_no_page_before_it_made_one(tmp_path):
    assert read_page(tmp_path, 1) is None
    (tmp_path / "page.1").write_bytes(b"")
    assert read_page(tmp_path, 1) is None


def test_the_line_of_a_process_that_died_while_it_wrote_does_not_count():
    assert parse_events({1: commit(5, 0, 1, 1) + "commit 6 0 1"}).commits == [Commit(5, 1, 0, 1, 1)]


@pytest.mark.parametrize("line", ["commit 1 2\n", "commit a 0 1 1\n", "\n", "draw 1 0 0\n"])
def test_lines_that_are_no_events_are_refused(line):
    with pytest.raises(ValueError, match=r"no event|invalid literal"):
        parse_events({1: line})


def test_an_epoch_has_every_sample_once():
    steps = SAMPLES // (BATCH * WORLD)
    for epoch in (0, 1):
        taken = [
            sample
            for step in range(epoch * steps, (epoch + 1) * steps)
            for rank in range(WORLD)
            for sample in samples_of(step, rank, WORLD)
        ]
        assert sorted(taken) == list(range(SAMPLES))
    assert samples_of(0, 0, WORLD) != samples_of(steps, 0, WORLD)


def test_a_sampler_goes_on_where_its_state_says():
    first, second = Sampler(WORLD), Sampler(WORLD)
    for step in range(3):
        assert first.take(1) == samples_of(step, 1, WORLD)
    second.load_state_dict(first.state_dict())
    assert second.take(0) == samples_of(3, 0, WORLD)


def test_a_job_has_resumed_when_its_last_rank_has_committed_in_a_later_generation():
    text = commit(10, 0, 1, 5) + commit(11, 1, 1, 5)
    # Rank 0 was behind the gate at the fault: its commit is still one of the old generation.
    text += commit(13, 0, 1, 6) + commit(30, 0, 2, 7) + commit(40, 1, 2, 6) + commit(50, 1, 2, 7)
    events = parse_events({1: text})
    assert resumed(events, 12, WORLD) == Resumed(2, 40, 0)
    assert resumed(events, 12, WORLD + 1) is None
    assert resumed(events, 12, 1) == Resumed(2, 30, 0)  # survivors that do not wait for the rest
    assert resumed(events, 45, WORLD) is None


def test_steps_that_are_run_again_are_lost():
    text = commit(10, 0, 1, 25) + commit(10, 1, 1, 25) + commit(90, 0, 2, 21) + commit(91, 1, 2, 21)
    assert resumed(parse_events({1: text}), 12, WORLD) == Resumed(2, 91, 5)


def test_a_step_that_a_survivor_had_voted_for_is_applied_late_and_not_lost():
    # Rank 0 has applied step 6, rank 1 has not: it does in the next generation, without a draw.
    before = {1: commit(10, 0, 1, 6), 2: draw(5, 1, 5)}
    after = {1: commit(40, 0, 2, 7), 2: commit(30, 1, 2, 6) + commit(41, 1, 2, 7)}
    events = parse_events({pid: before[pid] + after[pid] for pid in before})
    assert resumed(events, 12, WORLD) == Resumed(2, 40, 0)
    again = {1: after[1], 2: draw(20, 1, 5) + after[2]}
    events = parse_events({pid: before[pid] + again[pid] for pid in before})
    assert resumed(events, 12, WORLD) == Resumed(2, 40, 1), "it was run again"


def test_a_batch_counts_by_its_last_attempt():
    lost = draw(1, 0, 0) + draw(1, 1, 0, (1, 2))  # an attempt that came to nothing
    done = draw(2, 0, 0) + draw(2, 1, 0) + commit(3, 0, 2, 1) + commit(3, 1, 2, 1)
    assert wrong_samples(parse_events({1: lost + done}), expected(1)) == (0, 0)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", (2, 0)),
        (draw(1, 0, 0), (1, 0)),
        (draw(1, 0, 0) + draw(1, 1, 0, samples_of(1, 1, WORLD)), (1, 0)),
        (draw(1, 0, 0) + draw(1, 1, 0) + draw(2, 1, 1), (1, 0)),
        (draw(1, 0, 0) + draw(1, 1, 0) + commit(2, 0, 1, 1) + draw(3, 0, 0), (0, 1)),
        (draw(1, 0, 0) + draw(1, 1, 0) + commit(2, 0, 1, 1) + commit(3, 0, 2, 1), (0, 1)),
    ],
)
def test_batches_that_were_dropped_changed_or_doubled_are_counted(text, wrong):
    assert wrong_samples(parse_events({1: text}), expected(1)) == wrong


def test_states_that_differ_or_have_no_reference_are_wrong():
    found = parse_events({1: "state 1 0 5 aa\nstate 1 1 5 bb\nstate 1 0 6 cc\nstate 2 0 7 dd\n"
                             "state 3 0 7 ee\n"})  # fmt: skip
    reference = parse_events({1: "state 1 0 5 aa\nstate 1 1 5 xx\nstate 2 0 7 dd\n"})
    assert wrong_states(found, reference) == [(0, 6), (0, 7), (1, 5)]
    assert merge_steps([found, reference]) == [5, 6, 7]


def test_a_takeover_is_exact_when_every_rank_has_hashed_the_right_state():
    text = "".join(
        commit(at, rank, generation, step)
        for at, generation, step in ((10, 1, 5), (20, 2, 6), (30, 3, 7))
        for rank in range(WORLD)
    )
    text += "state 1 0 6 aa\nstate 1 1 6 aa\nstate 1 0 7 aa\n"
    events = parse_events({1: text})
    found = [Resumed(2, 20, 0), Resumed(3, 30, 0)]
    assert takeovers.exact(found, events, []) == 1  # rank 1 never hashed its state after step 7
    assert takeovers.exact(found, events, [(1, 6)]) == 0


def test_recoveries_are_told_apart_and_missing_ones_are_an_error():
    commits = [
        Commit(at, 1, rank, generation, generation)
        for at, generation in ((10, 1), (20, 2), (30, 3))
        for rank in range(WORLD)
    ]
    faults = [Fault(15, 0, Phase.FORWARD), Fault(25, 1, Phase.GATE)]
    play = Play(1, WORLD, 0.1, faults)
    assert [one.at_ns for one in takeovers.recoveries(play, Events(commits=commits))] == [20, 30]
    with pytest.raises(ValueError, match=r"fault 1 \(rank 1\)"):
        takeovers.recoveries(play, Events(commits=commits[:-1]))


def test_what_each_recovery_lost_is_told_by_its_own_draws():
    # Step 6 was applied by rank 0 alone at the first fault, step 7 by both at the second.
    text = {1: commit(10, 0, 1, 6) + commit(40, 0, 2, 7) + commit(80, 0, 3, 7)}
    text[2] = draw(5, 1, 5) + commit(30, 1, 2, 6) + commit(41, 1, 2, 7)
    text[2] += draw(70, 1, 6) + commit(81, 1, 3, 7)
    play = Play(1, WORLD, 0.1, [Fault(12, 0, Phase.OPTIMIZER), Fault(60, 0, Phase.FORWARD)])
    assert [one.lost_steps for one in takeovers.recoveries(play, parse_events(text))] == [0, 1]


def test_growth_is_told_of_fabric_run_and_of_the_rank_that_lived_longest():
    memory = [{1: 50.0, 2: 300.0, 3: 310.0}, {1: 50.5, 2: 304.0, 4: 9.0}, {1: 51.0, 2: 303.0}]
    series = takeovers.memory_mb(Play(1, WORLD, 0.1, [], memory))
    assert series == {"fabric-run": [50.0, 50.5, 51.0], "rank": [300.0, 304.0, 303.0]}
    assert takeovers.growth_mb(series["fabric-run"]) == 1.0
    assert takeovers.growth_mb([300, 310, 311, 312, 315, 312, 311, 313]) == 2


MS = 1_000_000


def test_a_change_over_is_the_first_step_of_all_ranks_in_a_later_generation():
    """Rank 1 moves after step 5, which nobody commits for it; rank 0 does once it is over."""
    stays = "".join(commit(100 * step * MS, 0, 1, step) for step in range(1, 5))
    leaves = "".join(commit((100 * step + 5) * MS, 1, 1, step) for step in range(1, 5))
    stays += commit(550 * MS, 0, 2, 5) + commit(655 * MS, 0, 2, 6) + commit(755 * MS, 0, 2, 7)
    takes = commit(660 * MS, 1, 2, 6) + commit(760 * MS, 1, 2, 7)
    events = parse_events({1: stays, 2: leaves, 3: takes})
    assert changes_over(events, 2) == ([ChangeOver(6, 2, 2, 255.0)], 100.0)


def test_all_that_reconnect_are_a_change_over_too():
    text = "".join(commit(100 * step * MS, 0, 1 + step // 4, step) for step in range(1, 7))
    events = parse_events({1: text, 2: text.replace(" 0 ", " 1 ")})
    assert changes_over(events, 2) == ([ChangeOver(4, 2, 1, 100.0)], 100.0)


@pytest.mark.parametrize(
    ("pid", "steps", "generation"),
    [(2, (1, 2, 3, 4), 2), (3, (1, 2, 3, 4), 1), (3, (1, 2, 3), 2)],
    ids=["by the same process", "in the same generation", "of two steps"],
)
def test_a_commit_that_is_missing_for_another_reason_is_no_change_over(pid, steps, generation):
    stays = "".join(commit(100 * step * MS, 0, 1, step) for step in range(1, 5))
    stays += "".join(commit(100 * step * MS, 0, generation, step) for step in (5, 6, 7))
    before = "".join(commit(100 * step * MS, 1, 1, step) for step in steps)
    after = commit(600 * MS, 1, generation, 6) + commit(700 * MS, 1, generation, 7)
    texts = {1: stays, 2: before}
    texts[pid] = texts.get(pid, "") + after
    assert changes_over(parse_events(texts), 2) == ([], 100.0)


def test_what_a_planned_move_adds_is_told_beside_the_steps_that_it_took(monkeypatch):
    monkeypatch.setattr(planned, "RANKS", WORLD)
    stays = "".join(commit(100 * step * MS, 0, 1, step) for step in range(1, 5))
    stays += commit(550 * MS, 0, 2, 5) + commit(655 * MS, 0, 2, 6)
    leaves = "".join(commit(100 * step * MS, 1, 1, step) for step in range(1, 5))
    events = parse_events({1: stays, 2: leaves, 3: commit(660 * MS, 1, 2, 6)})
    got = {row.name: row.got for row in planned.rows(events, events, 1, 6)}
    assert got["planned move: time added between two commits, median"] == 60.0
    assert got["planned moves"] == 1
