"""The stats page's layout in Python is the one of nccl_plugin/pages/stats_page.h."""

import json
import subprocess

import pytest

from telemetry import statslayout


@pytest.fixture(scope="module")
def layout(native):
    return json.loads(subprocess.check_output([native("nccl_plugin/fabric_layout_dump")]))


@pytest.mark.parametrize(
    ("name", "fields", "size"),
    [
        ("StatsHeader", statslayout.HEADER_FIELDS, statslayout.HEADER_SIZE),
        ("StatsRail", statslayout.RAIL_FIELDS, statslayout.RAIL_SIZE),
        ("StatsEvent", statslayout.EVENT_FIELDS, statslayout.EVENT_SIZE),
        ("StatsLatency", statslayout.LATENCY_FIELDS, statslayout.LATENCY_SIZE),
        ("StatsGroup", statslayout.GROUP_FIELDS, statslayout.GROUP_SIZE),
    ],
)
def test_struct(layout, name, fields, size):
    theirs = layout["structs"][name]
    assert theirs["size"] == size
    assert theirs["fields"] == statslayout.offsets(fields)


def test_constants(layout):
    theirs = layout["constants"]
    ours = {
        "kStatsMagic": statslayout.MAGIC,
        "kStatsVersion": statslayout.VERSION,
        "kStatsOldestVersion": statslayout.OLDEST_VERSION,
        "kStatsPageSize": statslayout.PAGE_SIZE,
        "kStatsMaxRails": statslayout.MAX_RAILS,
        "kStatsMaxEvents": statslayout.MAX_EVENTS,
        "kStatsMaxGroups": statslayout.MAX_GROUPS,
        "kStatsLatencyBuckets": statslayout.LATENCY_BUCKETS,
        "kStatsRailsAt": statslayout.RAILS_AT,
        "kStatsEventsAt": statslayout.EVENTS_AT,
        "kStatsLatencyAt": statslayout.LATENCY_AT,
        "kStatsGroupsAt": statslayout.GROUPS_AT,
    }
    assert {name: theirs[name] for name in ours} == ours
