"""Sentences of the timeline: what belongs together is one, and no flap is lost from the counts."""

import itertools
import re

import pytest
from faulty_host import FLAPS, JOB, story
from hypothesis import given
from hypothesis import strategies as st

from fabricd.views.moments import Grouping, moment, moments, single
from telemetry.events import EventKind
from telemetry.statspage import PathDownReason, StatsEventKind

MS = 10**6


def row(kind, ms, link="rail0", **more):
    times = {"wall_ns": 10**18 + ms * MS, "mono_ns": 10**12 + ms * MS, "boot_id": "b"}
    return {"kind": kind, "link": link, "count": 1, "host": "h"} | times | more


def texts(rows):
    return [one.text for one in moments(rows)]


def down(ms, **more):
    return row("link_state", ms, **{"from": "up", "to": "down"}, reason="carrier lost", **more)


def steer(ms, before, weight, **more):
    return row("steer", ms, to="down", data={"before": before, "weight": weight}, **more)


def test_a_flap_its_state_and_its_weight_are_one_sentence():
    (one,) = moments([row("flap", 0, reason="lost"), down(1), steer(2, 1000, 0)])
    assert one.text == "lost its carrier, up → down, weight 100 % → 0 %: carrier lost"
    assert (one.subject, one.level, len(one.rows)) == ("rail0", "warning", 3)
    assert (one.wall_ns, one.until_wall_ns) == (10**18, 10**18 + 2 * MS)


def test_a_burst_is_one_sentence_with_its_count_and_its_time():
    burst = [row(kind, 300 * n + at, reason="lost") for n in range(13)
             for kind, at in (("flap", 0), ("carrier_up", 150))]  # fmt: skip
    assert texts(burst) == ["lost its carrier 13 times in 3.6 s"]
    assert texts([row("flap", 0, count=700, until_wall_ns=10**18 + 5 * 10**9, reason="")]) == [
        "lost its carrier 700 times in 5.0 s"
    ]
    assert texts([row("flap", 0), row("carrier_up", 150)]) == ["lost its carrier for 0.15 s"]
    assert texts([row("carrier_up", 0)]) == ["has carrier"]


def test_what_is_apart_is_told_apart():
    rows = [row("flap", 0, reason="lost"), row("flap", 2001, reason="lost")]
    assert len(texts(rows)) == 2
    assert len(texts([row("flap", 0), row("flap", 100, link="rail1")])) == 2
    assert len(texts([row("flap", 0), row("flap", 100, boot_id="c")])) == 2, "of another boot"
    assert len(texts([row("flap", 5000), row("flap", 0)])) == 2, "time went back"
    (one,) = moments([row("flap", 500), row("flap", 0)])
    assert (one.wall_ns, one.until_wall_ns) == (10**18, 10**18 + 500 * MS), "late by a little"


def test_paths_that_go_with_their_link_are_named_in_its_sentence():
    def path(ms, peer):
        return row("path_state", ms, peer=peer, **{"from": "up", "to": "down"}, reason="not heard")

    assert texts([down(0), path(10, "a"), path(20, "b")]) == [
        "up → down: carrier lost; paths to a, b too"
    ]
    assert texts([path(10, "a"), steer(10, 1000, 0, peer="a", reason="not heard")]) == [
        "path to a: up → down, weight 100 % → 0 %: not heard"
    ]
    many = [path(n, f"h{n}") for n in range(9)]
    assert texts(many) == ["paths to h0, h1, h2, h3 and 5 more: up → down: not heard"]


def test_many_states_are_the_first_and_the_last():
    names = ["up", "suspect", "down", "hold", "probation", "up"]
    rows = [row("link_state", n, **{"from": a, "to": b}, reason="x")
            for n, (a, b) in enumerate(itertools.pairwise(names))]  # fmt: skip
    assert texts(rows) == ["up → suspect → … → probation → up: x"]


def test_what_steering_would_do_is_said_so():
    assert texts([row("would_steer", 0, reason="loss", data={"before": 1000, "weight": 500})]) == [
        "would weigh 100 % → 50 %: loss"
    ]


