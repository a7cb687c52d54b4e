from dataclasses import replace

import pytest

from fabric_train.host.urgency import ALERT_S, GATHER_S, PROGRESS_S, Urgency
from fabric_train.messages.documents import AgentDocument, ProcessState
from fabric_train.messages.step_window import BLOCKS, LARGE_WORLD, StepWindow, patience_s

PROCESS = ProcessState("a/i1/p0", "warm", step=4)
DOCUMENT = AgentDocument("gpt", "a", "i1", 2, 0, 1, "127.0.0.1:1", "127.0.0.1:2", "t", [PROCESS],
                         running=1, hears=["b"])  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"processes": [replace(PROCESS, step=5)]}, PROGRESS_S[0]),
        ({"processes": [replace(PROCESS, step=5, committed=1)]}, GATHER_S),
        ({"hears": ["b", "c"]}, GATHER_S),
        ({"hears": [], "misses": ["b"]}, 0.0),
        ({"processes": [replace(PROCESS, state="ended")]}, 0.0),
        ({"processes": []}, GATHER_S),
        ({"suspects": 1}, 0.0),
        ({"running": 2}, 0.0),
        ({"failed": "no replica"}, 0.0),
    ],
)
def test_what_somebody_waits_for_is_sent_at_once_and_steps_now_and_then(change, expected):
    urgency = Urgency()
    urgency.sent(DOCUMENT)
    assert urgency.patience_s(replace(DOCUMENT, **change)) == expected


def test_steps_are_sent_more_often_while_a_host_of_the_job_is_in_question():
    urgency = Urgency()
    urgency.sent(DOCUMENT)
    steps = replace(DOCUMENT, processes=[replace(PROCESS, step=5, collectives=9)])
    urgency.alert = True
    for _ in range(5):
        assert urgency.patience_s(steps) == ALERT_S
        urgency.sent(steps)
        steps = replace(steps, processes=[replace(steps.processes[0], collectives=10)])
    urgency.alert = False
    assert urgency.patience_s(steps) >= PROGRESS_S[0]


def test_the_first_document_is_sent_at_once():
    assert Urgency().patience_s(DOCUMENT) == 0.0


def at_step(step, **changes):
    return replace(DOCUMENT, processes=[replace(PROCESS, step=step)], **changes)


def test_steps_are_said_ever_more_rarely_until_something_else_happens():
    urgency, waits = Urgency(), []
    urgency.sent(DOCUMENT)
    for step in range(5, 12):
        waits.append(urgency.patience_s(at_step(step)))
        urgency.sent(at_step(step))
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert urgency.patience_s(at_step(12, running=2)) == 0.0
    urgency.sent(at_step(12, running=2))
    assert urgency.patience_s(at_step(13, running=2)) == PROGRESS_S[0]


def test_a_new_window_of_own_times_waits_for_a_third_of_a_window_at_most():
    def measured(last, step, nodes=DOCUMENT.nodes):
        window = StepWindow(1, last, 8, 9, [5] * BLOCKS)
        one = replace(PROCESS, step=step, window=window)
        return replace(DOCUMENT, processes=[one], nodes=nodes)

    urgency = Urgency()
    urgency.sent(measured(8, 5))
    for step in range(6, 12):
        urgency.sent(measured(8, step))
    assert urgency.patience_s(measured(8, 12)) == PROGRESS_S[1], "the window is told already"
    assert urgency.patience_s(measured(16, 12)) == patience_s(2) < PROGRESS_S[1]
    urgency.sent(measured(16, 12))
    assert urgency.patience_s(measured(16, 13)) == PROGRESS_S[1], "no more often than that"
    urgency.alert = True
    assert urgency.patience_s(measured(24, 14)) == ALERT_S
    large = Urgency()
    large.sent(measured(8, 5, nodes=LARGE_WORLD))
    for step in range(6, 12):
        large.sent(measured(8, step, nodes=LARGE_WORLD))
    assert large.patience_s(measured(16, 12, nodes=LARGE_WORLD)) == patience_s(LARGE_WORLD)
