"""Version 2 of the stats page: messages, latencies, comm groups; version 1 is still read."""

import json
from ipaddress import IPv6Address
from pathlib import Path

import pytest
from group_page_bytes import latency, make
from hypothesis import given
from hypothesis import strategies as st

from telemetry import statslayout as sl
from telemetry import statspage as sp
from telemetry.jobtotals import MAX_STEP, JobTotals
from telemetry.statsdir import ProcessPage, StatsDirectory


def test_messages_and_latencies_of_a_rail():
    page = sp.parse(make(rail_latency=latency(9_000, b0=1, b5=3)))
    (rail,) = page.rails
    assert (rail.tx_messages, rail.rx_messages) == (4, 3)
    assert rail.latency.sum_ns == 9_000
    assert rail.latency.count == 4
    assert rail.latency.buckets[5] == 3
    assert page.groups == ()


def test_groups():
    rows = [
        {
            "address": IPv6Address("::ffff:10.0.0.7").packed, "incarnation": 2**63 + 1,
            "direction": 1, "comms": 2, "bytes": 10, "messages": 5, "in_flight_bytes": 3,
            "latency": latency(50, b1=5),
        },
        {"address": IPv6Address("fd00::2").packed, "incarnation": 4, "direction": 2},
        {"bytes": 8},
    ]  # fmt: skip
    first, second, others = sp.parse(make(groups=rows), groups=True).groups
    assert (first.address, first.incarnation) == ("10.0.0.7", 2**63 + 1)
    assert first.direction is sp.Direction.SEND
    assert (first.comms, first.bytes, first.messages, first.in_flight_bytes) == (2, 10, 5, 3)
    assert (first.latency.sum_ns, first.latency.buckets[1]) == (50, 5)
    assert (second.address, second.direction) == ("fd00::2", sp.Direction.RECEIVE)
    assert (others.address, others.direction, others.bytes) == ("", sp.Direction.BOTH, 8)


def test_a_page_of_version_1_has_none_of_it_whatever_lies_there():
    groups = [{"direction": 9}] * 3
    data = make(version=1, groups=groups, rail_latency=latency(1, b0=1), group_count=2**32 - 1)
    for length in (sl.PAGE_SIZE, sl.EVENTS_AT):
        page = sp.parse(data[:length], groups=True)
        assert page.rails == (sp.StatsRail("rail0", tx_bytes=5),)
        assert page.groups == ()


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (make(version=0), "version"),
        (make(version=3), "version"),
        (make(group_count=66), "count"),
        (make(group_count=2**32 - 1), "count"),
        (make(groups=[{"direction": 3}]), "group"),
        (make()[: sl.EVENTS_AT], "short"),
        (make()[:-1], "short"),
    ],
)
def test_refused(page, reason):
    with pytest.raises(sp.StatsPageError) as refused:
        sp.parse(page, groups=True)
    assert refused.value.reason == reason


@given(
    damage=st.lists(
        st.tuples(st.integers(0, sl.PAGE_SIZE - 1), st.binary(min_size=1, max_size=64)), max_size=20
    )
)
def test_any_damage_is_refused_or_decoded(damage):
    page = bytearray(make(groups=[{"direction": 1}] * 10))
    for at, data in damage:
        page[at : at + len(data)] = data
    try:
        groups = sp.parse(bytes(page[: sl.PAGE_SIZE]), groups=True).groups
    except sp.StatsPageError as error:
        known = {"short", "magic", "version", "size", "torn", "count", "netdev", "group"}
        assert error.reason in known  # noqa: PT017
    else:
        assert len(groups) <= sl.MAX_GROUPS
        assert all(len(group.latency.buckets) == sl.LATENCY_BUCKETS for group in groups)


def process(pid, **rail):
    page = sp.parse(make(pid=pid, rail_latency=latency(**rail)))
    return ProcessPage(Path("x"), 0, page, alive=True)


def test_latencies_of_all_processes_add_up_and_survive_ends_and_restarts():
    totals = JobTotals(["rail0"])
    totals.update([process(1, sum_ns=10, b3=2), process(2, sum_ns=5, b3=1, b27=4)], 1)
    totals.update([process(2, sum_ns=6, b3=2, b27=4)], 2)  # the first one has ended
    later = JobTotals(["rail0"])
    later.restore(json.loads(json.dumps(totals.to_state())))
    later.update([process(2, sum_ns=8, b3=2, b27=5)], 3)
    found = later.rail("rail0").latency
    assert found.sum_ns == 18
    assert (found.buckets[3], found.buckets[27], found.count) == (4, 5, 9)
    assert later.refused == 0