def plugin(ms, reason, **data):
    return row("plugin", ms, reason=reason, data={"job": "gpt", "uid": 1, "detail": 0} | data)


def test_a_jobs_reports_are_one_sentence_in_which_errors_are_the_first():
    rows = [
        plugin(0, "path_down", why="peer_told"), plugin(1, "fence_done"), plugin(2, "first_byte"),
        plugin(3, "path_down", why="carrier"), plugin(4000, "path_up"),
        plugin(9000, "error", detail=6),
    ]  # fmt: skip
    (one,) = moments(rows)
    assert one.text == (
        "job gpt: ERROR 6 went to NCCL, 2 paths given up on rail0 (the peer gave them up, "
        "no carrier), 1 path taken up again"
    )
    assert one.subject == ""
    assert texts([plugin(0, "all_paths_down")]) == ["job gpt: NO PATH LEFT"]
    assert texts([plugin(0, "fence_done")]) == ["job gpt: 1 report of its plugin (--detail)"]
    other = plugin(1, "path_up") | {"data": {"job": "other", "uid": 1}}
    assert len(texts([plugin(0, "path_up"), other])) == 2


@pytest.mark.parametrize("kind", StatsEventKind)
@pytest.mark.parametrize("why", PathDownReason)
def test_every_report_of_a_plugin_has_words(kind, why):
    (text,) = texts([plugin(0, kind.name.lower(), why=why.name.lower())])
    assert "_" not in text
    assert why is PathDownReason.MOVED or kind.name.lower() not in text.split(": ")[1]


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_has_a_sentence_and_a_line_with_all_of_it(kind):
    one = moment([row(kind.value, 0, reason="because", data={"key": "value"})])
    assert one.text
    whole = single(row(kind.value, 0, reason="because", data={"key": "value"})).text
    assert whole.startswith(f"{kind.value}: ")
    assert "[key=value]" in whole


def test_a_row_of_a_newer_release_is_told_as_it_is():
    assert texts([row("warp_drive", 0, reason="off")]) == ["off"]
    assert texts([row("warp_drive", 0)]) == ["warp drive"]


def test_the_story_of_an_hour_is_a_page_and_begins_with_its_first_flap():
    found = moments([event.to_dict() for event in story(10**18, 10**12)])
    assert len(found) <= 12
    assert found[1].text.startswith(f"lost its carrier {FLAPS} times")
    jobs = [one for one in found if one.text.startswith(f"job {JOB}")]
    assert 1 <= len(jobs) <= 2
    assert jobs[-1].level in ("error", "warning")


KINDS = st.sampled_from(["flap", "carrier_up", "link_state", "steer", "path_state", "plugin",
                         "located", "daemon"])  # fmt: skip


@given(st.lists(st.tuples(KINDS, st.integers(0, 4000), st.integers(1, 5)), max_size=60))
def test_no_row_and_no_flap_is_lost(drawn):
    at, rows = 0, []
    for kind, gap, count in drawn:
        at += gap
        rows.append(row(kind, at, count=count, reason="r"))
    found = moments(rows)
    assert sorted(id(one) for each in found for one in each.rows) == sorted(map(id, rows))
    begins = [one.wall_ns for one in found]
    assert begins == sorted(begins)
    flaps = sum(one["count"] for one in rows if one["kind"] == "flap")
    told = 0
    for one in found:
        if "lost its carrier" in one.text:
            times = re.search(r"lost its carrier (\d+) times", one.text)
            told += int(times[1]) if times else 1
    assert told == flaps


@given(st.lists(st.tuples(KINDS, st.integers(0, 4000)), max_size=40), st.integers(1, 10))
def test_taken_bit_by_bit_nothing_is_lost_or_told_twice(drawn, every):
    grouping, taken, at, rows = Grouping(), [], 0, []
    for number, (kind, gap) in enumerate(drawn):
        at += gap
        rows.append(row(kind, at))
        grouping.add(rows[-1])
        if number % every == 0:
            taken += grouping.take(10**12 + (at - 500) * MS)
    taken += grouping.take()
    assert sorted(id(one) for group in taken for one in group) == sorted(map(id, rows))
