"""The steer page's layout is the same in C++ and in Python."""

import json
import re
import struct
import subprocess
from pathlib import Path

import pytest

from fabricd.steer import page
from fabricd.steer.modes import Mode
from telemetry.events import LinkState

REPO = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def layout(native):
    dump = native("nccl_plugin/fabric_layout_dump")
    return json.loads(subprocess.run([dump], check=True, capture_output=True, timeout=20).stdout)


@pytest.mark.parametrize(
    ("name", "fields"),
    [("SteerHeader", page.HEADER), ("SteerRail", page.RAIL), ("SteerPath", page.PATH)],
)
def test_structs(layout, name, fields):
    there = layout["structs"][name]
    assert page.offsets(fields) == there["fields"]
    assert struct.calcsize("<" + "".join(fields.values())) == there["size"]


def test_constants(layout):
    there = layout["constants"]
    here = {
        "kSteerMagic": page.MAGIC,
        "kSteerVersion": page.VERSION,
        "kSteerPageSize": page.PAGE_SIZE,
        "kSteerMaxRails": page.MAX_RAILS,
        "kSteerMaxPaths": page.MAX_PATHS,
        "kSteerMaxFences": page.MAX_FENCES,
        "kSteerStaleNs": page.STALE_NS,
        "kSteerCrcFrom": page.CRC_FROM,
        "kSteerRailsAt": page.RAILS_AT,
        "kSteerPathsAt": page.PATHS_AT,
        "kWeightFull": page.WEIGHT_FULL,
    }
    assert here == {name: there[name] for name in here}


def enum(name):
    """Numbers of one enum of the header, which says that they are those of the vocabulary."""
    text = (REPO / "nccl_plugin/pages/steer_page.h").read_text()
    body = re.search(rf"enum class {name} : [^{{]*{{([^}}]*)}}", text)[1]
    return {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", body)}


def test_numbers_of_states_and_modes():
    assert enum("LinkState") == {s.name.lower(): int(s) for s in LinkState}
    assert enum("SteerMode") == {m.name.lower(): int(m) for m in Mode}
