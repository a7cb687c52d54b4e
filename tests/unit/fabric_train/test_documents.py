"""Documents as JSON and back; long generations are packed. Pure."""

import contextlib
import dataclasses
import json
import random
import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.host.job_socket import MAX_LINE
from fabric_train.messages.documents import (
    PACK_FROM,
    AgentDocument,
    DocumentError,
    JobGeneration,
    JobOrder,
    Member,
    ProcessState,
    parse,
    to_data,
)
from fabric_train.messages.packed import MOST_BYTES, pack, unpack
from fabric_train.messages.short_form import lengthen, shorten


def generation(hosts, ranks, number=7):
    names = [f"gpu-{i:04}" for i in range(hosts)]
    chosen = random.Random(hosts)
    lives = {name: f"{chosen.getrandbits(64):016x}" for name in names}
    agents = [f"{name}/{lives[name]}" for name in names]
    return JobGeneration(
        number, number - 1,
        [f"{name}/{lives[name]}/p{rank}" for name in names for rank in range(ranks)],
        [name for name in names for _ in range(ranks)], agents, agents,
        [Member(name, lives[name], f"10.0.0.{i}:40000", f"10.0.0.{i}:40001",
                chosen.randbytes(32).hex())
         for i, name in enumerate(names)],
        "10.0.0.1:40001", True, [0],
    )  # fmt: skip


def document(accepted, hears=()):
    processes = [
        ProcessState(f"gpu-0000/{12345:016x}/p{rank}", "warm", layout="L" * 64,
                     software={"torch": "2.13.0", "driver": "560.1"}, step=1 << 30)
        for rank in range(8)
    ]  # fmt: skip
    return AgentDocument(
        "job", "gpu-0000", f"{12345:016x}", 2000, 0, 8, "10.0.0.1:1", "10.0.0.1:2", "t" * 64,
        processes, accepted=accepted, hears=list(hears),
    )  # fmt: skip


@pytest.mark.parametrize(("hosts", "packed"), [(2, False), (100, True)])
def test_there_and_back(hosts, packed):
    mine = document(generation(hosts, 8))
    data = json.loads(json.dumps(to_data(mine)))
    assert ("packed" in data["accepted"]) is packed
    assert data["accepted"]["number"] == 7
    assert parse(AgentDocument, data) == mine
    order = JobOrder("i", "running", generation=mine.accepted)
    assert parse(JobOrder, json.loads(json.dumps(to_data(order)))) == order


def test_who_reads_a_generation_from_many_hosts_holds_it_once():
    data = json.dumps(to_data(document(generation(100, 8))))
    first, second = (parse(AgentDocument, json.loads(data)) for _ in range(2))
    assert first.accepted is second.accepted
    order = JobOrder("i", "running", generation=generation(100, 8))
    assert parse(JobOrder, json.loads(json.dumps(to_data(order)))).generation is first.accepted


def test_a_job_of_2000_hosts_with_8_ranks_each_fits_a_line():
    names = [f"gpu-{i:04}" for i in range(1, 2000)]
    mine = document(generation(2000, 8), names)
    line = json.dumps({"kind": "document", "document": to_data(mine)}, separators=(",", ":"))
    assert len(line) < MAX_LINE
    assert parse(AgentDocument, json.loads(line)["document"]) == mine


def packed_with(without="", claimed=7, **changes):
    data = dataclasses.asdict(generation(100, 8)) | changes
    data.pop(without, None)
    text = json.dumps(data, default=dataclasses.asdict)
    return {"number": claimed, "packed": pack(text)}


@pytest.mark.parametrize(
    ("accepted", "text"),
    [
        ({"number": 7, "packed": "x"}, "AgentDocument.accepted is packed wrongly: not packed"),
        ({"number": 7, "packed": 3}, "is not a number and a packed generation"),
        ({"packed": pack("{}")}, "is not a number and a packed generation"),
        ({"number": 7, "packed": pack("[]"), "more": 1}, "is not a number and a packed"),
        ({"number": 7, "packed": pack("[]")}, "AgentDocument.accepted is no object"),
        (partial(packed_with, number=8), "is number 7, but 8 is packed"),
        (
            partial(packed_with, slots=[1]),
            re.escape("AgentDocument.accepted.slots[0] is 1, not str"),
        ),
        (partial(packed_with, "hosts", slots=["200/p0"]), "packed wrongly: no member 200"),
        (partial(packed_with, "hosts", slots=["-1/p0"]), "packed wrongly: no member -1"),
        (partial(packed_with, "hosts", slots=["x"]), "packed wrongly: invalid literal"),
        (partial(packed_with, "hosts", slots=[3]), "packed wrongly: no short form"),
        (partial(packed_with, "hosts", members=[{}]), "packed wrongly: no short form"),
        (
            partial(
                packed_with, "hosts", slots=["0/p"], members=[Member("h" * 5_000_000, *"iast")]
            ),
            "over",
        ),
        ({"number": 7, "packed": pack("[")}, "packed wrongly: not JSON"),
        ({"number": 7, "packed": pack("0" * 1_000_000)}, "packed wrongly: over"),
        ({"number": 7, "packed": "AAAA"}, "packed wrongly: not packed JSON"),
        ({"number": 7, "packed": pack("1")[:-4]}, "packed wrongly"),
        (partial(packed_with, claimed=True), "is number True, but 7"),
    ],
)
def test_what_is_packed_wrongly_is_refused(accepted, text):
    accepted = accepted() if callable(accepted) else accepted
    data = to_data(document(None)) | {"accepted": accepted}
    with pytest.raises(DocumentError, match=text):
        parse(AgentDocument, data)


