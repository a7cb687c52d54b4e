"""Root of one host, by its own certificate: messages at which fabric-compute would die.

Each is published once, retained or kept for a session: whoever dies of it dies again at each start.
"""

import json

import pytest
from hostile_messages import payload

from compute.decide.decider import Decider
from compute.decide.policy import Policy
from compute.event_budget import EventBudget, stored_bytes
from compute.intake import Intake, RefusedError
from compute.store import Store
from fabric_train.messages.documents import AgentDocument, ProcessState, to_data
from telemetry.messages.envelope import MAX_DEPTH, BadMessageError, decode
from telemetry.messages.topics import Kind, Topic

EVENT, JOB = Topic(Kind.HOST_EVENT, "h1"), Topic(Kind.HOST_JOB, "h1", "gpt")
DOCUMENT = Topic(Kind.HOST_DOCUMENT, "h1")


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("topic", [EVENT, JOB, DOCUMENT], ids=lambda topic: topic.kind.value)
def test_a_number_that_the_ledger_cannot_write_is_no_message(topic, number):
    """One event with NaN ended each fabric-compute, and again at each start."""
    with pytest.raises(BadMessageError, match="no JSON"):
        decode(payload(topic, f'{{"fields": {{"x": {number}}}}}'), topic)


def test_what_the_version_before_has_kept_of_it_ends_nothing(tmp_path):
    store = Store(tmp_path / "compute.db")
    assert store.add_event("/host/h1/i/1", {"host": "h1", "fields": {"x": float("nan")}})
    assert store.add_event("/host/h1/i/2", {"host": "h1", "fields": {"x": float("-inf")}})
    entries = store.commit((), store.events(10))
    assert [one.record["fields"]["fields"]["x"] for one in entries] == ["NaN", "-Infinity"]
    assert store.events(10) == []
    store.close()


def test_values_in_each_other_are_bounded_far_below_the_stack():
    """What was read at 950 was not written, nor shown in an error, at the depth of the caller."""
    most = MAX_DEPTH - 3  # the message, its data, its fields
    event = Intake(Decider("c", Policy())).event(
        decode(payload(EVENT, f'{{"kind": "x", "fields": {{"x": {nested(most)}}}}}'), EVENT)
    )
    assert json.dumps(event.fields["x"]) == nested(most)
    for deep in (most + 1, 200, 900, 985, 5000):
        with pytest.raises(BadMessageError, match=r"nested deeper|no JSON"):
            decode(payload(EVENT, f'{{"kind": "x", "fields": {{"x": {nested(deep)}}}}}'), EVENT)


@pytest.mark.parametrize("topic", [EVENT, JOB, DOCUMENT], ids=lambda topic: topic.kind.value)
def test_no_depth_is_more_than_a_refusal(topic):
    intake = Intake(Decider("c", Policy()))
    document = to_data(
        AgentDocument("gpt", "h1", "r", 1, 0, 1, "a:1", "a:2", "t", [ProcessState("p", "warm")])
    )
    for depth in (1, 30, 60, *range(300, 1010, 7)):
        wrong = json.dumps(document | {"job": "?"}).replace('"?"', nested(depth))
        for data in (
            f'{{"name": {nested(depth)}, "kind": {nested(depth)}, "job": {nested(depth)}}}',
            f'{{"job": "gpt", "incarnation": "r", "uid": 1, "document": {wrong}}}',
        ):
            try:
                message = decode(payload(topic, data), topic)
            except BadMessageError:
                continue
            with pytest.raises(RefusedError):
                intake.event(message) if topic is EVENT else intake.receive(message, 0.0)


def test_what_reaches_every_host_is_small():
    """A document of 1 MB kept each fabricd of the fabric from its links for 50 ms."""
    links = [
        {
            "netdev": f"rail{rail:011}", "rail": rail, "leaf": "x" * 255, "state": "probation",
            "addresses": [f"fd00:ffff:ffff:ffff:ffff:ffff:ffff:ff{one:02x}" for one in range(8)],
        }
        for rail in range(32)
    ]  # fmt: skip
    largest = {"name": "h1", "probe_port": 9200, "links": links, "rack": "x" * 255}
    assert len(decode(payload(DOCUMENT, json.dumps(largest)), DOCUMENT).data["links"]) == 32
    long = largest | {"versions": {f"{number}": "" for number in range(10_000)}}
    with pytest.raises(BadMessageError, match="at most 65536"):
        decode(payload(DOCUMENT, json.dumps(long)), DOCUMENT)
    status = Topic(Kind.HOST_STATUS, "h1")
    with pytest.raises(BadMessageError, match="at most 4096"):
        decode(payload(status, json.dumps({"online": True, "x": "x" * 4096})), status)


def test_a_long_name_of_a_life_takes_nobody_elses_place(tmp_path):
    """Ids are kept for ever, and were not counted: for each byte that was, 30 were on the disk."""
    store, budget = Store(tmp_path / "compute.db"), EventBudget()
    fields = {"host": "h1", "event": "x", "text": "", "fields": {}}
    before, counted = _size(store), 0
    for number in range(600):
        name = f"/host/h1/{'x' * 500}/{number}"
        size = stored_bytes(name, json.dumps(fields))
        assert budget.spend("h1", size, 0.0)
        assert store.add_event(name, fields)
        counted += size
    store.commit((), store.events(1000))
    taken = _size(store) - before
    store.close()
    assert taken < 2 * counted, f"{taken} bytes for {counted}"


def _size(store):
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store.path.stat().st_size
