"""The simulator: its packets follow the prober's rules, and its score tells right from wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.detect import fleet
from bench.detect.paths import Noise
from bench.detect.play import Claim, Story, Watched
from bench.detect.scenario import (
    HOSTS,
    LENGTH_S,
    RAILS,
    SHARES,
    START_S,
    Fault,
    Kind,
    Scenario,
    leaf_of,
    make,
    spine_of,
)
from bench.detect.score import Result, _precision, judge, watched
from bench.detect.simulator import rows, table
from bench.detect.traffic import FlowLog, due_between, lateness, process, within
from telemetry.events import LinkState


def story(kind, **fields):
    return Scenario(1, kind, LENGTH_S.get(kind, 20.0) + START_S, **fields)


def of_kind(kind, first=0):
    return next(seed for seed in range(first, first + 2000) if make(seed).kind is kind)


def test_shares_are_a_distribution_and_every_kind_comes():
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert {make(seed).kind for seed in range(400)} == set(Kind)


def test_a_seed_is_one_story():
    assert [make(5).text, make(5).faults] == [make(5).text, make(5).faults]
    first, again = (make(of_kind(Kind.CUT)) for _ in range(2))
    told = Watched(first, Noise(first), first.host).run()
    assert told.claims
    assert told == Watched(again, Noise(again), again.host).run()


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_lost_received_and_bitmap_agree_with_what_was_sent(heard):
    sent = np.arange(len(heard)) * 0.1
    log = FlowLog.make(sent, np.array(heard), np.where(heard, sent + 0.01, np.inf))
    seen = log.seen(np.array([len(heard) * 0.1 + 1]))
    assert seen.received[0] == sum(heard)
    if not any(heard):
        assert (seen.last[0], seen.lost[0]) == (-1.0, 0)
        return
    first, last = heard.index(True), len(heard) - 1 - heard[::-1].index(True)
    known = [i for i in range(first, last - 7) if not heard[i]]
    assert seen.lost[0] == len(known), "absent eight behind the highest, from the first heard on"
    assert seen.highest[0] == last
    for bit in range(16):
        there = last - bit >= 0 and heard[last - bit]
        assert bool(seen.bitmap[0] >> bit & 1) == there


@pytest.mark.parametrize(("silent", "expected"), [(0.11, 0), (0.112, 1), (0.21, 1), (0.212, 2)])
def test_misses_are_called_as_the_prober_does(silent, expected):
    until = np.array([silent - lateness(0.1, 0.01)])
    assert due_between(np.zeros(1), until, 0.0, 0.1)[0] == expected


def test_a_stalled_reader_reads_later_and_overflows():
    arrival = np.arange(0, 2, 0.01)
    heard = np.ones(len(arrival), dtype=bool)
    at = process(arrival, heard, [(0.5, 1.5)])
    assert at[40] == arrival[40]
    assert at[55] == 1.5
    assert not heard[120]
    assert within([(0.5, 1.5)], np.array([0.0]), np.array([1.0]))[0] == 0.5


@given(st.integers(0, HOSTS - 1), st.integers(0, RAILS - 1), st.sampled_from(["tx", "rx", "both"]))
def test_a_port_fault_hits_its_own_flows(host, rail, way):
    port, other = (host, rail), ((host + 1) % HOSTS, rail)
    fault = Fault(Kind.GRAY, 0, 1, 0.1, port, way)
    assert fault.hits(port, other) == (way != "rx")
    assert fault.hits(other, port) == (way != "tx")
    assert not fault.hits(other, ((host + 2) % HOSTS, rail))


def test_spines_take_about_their_share_of_flows_between_leaves():
    pairs = [((h, 0), (h + 70, 0)) for h in range(180)]
    taken = [spine_of(a, b) for a, b in pairs]
    assert len(set(taken)) == 8
    fault = Fault(Kind.SPINE, 0, 1, 1.0, spine=taken[0])
    assert fault.hits(*pairs[0])
    assert not fault.hits((0, 0), (1, 0)), "same leaf"
    assert leaf_of((64, 3)) == "p1r3"


def test_both_ends_of_a_simulated_path_probe_it():
    own = fleet.paths(3)
    # Cross-rail and clock paths are among those of these.
    some = {own[10].peer, own[11].peer, *(s.peer for s in own[:12] if s.clock)}
    chosen = [spec for spec in own if spec.peer in some]
    assert {(s.link == s.peer_rail, s.clock) for s in chosen} >= {
        (True, False), (True, True), (False, False),
    }  # fmt: skip
    for spec in chosen:
        back = fleet.paths(fleet.number(spec.peer))
        assert any(
            (b.link, b.peer, b.peer_rail, b.clock) == (spec.peer_rail, "h3", spec.link, spec.clock)
            for b in back
        )


def test_claims_are_told_right_from_wrong():
    port = (3, 1)
    dead = story(Kind.DARK_NIC, faults=[Fault(Kind.DARK_NIC, 5, 25, 1.0, port)], host=3)
    down = LinkState.DOWN
    told = Story(3, [Claim(3, 1, 5.2, down, ""), Claim(3, 2, 5.2, down, "")])
    told.claims += [Claim(3, 1, 2.0, down, ""), Claim(3, 0, 6.0, down, "", (9, 1))]
    result = Result(1, Kind.DARK_NIC)
    _precision(dead, told, result)
    assert (result.right, len(result.wrong)) == (0, 3), "the early claim spoils the later one"
    other = Result(1, Kind.DARK_NIC)
    _precision(dead, Story(8, [Claim(8, 1, 6.0, down, "", port)]), other)
    assert (other.right, other.wrong) == (1, [])


@pytest.mark.parametrize("kind", [Kind.CUT, Kind.DARK_NIC, Kind.FLAP])
def test_the_owner_of_a_dead_link_finds_it(kind):
    scenario = make(of_kind(kind))
    told = Watched(scenario, Noise(scenario), scenario.host).run()
    port = scenario.faults[0].port
    assert port[1] in {c.rail for c in told.claims if c.peer is None}
    assert told.published <= 3


@pytest.mark.parametrize("kind", [Kind.HOST, Kind.RESTART, Kind.QUIET])
def test_hosts_that_vanish_or_restart_accuse_no_link(kind):
    scenario = make(of_kind(kind))
    name = f"h{scenario.host}"
    peer = next(h for h in watched(scenario) if name in {s.peer for s in fleet.paths(h)})
    told = Watched(scenario, Noise(scenario), peer).run()
    assert [c for c in told.claims if c.peer is None] == []


def test_table_has_every_kind_and_the_rows_what_is_asked():
    results = [judge(of_kind(Kind.CUT)), Result(1, Kind.QUIET)]
    assert results[0].right
    assert results[0].wrong == []
    text = table(results)
    assert all(f"| {kind} |" in text for kind in Kind)
    asked = {row.name: row.asked for row in rows(results) if row.asked is not None}
    assert asked["precision"] == 99
    assert asked["recall"] == 99