def test_a_short_text_that_would_become_a_long_one_is_not_unpacked_whole():
    with pytest.raises(ValueError, match="over"):
        unpack(pack(" " * (MOST_BYTES + 1)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"nodes": "4"}, "AgentDocument.nodes is '4', not int"),
        ({"nodes": True}, "AgentDocument.nodes is True, not int"),
        ({"nodes": 1 << 63}, "AgentDocument.nodes is 9223372036854775808, not int"),
        ({"processes": [{"process": "p"}]}, "processes.0. has missing or unknown fields: state"),
        ({"processes": {}}, "AgentDocument.processes is {}, not list"),
        ({"hears": ["a", None]}, "hears.1. is None, not str"),
        ({"what": 1}, "AgentDocument has missing or unknown fields: what"),
        ({"version": 2}, "version 2, not 1"),
    ],
)
def test_the_field_that_is_wrong_is_named(change, text):
    with pytest.raises(DocumentError, match=text):
        parse(AgentDocument, to_data(document(None)) | change)


plain = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
lists = st.lists(plain | st.lists(plain, max_size=2), max_size=3)
json_values = plain | lists | st.dictionaries(st.text(max_size=5), plain | lists, max_size=3)


@given(st.sampled_from([*to_data(document(None))]), json_values)
def test_any_value_of_a_field_is_read_or_refused(name, value):
    data = to_data(document(None)) | {name: value}
    with contextlib.suppress(DocumentError):
        assert to_data(parse(AgentDocument, data)) == data


@given(st.text(alphabet="AB=+/é", max_size=40) | st.binary(max_size=60).map(lambda b: b.hex()))
def test_any_text_is_unpacked_or_refused(text):
    with contextlib.suppress(ValueError):
        unpack(text)


def test_few_generations_are_packed_in_vain():
    assert len(json.dumps(to_data(generation(100, 8)))) > PACK_FROM


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"voters": ["gpu-0001/x"]},
        {"electorate": ["a", "b"]},
        {"slots": ["of another form"] * 16},
        {"hosts": ["gpu-0001"] * 16},
        {"members": []},
        {"slots": [], "hosts": []},
    ],
)
def test_what_does_not_follow_from_the_members_stays_in_the_short_form(changes):
    data = dataclasses.asdict(generation(2, 8)) | changes
    if not data["members"]:
        assert shorten(data) == data
    assert lengthen(json.loads(json.dumps(shorten(data))), MOST_BYTES) == data


def test_a_name_that_many_slots_repeat_does_not_become_a_long_text():
    data = shorten(dataclasses.asdict(generation(2, 8)))
    data["members"][1]["host"] = "h" * 100_000
    data["slots"] = ["1/p0"] * 1000
    with pytest.raises(ValueError, match="characters of names"):
        lengthen(data, MOST_BYTES)


@pytest.mark.parametrize("hosts", [2, 100])
@pytest.mark.parametrize("field", ["planned", "parked"])
def test_an_ordinary_generation_is_written_as_the_version_before_wrote_it(field, hosts):
    mine = generation(hosts, 8)
    other = dataclasses.replace(mine, **{field: True})
    plain = to_data(JobOrder("i", "running", "", mine))["generation"]
    assert field not in (plain if hosts == 2 else unpack(plain["packed"]))
    assert mine.proposal != other.proposal
    for one in (mine, other):
        order = JobOrder("i", "running", "", one)
        read = parse(JobOrder, json.loads(json.dumps(to_data(order))))
        assert read == order
        assert read.generation.proposal == one.proposal


def test_an_agent_that_never_looks_is_written_as_the_version_before_wrote_it():
    calm = document(None)
    looking = dataclasses.replace(calm, looks=3)
    assert "looks" not in to_data(calm)
    assert parse(AgentDocument, to_data(looking)) == looking
    assert looking.is_progress_of(calm)
