from dataclasses import replace

import pytest

from fabric_train.host.urgency import GATHER_S, PROGRESS_S, Urgency
from fabric_train.messages.documents import AgentDocument, ProcessState

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
