"""The stats page's layout in Python is the one of nccl_plugin/pages/stats_page.h."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from telemetry import statspage

BUILD = os.environ.get("FABRIC_BUILD", "release")
DUMP = Path(__file__).parents[2] / "build" / BUILD / "nccl_plugin" / "fabric_layout_dump"


@pytest.fixture(scope="module")
def layout():
    if not DUMP.exists():
        pytest.skip(f"{DUMP} is not built (./run build): the layouts were NOT compared")
    return json.loads(subprocess.check_output([DUMP]))


@pytest.mark.parametrize(
    ("name", "fields", "size"),
    [
        ("StatsHeader", statspage.HEADER_FIELDS, statspage.HEADER_SIZE),
        ("StatsRail", statspage.RAIL_FIELDS, statspage.RAIL_SIZE),
        ("StatsEvent", statspage.EVENT_FIELDS, statspage.EVENT_SIZE),
        ("StatsLatency", statspage.LATENCY_FIELDS, statspage.LATENCY_SIZE),
        ("StatsGroup", statspage.GROUP_FIELDS, statspage.GROUP_SIZE),
    ],
)
def test_struct(layout, name, fields, size):
    theirs = layout["structs"][name]
    assert theirs["size"] == size
    assert theirs["fields"] == statspage.offsets(fields)


def test_constants(layout):
    theirs = layout["constants"]
    ours = {
        "kStatsMagic": statspage.MAGIC,
        "kStatsVersion": statspage.VERSION,
        "kStatsOldestVersion": statspage.OLDEST_VERSION,
        "kStatsPageSize": statspage.PAGE_SIZE,
        "kStatsMaxRails": statspage.MAX_RAILS,
        "kStatsMaxEvents": statspage.MAX_EVENTS,
        "kStatsMaxGroups": statspage.MAX_GROUPS,
        "kStatsLatencyBuckets": statspage.LATENCY_BUCKETS,
        "kStatsRailsAt": statspage.RAILS_AT,
        "kStatsEventsAt": statspage.EVENTS_AT,
        "kStatsLatencyAt": statspage.LATENCY_AT,
        "kStatsGroupsAt": statspage.GROUPS_AT,
    }
    assert {name: theirs[name] for name in ours} == ours
