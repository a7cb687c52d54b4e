"""Messages become inputs of the core, or are counted by reason and change nothing."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.intake import UNSEEN_S, Intake, RefusedError
from compute.name_budget import HOST_RATE, USER_BURST
from fabric_train.messages.documents import AgentDocument, ProcessState, to_data
from telemetry.broker.guard import MOST_NAMES
from telemetry.messages.documents import HostStatus
from telemetry.messages.envelope import (
    LARGEST,
    MAX_BYTES,
    BadMessageError,
    Message,
    Sender,
    decode,
    encode,
)
from telemetry.messages.topics import Kind, Topic

LIFE, NEXT = Sender("b1", "i1"), Sender("b1", "i2")
STATUS = Topic(Kind.HOST_STATUS, "h1")
OBSERVATIONS = Topic(Kind.HOST_OBSERVATIONS, "h1")
DOCUMENT = Topic(Kind.HOST_DOCUMENT, "h1")
JOB = Topic(Kind.HOST_JOB, "h1", "gpt")
ONLINE = {"online": True}
AGENT = AgentDocument(
    "gpt", "h1", "r1", 2, 1, 1, "10.0.0.1:1", "10.0.0.1:2", "t", [ProcessState("p0", "warm")]
)
GOOD = {
    STATUS: ONLINE,
    OBSERVATIONS: {"silent": [], "heard": ["h2"]},
    DOCUMENT: {"name": "h1", "links": [], "probe_port": 9200},
    JOB: {"job": "gpt", "incarnation": "r1", "uid": 1000, "document": to_data(AGENT)},
    Topic(Kind.STOP): {"stopped": True, "reason": "x"},
}


class Inputs:
    """A core that notes its inputs."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments, **_: self.calls.append((name, *arguments[:-1]))


@pytest.fixture
def core():
    return Inputs()


@pytest.fixture
def intake(core):
    return Intake(core)


def send(intake, topic, data, sequence=1, sender=LIFE, now=0.0):
    intake.receive(Message(topic, sender, sequence, data), now)


@pytest.mark.parametrize("topic", GOOD, ids=lambda topic: topic.kind.value)
def test_each_kind_becomes_its_input(core, intake, topic):
    send(intake, topic, GOOD[topic])
    assert intake.accepted == {topic.kind.value: 1}
    if topic.kind is Kind.STOP:
        assert intake.stop.stopped
    else:
        assert [call[0] for call in core.calls] == [
            {"event": "event"}.get(topic.kind.value.partition(".")[2], topic.kind.value.replace(
                ".", "_"))
        ]  # fmt: skip


def refused(core, intake, topic, data, reason, **arguments):
    before = (list(core.calls), dict(intake.statuses), dict(intake.documents), intake.stop)
    count = intake.refused[reason]
    with pytest.raises(RefusedError):
        send(intake, topic, data, **arguments)
    assert intake.refused[reason] == count + 1
    assert (core.calls, intake.statuses, intake.documents, intake.stop) == before


@pytest.mark.parametrize("topic", GOOD, ids=lambda topic: topic.kind.value)
def test_data_of_another_form_change_nothing(core, intake, topic):
    first = next(iter(GOOD[topic]))
    for number, wrong in enumerate(({}, GOOD[topic] | {"surplus": 1}, GOOD[topic] | {first: 0.5})):
        refused(core, intake, topic, wrong, "data", sequence=number)


def test_a_document_of_another_host_or_job_changes_nothing(core, intake):
    refused(core, intake, DOCUMENT, GOOD[DOCUMENT] | {"name": "h2"}, "identity")
    refused(core, intake, JOB, GOOD[JOB] | {"job": "bert"}, "identity", sequence=2)
    refused(core, intake, JOB, GOOD[JOB] | {"incarnation": "r2"}, "identity", sequence=3)
    for number, change in enumerate(({"host": "h2"}, {"job": "bert"}), 4):
        wrong = GOOD[JOB] | {"document": to_data(AGENT) | change}
        refused(core, intake, JOB, wrong, "identity", sequence=number)
    wrong = GOOD[JOB] | {"document": to_data(AGENT) | {"version": 2}}
    refused(core, intake, JOB, wrong, "data", sequence=6)


def test_a_job_of_which_a_host_does_not_say_whose_it_is(core, intake):
    older = {key: one for key, one in GOOD[JOB].items() if key != "uid"}
    refused(core, intake, JOB, older, "identity", sequence=1)
    with pytest.raises(RefusedError, match="h1 does not say whose job gpt is"):
        send(intake, JOB, older, sequence=2)
    known = Intake(core, older_hosts=True)
    send(known, JOB, older, sequence=3)
    assert known.documents.keys() == {("h1", "gpt")}


