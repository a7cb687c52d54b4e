"""``explain job``: does it move, whom does it wait for, and what may hold it up?"""

from io import StringIO

import pytest
from rich.console import Console

from fabricd.cli import show_explain
from fabricd.detect.locate import Blame, Kind, Way
from fabricd.jobs.stall import JobLink, Surroundings, explain_job
from telemetry.events import LinkState

PEERS = {"10.0.0.2": "h1", "10.0.0.3": "h2", "10.0.0.4": "h3"}


def rail(number, tx=0, rx=0, flight=0, stall_ns=0):
    return {
        "netdev": f"rail{number}", "tx_bytes": tx, "rx_bytes": rx, "in_flight_bytes": flight,
        "stall_ns": stall_ns,
    }  # fmt: skip


def group(address, direction="send", moved=0, flight=0, comms=2):
    return {
        "address": address, "incarnation": 1, "direction": direction, "bytes": moved,
        "messages": moved // 10, "in_flight_bytes": flight, "comms": comms,
    }  # fmt: skip


def look(second, rails, groups, job="gpt", pid=7):
    process = {"job": job, "uid": 0, "pid": pid, "start_ns": 5, "rails": rails, "groups": groups}
    return {"time_ns": round(second * 1e9), "processes": [process]}


def links(**states):
    return [
        JobLink(f"rail{r}", r, f"rail{r}", states.get(f"rail{r}", LinkState.UP), "some reason")
        for r in range(2)
    ]


def around(faults=(), silent=(), slow=None, **states):
    probed = frozenset({"h1", "h2", "h3"})
    return Surroundings("h0", links(**states), faults, frozenset(silent), probed, PEERS, slow)


MOVING = (
    look(1, [rail(0), rail(1)], [group("10.0.0.2", flight=9), group("10.0.0.4", "receive")]),
    look(
        2, [rail(0, tx=600, flight=10), rail(1, rx=400)],
        [group("10.0.0.2", moved=600, flight=10), group("10.0.0.4", "receive", moved=400)],
    ),
)  # fmt: skip
STANDING = (
    look(1, [rail(0, flight=10), rail(1)], [group("10.0.0.2", flight=10), group("10.0.0.4")]),
    look(
        2.5, [rail(0, flight=10, stall_ns=900_000_000), rail(1)],
        [group("10.0.0.2", flight=10), group("10.0.0.4")],
    ),
)  # fmt: skip


def causes(document):
    return [(cause["part"], cause["element"]) for cause in document["causes"]]


def test_a_job_that_moves():
    told = explain_job(*MOVING, "gpt", around())
    assert (told["stands"], told["bytes_s"], told["waits_for"]) == (False, 1000, [])
    assert (told["peers"], told["causes"], told["processes"]) == (["h1", "h3"], [], 1)


def test_a_job_that_stands_waits_for_a_process_where_nothing_is_at_fault():
    told = explain_job(*STANDING, "gpt", around())
    assert told["uids"] == [0]
    assert explain_job(*STANDING, "gpt", around(), 1002)["processes"] == 0, "another user's"
    assert (told["stands"], told["stalled_s"], told["seconds"]) == (True, 0.9, 1.5)
    assert told["waits_for"] == ["h1"]
    assert causes(told) == [("process", "h1")]


def test_what_is_at_fault_on_the_way_is_the_cause_and_no_process():
    dead = Blame(Kind.HOST, "h1", confidence=0.99)
    told = explain_job(*STANDING, "gpt", around([dead], ["h1"]))
    assert causes(told) == [("host", "h1")], "once"
    assert told["causes"][0]["text"] == str(dead)
    assert causes(explain_job(*STANDING, "gpt", around(silent=["h1", "h9"]))) == [("host", "h1")]


def test_a_host_that_hears_nobody_is_cut_off_itself():
    down = {"rail0": LinkState.DOWN, "rail1": LinkState.DOWN}
    told = explain_job(*STANDING, "gpt", around([Blame(Kind.HOST, "h1")], PEERS.values(), **down))
    assert causes(told) == [("host", "h0")]
    some = around(silent=["h1", "h2"])
    assert causes(explain_job(*STANDING, "gpt", some)) == [("host", "h1")]
    alone = Surroundings("h0", links(), silent=frozenset({"h1"}), probed=frozenset({"h1"}),
                         peers=PEERS)  # fmt: skip
    assert causes(explain_job(*STANDING, "gpt", alone)) == [("host", "h1")], "one of two"


