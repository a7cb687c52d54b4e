"""Replay: recorded evidence through today's rules, in virtual time."""

import pytest
from whole_host import LINKS

from fabricd.config.loader import parse
from fabricd.operate.replay import recorded, replay
from telemetry.events import Event, EventKind
from telemetry.events import LinkState as S

SEC = 10**9
START = 1_700_000_000 * SEC


def config(extra=""):
    return parse(f'[host]\nname = "h"\n{LINKS}{extra}', "f")


def flap(at, link="rail0", count=1, carrier=False):
    return Event(
        EventKind.FLAP, START + round(at * SEC), 0, link=link, count=count,
        data={"carrier": carrier},
    )  # fmt: skip


def back(at, link="rail0"):
    return Event(EventKind.CARRIER_UP, START + round(at * SEC), 0, link=link)


def moved(at, was, to, reason="", link="rail0"):
    return Event(
        EventKind.LINK_STATE, START + round(at * SEC), 0, link=link, from_state=was, to_state=to,
        reason=reason,
    )  # fmt: skip


def run(rows, until=3600, extra=""):
    return replay(config(extra), rows, START + until * SEC)


def test_nothing_recorded_nothing_steered():
    report = run([])
    assert (report.episodes, report.transitions, report.fewest) == ([], 0, 3)


def test_one_loss_takes_its_time_and_the_hold_down():
    report = run([flap(10), back(15)])
    (episode,) = report.episodes
    assert (episode.link, episode.reason, episode.weight) == ("rail0", "carrier lost", 0)
    assert episode.begun_ns == START + 10 * SEC
    assert episode.seconds == pytest.approx(7), "5 s without carrier, 2 s of hold-down"
    assert (report.fewest, report.flaps) == (2, 1)


def test_todays_parameters_count():
    report = run([flap(10), back(15)], extra="[hold]\nhold_down_s = 30.0\n")
    assert report.episodes[0].seconds == pytest.approx(35)


def test_flaps_are_damped_as_they_would_be():
    rows = [row for i in range(60) for row in (flap(10 + 10 * i), back(10.2 + 10 * i))]
    report = run(rows)
    free = run(rows, extra="[damping]\nsuppress = 1000000\nmax_transitions = 0\n")
    assert report.flaps == free.flaps == 60
    assert len(report.episodes) < len(free.episodes) == 60
    assert sum(e.seconds for e in report.episodes) > sum(e.seconds for e in free.episodes)


def test_verdicts_and_loss_come_from_the_published_states():
    report = run(
        [
            moved(5, S.UP, S.DOWN, "nothing heard from a, b"),
            moved(8, S.DOWN, S.HOLD, "healthy again"),
            moved(20, S.UP, S.DEGRADED, "10 % lost", link="rail1"),
            moved(50, S.DEGRADED, S.UP, "loss is gone", link="rail1"),
        ]
    )
    first, second = report.episodes
    assert (first.reason, first.weight, first.seconds) == ("nothing heard from a, b", 0, 5.0)
    assert (second.link, second.weight, second.seconds) == ("rail1", 500, 30.0)


def test_what_carrier_did_is_not_counted_twice():
    rows = [flap(10), moved(10, S.UP, S.DOWN, "carrier lost"), back(15),
            moved(15, S.DOWN, S.HOLD, "healthy again")]  # fmt: skip
    assert [e.seconds for e in run(rows).episodes] == [7.0]


def test_never_fewer_than_one_and_the_end_of_the_past():
    report = run([flap(10, f"rail{i}") for i in range(3)], until=100)
    assert report.fewest == 1
    report = run([flap(10, f"rail{i}") for i in range(2)], until=100)
    assert {e.ended_ns for e in report.episodes} == {START + 100 * SEC}


def test_a_group_is_told_alone_but_all_links_count_for_the_fewest():
    rows = [flap(10, "rail0"), flap(11, "rail1"), back(20, "rail0"), back(20, "rail1")]
    report = replay(config(), rows, START + 100 * SEC, frozenset({"rail1"}))
    assert [e.link for e in report.episodes] == ["rail1"]
    assert (report.flaps, report.fewest) == (1, 1)


def test_rows_of_other_links_and_kinds_are_passed_over():
    assert run([flap(1, "gone"), Event(EventKind.DAEMON, START, 0, reason="started")]).flaps == 0


def would(at, weight, link="rail0", **data):
    return Event(
        EventKind.WOULD_STEER, START + at * SEC, 0, link=link, reason="carrier lost",
        data={"weight": weight, **data},
    )  # fmt: skip


def test_recorded_decisions_become_episodes():
    rows = [would(1, 0), would(2, 0, "rail1"), would(5, 1000), would(6, 0, remote="10.0.0.2")]
    report = recorded(rows, 3, START + 60 * SEC)
    assert [(e.link, e.seconds) for e in report.episodes] == [("rail0", 4.0), ("rail1", 58.0)]
    assert (report.fewest, report.transitions) == (1, 3)
    assert [(e.link, e.remote, e.seconds) for e in report.paths] == [("rail0", "10.0.0.2", 54.0)]


def path(at, was, to, reason="silent", link="rail0", peer="a"):
    return Event(
        EventKind.PATH_STATE, START + round(at * SEC), 0, link=link, peer=peer, from_state=was,
        to_state=to, reason=reason, data={"address": f"10.0.0.{ord(peer)}"},
    )  # fmt: skip


def test_exceptions_for_single_paths_are_replayed_with_todays_hold():
    rows = [path(5, S.UP, S.DOWN), path(8, S.DOWN, S.HOLD), path(30, S.UP, S.DOWN, peer="b")]
    report = run(rows, until=60, extra="[hold]\nhold_down_s = 4.0\n")
    first, second = report.paths
    assert (first.link, first.peer, first.remote) == ("rail0", "a", "10.0.0.97")
    assert (first.reason, first.weight, first.seconds) == ("silent", 0, 7.0)
    assert (second.peer, second.seconds) == ("b", 30.0), "to the end of the past"
    assert (report.episodes, report.fewest, report.transitions) == ([], 3, 0), "all links carried"
    assert report.as_json()["paths"][0]["peer"] == "a"


def test_the_last_way_to_a_peer_is_kept_in_the_past_too():
    rows = [path(5 + i, S.UP, S.DOWN, link=f"rail{i}") for i in range(3)]
    report = run(rows, until=60)
    assert [(e.link, e.seconds) for e in report.paths] == [("rail0", 2.0), ("rail1", 1.0)]


def test_paths_of_a_group_alone():
    rows = [path(5, S.UP, S.DOWN), path(6, S.UP, S.DOWN, link="rail1")]
    report = replay(config(), rows, START + 10 * SEC, frozenset({"rail1"}))
    assert [(e.link, e.seconds) for e in report.paths] == [("rail1", 4.0)]


def test_what_an_operator_drained_is_not_what_steering_would_have_done():
    drained = [
        moved(5, S.UP, S.ADMIN, "drained by uid 0: optics"),
        moved(50, S.ADMIN, S.UP, "back"),
    ]
    report = run(drained)
    assert (report.episodes, report.fewest) == ([], 3)
    (episode,) = run([moved(5, S.UP, S.ADMIN, "administratively down")]).episodes
    assert episode.link == "rail0"