@pytest.mark.parametrize("kind", [Kind.COMPUTE_ORDER, Kind.COMPUTE_JOB])
def test_what_is_for_others_is_refused(core, intake, kind):
    refused(core, intake, Topic(kind, "c1", "h1"), {}, "topic")


def test_an_older_sequence_of_the_same_life_is_a_replay(core, intake):
    send(intake, STATUS, ONLINE, sequence=5)
    refused(core, intake, STATUS, {"online": False}, "replay", sequence=4)
    send(intake, OBSERVATIONS, GOOD[OBSERVATIONS], sequence=2)  # Each topic by itself.
    send(intake, STATUS, {"online": False}, sequence=6)
    assert intake.statuses["h1"] == HostStatus(online=False)


def test_the_last_will_of_a_life_that_was_replaced_is_a_replay(core, intake):
    send(intake, STATUS, ONLINE, sequence=9)
    send(intake, STATUS, ONLINE, sequence=1, sender=NEXT)
    refused(core, intake, STATUS, {"online": False}, "replay", sequence=10)


def flood(intake, host, first, names, now=0.0):
    """Jobs of new names, of ever new users; how many were refused for the host's share."""
    before = intake.refused["share"]
    for number in range(first, first + names):
        topic = Topic(Kind.HOST_JOB, host, f"j{number}")
        data = {"job": topic.name, "incarnation": "r", "uid": number, "gone": True}
        with contextlib.suppress(RefusedError):
            send(intake, topic, data, sequence=number, now=now)
    return intake.refused["share"] - before


def test_a_host_that_floods_takes_nobody_else_s_place(core, intake):
    """Attack S3: names that are published, and those that are cleared again, as over many days."""
    assert flood(intake, "h9", 1, MOST_NAMES + 50) == 50
    for number in range(10, 20):
        intake.clear(Topic(Kind.HOST_JOB, "h9", f"j{number}"), 0.0)
    assert flood(intake, "h9", 5000, 12) == 12, "what is cleared gives no new names at once"
    assert flood(intake, "h9", 6000, 12, now=10 / HOST_RATE) == 2
    for number in range(5 * MOST_NAMES):
        assert flood(intake, "h8", number, 1, now=number / HOST_RATE) == 0
        intake.clear(Topic(Kind.HOST_JOB, "h8", f"j{number}"), 0.0)
    for topic in (STATUS, OBSERVATIONS, DOCUMENT, JOB):
        send(intake, topic, GOOD[topic])
    send(intake, Topic(Kind.STOP), {"stopped": True, "reason": "switch work"})
    assert intake.stop.stopped


def test_a_name_that_was_refused_counts_when_it_is_said_again(core, intake):
    """A user's flood of names takes none of another user's on that host."""
    data = {"incarnation": "r", "uid": 666, "gone": True}
    for number in range(int(USER_BURST)):
        send(intake, Topic(Kind.HOST_JOB, "h1", f"j{number}"), {"job": f"j{number}", **data})
    late = Topic(Kind.HOST_JOB, "h1", "late")
    refused(core, intake, late, {"job": "late", **data}, "share")
    send(intake, JOB, GOOD[JOB])
    known = Topic(Kind.HOST_JOB, "h1", "j1")
    send(intake, known, {"job": "j1", **data}, sequence=2)
    send(intake, late, {"job": "late", **data}, sequence=3, now=100.0)
    assert intake.refused["share"] == 1


def test_the_same_message_again_is_no_news_and_no_fault(core, intake):
    send(intake, STATUS, ONLINE)
    calls = list(core.calls)
    send(intake, STATUS, ONLINE)
    assert core.calls == calls
    assert sum(intake.refused.values()) == 0


def test_an_event_is_taken_or_refused(intake):
    topic = Topic(Kind.HOST_EVENT, "h1")
    data = {"kind": "down", "text": "t"}
    for sender, sequence in ((NEXT, 3), (LIFE, 9)):  # One of an earlier life is late, not wrong.
        assert intake.event(Message(topic, sender, sequence, data)).kind == "down"
    for message, reason in (
        (Message(topic, LIFE, 10, data | {"surplus": 1}), "data"),
        (Message(STATUS, LIFE, 11, ONLINE), "topic"),
    ):
        with pytest.raises(RefusedError):
            intake.event(message)
        assert intake.refused[reason] == 1
    assert intake.accepted == {"host.event": 2}


