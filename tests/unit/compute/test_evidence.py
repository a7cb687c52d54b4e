"""Whose word counts when a host is called lost. Pure."""

import pytest

from compute.decide.agent_votes import AgentVotes
from compute.decide.budget import FenceBudget
from compute.decide.evidence import Verdict, judge
from compute.decide.observers import HostView, Observers
from compute.decide.policy import Policy
from telemetry.messages.documents import HostObservations, HostStatus, SilentHost

ONLINE = HostStatus(online=True)
DEAD = HostStatus(online=False)
LEFT = HostStatus(online=False, intended=True)


def view(*silent, heard=(), abstains=False, status=ONLINE, rails=2):
    rows = [SilentHost(host=one, rails=rails, rails_probed=2) for one in silent]
    return HostView(status, HostObservations(silent=rows, heard=list(heard), abstains=abstains))


def observers(hosts):
    known = Observers()
    for name, one in hosts.items():
        known.update(name, one)
    return known


def verdict(hosts, host="x", agents=None):
    found = judge([*hosts, host], observers(hosts), AgentVotes.of(agents or {}), 2)
    return found.get(host, Verdict(False, "nobody speaks against it"))


def test_most_observers_have_to_call_it_silent():
    hosts = {"a": view("x"), "b": view("x"), "c": view(heard=["x"]), "x": view()}
    assert verdict(hosts).lost
    assert verdict(hosts).reason == "silent on all rails to 2 of 3 observers"
    assert not verdict(hosts | {"d": view(heard=["x"])}).lost


def test_one_observer_is_never_enough():
    assert not verdict({"a": view("x"), "x": view()}).lost


def test_silence_on_some_rails_is_no_vote():
    hosts = {"a": view("x", rails=1), "b": view("x", rails=1), "x": view()}
    assert observers(hosts).votes("x", ()).heard == ("a", "b")
    assert not verdict(hosts).votes.any_against


@pytest.mark.parametrize(
    "idle", [view("x", abstains=True), view("x", status=DEAD), view("x", status=LEFT)]
)
def test_who_abstains_counts_for_the_half(idle):
    hosts = {"a": view("x"), "b": view("x"), "c": idle, "d": idle, "x": view()}
    assert not verdict(hosts).lost
    assert verdict(hosts).votes.abstained == ("c", "d")


def test_the_small_side_of_a_partition_has_no_vote():
    big = {name: view("p", "q", heard=set("abcdex") - {name}) for name in "abcde"}
    small = {name: view(*"abcde", "x") for name in "pq"}
    hosts = {**big, **small, "x": view()}
    assert observers(hosts).silent(2) == {"p", "q"}
    assert not verdict(hosts).lost
    assert verdict(hosts).votes.abstained == ("p", "q")


def test_a_last_will_alone_is_a_hint():
    hosts = {"a": view(heard=["x"]), "b": view(heard=["x"]), "x": view(status=DEAD)}
    assert not verdict(hosts).lost
    assert verdict(hosts).reason == "the broker has lost it"


def test_two_kinds_of_evidence_agree_without_probes():
    hosts = {"a": view(), "b": view(), "c": view(), "x": view(status=DEAD)}
    agents = dict.fromkeys("abc", ((), ("x",)))
    found = verdict(hosts, agents=agents)
    assert found.lost
    assert found.reason == "the broker has lost it, missed by 3 of 3 agents of the job"


def test_while_the_job_hears_it_it_is_not_lost():
    hosts = {"a": view("x"), "b": view("x"), "x": view(status=DEAD)}
    agents = {"a": ((), ("x",)), "b": (("x",), ())}
    found = verdict(hosts, agents=agents)
    assert not found.lost
    assert found.reason == "the job's agent on b hears it"


def test_a_dead_agents_word_does_not_save_it():
    hosts = {"a": view("x"), "b": view("x"), "c": view(heard=["x"], status=DEAD), "x": view()}
    assert verdict(hosts, agents={"a": ((), ("x",)), "c": (("x",), ())}).lost


def test_hosts_of_a_rack_that_go_together_blame_its_switch():
    budget = FenceBudget(Policy(rack_hosts=3, rack_window_s=2.0))
    racks = dict.fromkeys("abc", "r1") | {"d": "r2"}
    assert budget.refusal({"a": "", "b": ""}, racks, 100, now=0.0) == {}
    refused = budget.refusal({"c": "", "d": ""}, racks, 100, now=1.0)
    assert set(refused) == {"c"}
    assert "3 hosts of rack r1 are lost together (a, b, c): its switch is to blame" in refused["c"]
    assert budget.refusal({"c": ""}, racks, 100, now=9.0) == {}


def test_no_more_than_the_budget_of_a_window():
    budget = FenceBudget(Policy(budget_least=1, budget_percent=2, budget_window_s=60))
    assert budget.refusal({"a": ""}, {}, 100, now=0.0) == {}
    for host in "ab":
        budget.spent(host, 0.0)
    refused = budget.refusal({"a": "", "c": ""}, {}, 100, now=59.0)
    assert refused == {
        "c": "2 hosts were fenced within 60 s: no more of 100 hosts are allowed to be"
    }
    assert budget.refusal({"c": ""}, {}, 100, now=61.0) == {}
