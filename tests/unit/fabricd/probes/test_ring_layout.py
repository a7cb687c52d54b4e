"""The ring's layout in Python is the one in C++: every size, offset and constant."""

from __future__ import annotations

import json
import subprocess

import pytest

from fabricd.probes import layout, records

RECORDS = {
    "RingHeader": layout.RING_HEADER,
    "LinkRow": layout.LINK_ROW,
    "PathRow": layout.PATH_ROW,
    "EventRecord": layout.EVENT_RECORD,
    "SampleRecord": layout.SAMPLE_RECORD,
}


@pytest.fixture(scope="module")
def dump(native) -> dict:
    program = native("prober/fabric_ring_layout_dump")
    out = subprocess.run([program], check=True, capture_output=True, timeout=20)
    return json.loads(out.stdout)


def test_same_structs(dump):
    assert set(dump["structs"]) == set(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
def test_struct(dump, name):
    native = dump["structs"][name]
    record = RECORDS[name]
    fields = native["fields"]
    assert record.size == native["size"]
    assert {f.name: (f.offset, f.size) for f in record.fields} == {
        key: (value["offset"], value["size"]) for key, value in fields.items()
    }


def test_constants(dump):
    assert dump["constants"] == {name: getattr(layout, name) for name in dump["constants"]}
    assert len(records.Refusal) == layout.REFUSALS


def test_every_python_constant_is_checked(dump):
    names = {n for n, v in vars(layout).items() if n.isupper() and isinstance(v, int)}
    assert names == set(dump["constants"])