def test_what_was_cleared_is_told(core, intake):
    for topic, data in GOOD.items():
        send(intake, topic, data)
    core.calls.clear()
    for topic in GOOD:
        intake.clear(topic, 0.0)
    assert core.calls == [("host_document", "h1", None), ("host_job", "h1", "gpt", None)]
    assert intake.documents == {}
    assert not intake.stop.stopped


def test_what_was_cleared_without_a_connection_is_told_once_its_host_is_back(core, intake):
    send(intake, STATUS, ONLINE)
    send(intake, JOB, GOOD[JOB])
    intake.connected()
    assert intake.sweep(1e9) == [], "a broker that has lost all says nothing about a job"
    send(intake, STATUS, ONLINE, sequence=7, now=100.0)
    assert intake.sweep(100.0 + UNSEEN_S - 1) == []
    assert intake.sweep(100.0 + UNSEEN_S) == [JOB]
    assert core.calls[-1] == ("host_job", "h1", "gpt", None)
    assert intake.sweep(1e9) == []


def test_a_retained_message_that_comes_again_keeps_its_topic(core, intake):
    send(intake, STATUS, ONLINE)
    send(intake, JOB, GOOD[JOB])
    intake.connected()
    send(intake, STATUS, ONLINE, now=5.0)
    send(intake, JOB, GOOD[JOB], now=5.0)
    assert intake.sweep(1e9) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=6)
    ),
)


@given(
    st.sampled_from(list(GOOD)), st.dictionaries(st.text(max_size=9), JSON, max_size=6), st.data()
)
def test_whatever_arrives_is_taken_or_refused(topic, data, draw):
    core = Inputs()
    intake = Intake(core)
    good = dict(GOOD[topic])
    good |= {draw.draw(st.sampled_from(sorted(good))): draw.draw(JSON)}
    for number, one in enumerate((data, good)):
        try:
            send(intake, topic, one, sequence=number)
        except RefusedError:
            assert intake.refused.total() == number + 1 - intake.accepted.total()


@given(st.binary(max_size=400) | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_message_raise_only_what_is_caught(payload):
    with pytest.raises(BadMessageError):
        decode(payload, STATUS)


def test_ten_megabytes_are_refused_unread():
    payload = encode(Message(STATUS, LIFE, 1, ONLINE)) + b" " * 10_000_000
    with pytest.raises(BadMessageError, match=str(LARGEST[Kind.HOST_STATUS])):
        decode(payload, STATUS)


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_has_a_largest_size_of_its_own(kind):
    """Attack S5."""
    named = kind in (Kind.HOST_JOB, Kind.COMPUTE_ORDER, Kind.COMPUTE_JOB, Kind.COMPUTE_VIEW)
    topic = Topic(kind, "" if kind is Kind.STOP else "a", "b" if named else "")
    most = LARGEST.get(kind, MAX_BYTES)
    empty = Message(topic, LIFE, 1, {"x": ""})
    rest = most - len(encode(empty))
    largest = replace(empty, data={"x": "y" * rest})
    payload = encode(largest)
    assert len(payload) == most
    assert decode(payload, topic) == largest
    with pytest.raises(BadMessageError, match=f"at most {most}"):
        encode(replace(largest, data={"x": "y" * (rest + 1)}))
    with pytest.raises(BadMessageError, match=f"at most {most}"):
        decode(payload + b" ", topic)


def test_of_two_hosts_of_one_name_the_later_one_counts_and_the_other_is_named(core, intake):
    """They push each other off the broker, and each says the host's birth again and again."""
    other = Sender("b2", "i9")
    send(intake, STATUS, ONLINE, sequence=1)
    send(intake, STATUS, {"online": False}, sequence=2)
    send(intake, STATUS, ONLINE, sequence=1, sender=other)
    send(intake, OBSERVATIONS, GOOD[OBSERVATIONS], sequence=2, sender=other)
    before = len(core.calls)
    with pytest.raises(RefusedError, match="boot b1 speaks, though boot b2 came after it: do two"):
        send(intake, STATUS, ONLINE, sequence=3)
    assert len(core.calls) == before
    assert intake.refused["identity"] == 1
    assert intake.statuses["h1"].online


def test_an_earlier_life_of_the_same_boot_is_a_replay(core, intake):
    send(intake, STATUS, ONLINE, sender=LIFE)
    send(intake, STATUS, ONLINE, sender=NEXT)
    refused(core, intake, STATUS, ONLINE, "replay", sender=LIFE, sequence=5)
