from dataclasses import replace

import pytest

from fabric_train.documents import AgentDocument, ProcessState
from fabric_train.host.urgency import GATHER_S, PROGRESS_S, patience_s

PROCESS = ProcessState("a/i1/p0", "warm", step=4)
DOCUMENT = AgentDocument("gpt", "a", "i1", 2, 0, 1, "127.0.0.1:1", "127.0.0.1:2", "t", [PROCESS],
                         running=1, hears=["b"])  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"processes": [replace(PROCESS, step=5)]}, PROGRESS_S),
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
    assert patience_s(DOCUMENT, replace(DOCUMENT, **change)) == expected


def test_the_first_document_is_sent_at_once():
    assert patience_s(None, DOCUMENT) == 0.0