@pytest.mark.parametrize(
    ("blame", "concerns"),
    [
        (Blame(Kind.LINK, "h0/1"), True),
        (Blame(Kind.LINK, "h1/0", Way.OUT), True),
        (Blame(Kind.LINK, "h2/0"), False),
        (Blame(Kind.LINK, "h1/5"), False),
        (Blame(Kind.LEAF, "rail1"), True),
        (Blame(Kind.LEAF, "rail7"), False),
        (Blame(Kind.HOST, "h2"), False),
        (Blame(Kind.HOST, "h0"), True),
        (Blame(Kind.PATH, "h0/0-h1/1"), True),
        (Blame(Kind.PATH, "h0/0-h2/1"), False),
        (Blame(Kind.SPINE, "between leaves"), True),
        (Blame(Kind.UNKNOWN, ""), False),
    ],
)
def test_faults_elsewhere_are_no_cause(blame, concerns):
    found = causes(explain_job(*MOVING, "gpt", around([blame])))
    assert found == ([(blame.kind.value, blame.element)] if concerns else [])


def test_own_links_that_are_not_well_unless_a_place_explains_them():
    bad = {"rail0": LinkState.DOWN, "rail1": LinkState.UP}
    assert causes(explain_job(*MOVING, "gpt", around(**bad))) == [("link", "h0/0")]
    for place in (Blame(Kind.LEAF, "rail0"), Blame(Kind.HOST, "h0"), Blame(Kind.LINK, "h0/0")):
        found = causes(explain_job(*MOVING, "gpt", around([place], **bad)))
        assert found == [(place.kind.value, place.element)]
    admin = {"rail0": LinkState.ADMIN, "rail1": LinkState.UNKNOWN}
    assert explain_job(*MOVING, "gpt", around(**admin))["causes"] == []
    slow = explain_job(*MOVING, "gpt", around(slow={"rail1": "takes 3 ms", "rail9": "x"}))
    assert causes(slow) == [("link", "h0/1")]
    assert "takes 3 ms" in slow["causes"][0]["text"]


def test_links_that_the_job_does_not_use_are_none_of_its():
    one = [look(t, [rail(0)], [group("10.0.0.2")]) for t in (1, 2)]
    assert explain_job(*one, "gpt", around(rail1=LinkState.DOWN))["causes"] == []
    assert explain_job(*one, "other", around(rail0=LinkState.DOWN))["processes"] == 0


def test_a_process_that_just_began_and_one_with_a_peer_that_nobody_knows():
    old = look(1, [rail(0, tx=5)], [group("10.0.0.2", flight=3)], pid=6)
    new = look(2, [rail(0, tx=9, flight=4)], [group("10.9.9.9", flight=4)])
    told = explain_job(old, new, "gpt", around())
    assert (told["bytes_s"], told["stands"]) == (0, True)
    assert told["peers"] == ["10.9.9.9"]
    assert explain_job(new, new, "gpt", around())["waits_for"] == ["10.9.9.9"]
    closed = look(1, [rail(0)], [group("10.0.0.2", comms=0), group("", flight=3)])
    assert explain_job(closed, closed, "gpt", around())["peers"] == []


def test_what_was_not_looked_at_is_said():
    assert explain_job(*MOVING, "gpt", around())["incomplete"] == []
    full = look(2, [rail(0)], [group("", comms=3), group("10.0.0.2")])
    full |= {"left_out": 7, "scan": {"partial": "time is over after 200 of 300 files"}}
    told = explain_job(full, full, "gpt", around())
    assert told["incomplete"] == [
        "7 processes of this host were not looked at: too many",
        "not all stats pages were read: time is over after 200 of 300 files",
        "1 of its processes have more peers than their pages tell apart",
    ]
    unused = look(2, [rail(0)], [group("", comms=0)])  # the last row of a page is always there
    assert explain_job(unused, unused, "gpt", around())["incomplete"] == []


def test_two_users_with_jobs_of_one_name_are_told():
    both = look(2, [rail(0)], [])
    both["processes"].append(both["processes"][0] | {"uid": 1000, "pid": 8})
    told = explain_job(both, both, "gpt", around())
    assert told["uids"] == [0, 1000]
    out = StringIO()
    show_explain.job(Console(file=out, width=200), told)
    assert "users 0, 1000 have processes of this job's name" in out.getvalue()
    assert explain_job(*MOVING, "gpt", around())["uids"] == [0]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (explain_job(*MOVING, "gpt", around()), ["moves 0.001 MB/s", "ask its other hosts"]),
        (
            explain_job(*STANDING, "gpt", around()),
            ["stands: bytes are under way", "bytes wait for"],
        ),
        (explain_job(MOVING[0], MOVING[0], "gpt", around()), ["it computes, or waits for others"]),
    ],
)
def test_for_people(document, said):
    out = StringIO()
    show_explain.job(Console(file=out, width=200), document)
    for text in said:
        assert text in out.getvalue()
