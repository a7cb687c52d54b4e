"""Lines of the job socket, the registry of fabric-runs, and how fast a user is read."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.control.pace import BURST, LEAST, MOST_USERS, RATE, Pace
from fabricd.escalate.job_lines import (
    MAX_BRACKETS,
    MAX_DEPTH,
    MAX_LINE,
    Document,
    Fenced,
    Leave,
    LineError,
    Register,
    encode_line,
    parse_line,
)
from fabricd.escalate.job_registry import (
    MOST_GONE,
    MOST_JOBS,
    MOST_OF_USER,
    JobRegistry,
    RefusedError,
)


def line(**fields):
    return json.dumps(fields).encode() + b"\n"


def test_each_line_that_is_right():
    said = [
        parse_line(line(kind="register", version=1, job="j", incarnation="i")),
        parse_line(line(kind="document", document={"a": [1, {"b": None}]})),
        parse_line(line(kind="fenced", id="f")),
        parse_line(line(kind="leave")),
    ]
    assert said == [Register("j", "i"), Document({"a": [1, {"b": None}]}), Fenced("f"), Leave()]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\n", "not JSON"),
        (b"\xff\n", "not JSON"),
        (b"[]\n", "not a JSON object"),
        (b'{"kind": NaN}\n', "NaN is no JSON"),
        (b'{"kind": "document", "document": {"a": Infinity}}', "Infinity is no JSON"),
        (b'{"kind": "document", "document": {"a": 1e999}}', "1e999 is out of range"),
        (line(kind="hello"), "kind 'hello'; allowed: register"),
        (line(kind=["leave"]), "kind \\['leave'\\]"),
        (line(kind="leave", more=1), "leave: missing or unknown keys: more"),
        (line(kind="register", version=1, job="j"), "unknown keys: incarnation"),
        (line(kind="register", version=2, job="j", incarnation="i"), "version 2, not 1"),
        (line(kind="register", version=True, job="j", incarnation="i"), "version True, not 1"),
        (line(kind="register", version=1, job="../j", incarnation="i"), "register: job"),
        (line(kind="register", version=1, job="j", incarnation=""), "register: incarnation"),
        (line(kind="register", version=1, job=7, incarnation="i"), "register: job"),
        (line(kind="document", document=[]), "document: no object"),
        (line(kind="fenced", id=""), "fenced: id"),
        (line(kind="fenced", id=3), "fenced: id"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH}"),
        (b"[" + b"[]," * (MAX_BRACKETS // 2) + b"1]", "more than 10000 objects and lists"),
        (b'"' + b"x" * MAX_LINE + b'"', f"line over {MAX_LINE} bytes"),
        (b"1" * 5000, "not JSON"),
    ],
)
def test_what_is_wrong_is_named(data, text):
    with pytest.raises(LineError, match=text):
        parse_line(data)


def test_brackets_in_text_do_not_count():
    document = {"text": "[" * 30_000, "escaped": '\\"[[[' * 100}
    assert parse_line(line(kind="document", document=document)) == Document(document)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_line_or_refused(data):
    with contextlib.suppress(LineError):
        parse_line(data)


@pytest.mark.patient
@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_any_document_is_carried_as_it_is(document):
    said = parse_line(encode_line("document", document=document))
    assert said == Document(json.loads(json.dumps(document)))


# -- registry


def test_one_fabric_run_of_a_job_and_another_life_only_after_its_end():
    registry = JobRegistry()
    run = registry.register("j", "i1", 1, 10, 100)
    run.observed = True
    assert run.state() is None, "nothing is published before it says anything"
    with pytest.raises(RefusedError, match="job j has a fabric-run on this host, process 10"):
        registry.register("j", "i2", 1, 11, 101)
    with pytest.raises(RefusedError, match="belongs to uid 1"):
        registry.register("j", "i1", 2, 10, 102)
    with pytest.raises(RefusedError, match="incarnation i1 of job j is process 10"):
        registry.register("j", "i1", 1, 12, 103)
    assert registry.disconnected(100) is None, "its process lives"
    assert run.present
    assert registry.register("j", "i1", 1, 10, 104) is run, "it comes again"
    assert registry.disconnected(100) is None, "of the old connection"
    assert run.connection == 104
    assert registry.ended(run)
    assert not registry.ended(run)
    assert run.state() == {
        "job": "j", "incarnation": "i1", "uid": 1, "gone": True, "document": {},
    }  # fmt: skip
    with pytest.raises(RefusedError, match="incarnation i1 of job j has ended"):
        registry.register("j", "i1", 1, 10, 105)
    assert registry.register("j", "i2", 1, 13, 107).present


def test_a_name_is_no_property_of_who_is_gone():
    """Attack S8."""
    registry = JobRegistry()
    run = registry.register("slurm-5000", "i1", 1, 10, 100)
    with pytest.raises(RefusedError, match="belongs to uid 1"):
        registry.register("slurm-5000", "i2", 2, 13, 106)
    run.observed = True
    registry.disconnected(100)
    with pytest.raises(RefusedError, match="belongs to uid 1"):
        registry.register("slurm-5000", "i2", 2, 13, 106)
    registry.ended(run)
    assert registry.register("slurm-5000", "i2", 2, 13, 106).uid == 2
    restored = JobRegistry()
    restored.restore(registry.save())
    with pytest.raises(RefusedError, match="belongs to uid 2"):
        restored.register("slurm-5000", "i3", 1, 14, 107)


def test_where_the_process_cannot_be_seen_its_connection_counts():
    registry = JobRegistry()
    run = registry.register("j", "i", 1, 0, 1)
    assert registry.disconnected(1) is run
    assert run.gone
    assert registry.register("j", "i", 1, 0, 2) is run, "it was not proven to have ended"
    assert run.present


def test_so_many_jobs_of_a_user_and_in_all():
    registry = JobRegistry()
    for number in range(MOST_OF_USER):
        registry.register(f"j{number}", "i", 1, 10, number)
    with pytest.raises(RefusedError, match=f"{MOST_OF_USER} jobs of uid 1"):
        registry.register("more", "i", 1, 10, 99)
    registry.leave(registry.runs["j0"])
    registry.register("more", "i", 1, 10, 99)
    for number in range(MOST_JOBS - MOST_OF_USER):
        registry.register(f"k{number}", "i", 100 + number // 10, 10, 1000 + number)
    with pytest.raises(RefusedError, match=f"and {MOST_JOBS} in all"):
        registry.register("last", "i", 7, 10, 9999)


def test_the_oldest_ended_jobs_are_forgotten():
    registry = JobRegistry()
    for number in range(MOST_GONE + 3):
        run = registry.register(f"j{number}", "i", number, 10, number)
        registry.ended(run)
    assert registry.forget_oldest() == ["j0", "j1", "j2"]
    assert len(registry.runs) == MOST_GONE


def test_a_successor_knows_the_same_runs():
    registry, other = JobRegistry(), JobRegistry()
    registry.register("j", "i", 1, 10, 1).start = 77
    registry.ended(registry.register("k", "l", 2, 11, 2))
    other.restore(json.loads(json.dumps(registry.save())))
    assert other.save() == registry.save()
    assert other.runs["j"].connection is None
    assert other.runs["j"].state() is None, "what is retained at the broker stands"


@given(JSON)
def test_any_stored_jobs_are_taken_over_or_refused(stored):
    registry = JobRegistry()
    with contextlib.suppress(ValueError):
        registry.restore(stored)


# -- pace


def test_other_things_than_bytes_are_paced_alike():
    now = [0.0]
    pace = Pace(lambda: now[0], rate=0.1, burst=2, least=1)
    assert [pace.delay_s(1, 1) > 0 for _ in range(3)] == [False, False, True]
    now[0] = 20.0
    assert pace.delay_s(1, 1) == 0


def test_a_burst_is_free_and_then_a_user_is_read_at_the_rate():
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert pace.delay_s(1, BURST) == 0
    assert pace.delay_s(1, RATE) == 1
    assert pace.delay_s(2, LEAST) == 0, "another user's is another's"
    now[0] = 1.0
    assert pace.delay_s(1, 1) == pytest.approx(LEAST / RATE)
    now[0] = 100.0
    assert pace.delay_s(1, BURST) == 0
    for uid in range(2 * MOST_USERS):
        pace.delay_s(uid, 1)
    assert len(pace._spent) == MOST_USERS