def test_a_latency_that_jumps_or_goes_back_is_not_believed():
    totals = JobTotals(["rail0"])
    totals.update([process(1, sum_ns=10, b3=2)], 1)
    totals.update([process(1, sum_ns=2 * MAX_STEP, b3=1)], 2)
    assert totals.rail("rail0").latency.sum_ns == 10
    assert totals.rail("rail0").latency.count == 2
    assert totals.refused == 2


def test_a_state_of_an_earlier_version_has_no_latencies():
    totals = JobTotals(["rail0"])
    totals.update([process(1, sum_ns=10, b3=2)], 1)
    state = json.loads(json.dumps(totals.to_state()))
    for counters in (state["rails"]["rail0"], state["last"][0]["rails"]["rail0"]):
        for name in [name for name in counters if name.startswith("latency")]:
            del counters[name]
    later = JobTotals(["rail0"])
    later.restore(state)
    later.update([process(1, sum_ns=12, b3=3)], 2)
    assert later.rail("rail0").latency.count == 3


@pytest.mark.parametrize(("foreign", "seen"), [(True, False), (False, True)])
def test_a_pid_of_another_namespace_is_nobodys_here(tmp_path, foreign, seen):
    """1 is the job's own pid in its container, and this host's init, which never ends."""
    here = Path("/proc/self/ns/pid").stat().st_ino
    now = 10**15
    page = make(pid=1, start_ns=5, heartbeat_ns=now, pid_namespace=here + foreign)
    (tmp_path / "1-5.page").write_bytes(page)
    asked = []
    reader = StatsDirectory(tmp_path, seen=lambda *who: asked.append(who) or True)
    (found,) = reader.scan(now)
    assert found.seen is seen
    assert bool(asked) is seen
    assert found.alive  # by its heartbeat
    (later,) = StatsDirectory(tmp_path, seen=lambda *_: True).scan(now + 20 * 10**9)
    assert later.alive is seen


def test_pages_in_a_jobs_own_directory_are_read_and_no_deeper(tmp_path):
    now = 10**15
    places = {"job-1": 1, "job-2": 1, ".hidden": 2, "job-1/deeper": 3}
    for place, pid in places.items():
        (tmp_path / place).mkdir(exist_ok=True, parents=True)
        page = make(pid=pid, start_ns=5, heartbeat_ns=now)
        (tmp_path / place / f"{pid}-5.page").write_bytes(page)
    (tmp_path / "link").symlink_to(tmp_path / "job-1")
    reader = StatsDirectory(tmp_path, seen=lambda *_: True)
    found = reader.scan(now)
    assert [(p.subdirectory, p.name) for p in found] == [
        ("job-1", "job-1/1-5.page"),
        ("job-2", "job-2/1-5.page"),
    ]
    assert dict(reader.refused) == {"name": 2}  # the link, and what lies too deep
    assert reader.remove(found[0])
    assert [p.subdirectory for p in reader.scan(now)] == ["job-2"]


def test_a_subdirectory_that_cannot_be_opened_is_told_as_such(tmp_path):
    now = 10**15
    (tmp_path / "1-5.page").write_bytes(make(pid=1, start_ns=5, heartbeat_ns=now))
    (tmp_path / "job-1").mkdir()

    def swap(*_):
        """Between the listing of the directory and that of the subdirectory."""
        (tmp_path / "job-1").rmdir()
        (tmp_path / "job-1").touch()
        return True

    reader = StatsDirectory(tmp_path, seen=swap)
    assert len(reader.scan(now)) == 1
    assert reader.report.partial == "1 subdirectories could not be opened"


def test_a_job_that_makes_directories_without_end_does_not_keep_the_reader(tmp_path, monkeypatch):
    monkeypatch.setattr("telemetry.statslisting.MAX_SUBDIRECTORIES", 3)
    now = 10**15
    for number in range(6):
        (tmp_path / f"d{number}").mkdir()
        page = make(pid=1, start_ns=5, heartbeat_ns=now)
        (tmp_path / f"d{number}" / "1-5.page").write_bytes(page)
    reader = StatsDirectory(tmp_path, seen=lambda *_: True)
    assert len(reader.scan(now)) == 3
    assert reader.refused["too_many"] == 3
