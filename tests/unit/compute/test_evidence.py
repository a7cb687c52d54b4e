"""Whose word counts when a host is called lost, and when. Pure."""

import pytest

from compute.decide.absence import LATE_S, STEP_UNKNOWN_S, Absence, StepWatch
from compute.decide.agent_votes import AgentVotes
from compute.decide.budget import FenceBudget
from compute.decide.core_hosts import Electorate
from compute.decide.evidence import (
    AGENTS,
    AWAY,
    BOTH,
    DARK,
    EXPLAINED,
    FEW_WELL,
    FLAPS,
    HEARD,
    NO_CORE,
    NOT_DARK,
    RAILS,
    STEPS_GO_ON,
    UNKNOWN,
    UNTOLD,
    UNWITNESSED,
    Bench,
    Verdict,
    judge,
)
from compute.decide.observers import HostView, Observers
from compute.decide.policy import Policy
from fabric_train.messages.documents import AgentDocument, JobGeneration, ProcessState
from telemetry.messages.documents import HostObservations, HostStatus, SilentHost

ONLINE = HostStatus(online=True)
DEAD = HostStatus(online=False)
LEFT = HostStatus(online=False, intended=True)
POLICY = Policy()
NOBODY = Verdict(False, "nobody speaks against it")


def view(*silent, heard=(), abstains=False, status=ONLINE, rails=2):
    rows = [SilentHost(host=one, rails=rails, rails_probed=2) for one in silent]
    return HostView(status, HostObservations(silent=rows, heard=list(heard), abstains=abstains))


def full_mesh(names, silent=(), **views):
    """All hear all, but for the hosts of ``silent``, which nobody hears."""
    rest = [one for one in names if one not in silent]
    mesh = {
        name: view(
            *[one for one in silent if one != name],
            heard=[one for one in rest if one != name] if name in rest else [],
        )
        for name in names
    }
    return mesh | views


class Case:
    """One job over time: ``at`` judges it again."""

    def __init__(self, hosts, agents=None, *, job="", network=RAILS, ranks="", seen=True, **bench):
        """``seen``: all was well for long before; else nobody knows what was."""
        self.known, self.job = Observers(), sorted(job or hosts)
        self.absence, self.steps, self.looks, self.done = Absence(), StepWatch(), 0, 0
        self.agents = AgentVotes.of(agents or dict.fromkeys(self.job, ((), ())))
        if seen:
            self.absence.calm(-60.0)
        self.bench = {"network": network, "ranks": set(ranks or self.job), **bench}
        self.say(**hosts)

    def say(self, **hosts):
        for name, one in hosts.items():
            self.known.update(name, one)

    def step(self, number, now):
        self.done = number
        generation = JobGeneration(1, 0, ["p"], ["a"], [], [], [], "", formed=True)
        document = AgentDocument(
            "j",
            "a",
            "i",
            1,
            0,
            1,
            "",
            "",
            "",
            [ProcessState("p", "warm", step=number)],
            looks=self.looks,
        )
        self.steps.update(document, generation, now)

    def at(self, now, host="x", *, looks=True):
        """``looks``: a rank of the job has looked for a step, now."""
        if looks:
            self.looks += 1
            self.step(self.done, now)
        electorate = Electorate(frozenset(self.job), len(self.job))
        bench = Bench(
            hosts=self.job, electorate=electorate, observers=self.known, agents=self.agents,
            **self.bench,
        )  # fmt: skip
        self.judgement = judge(bench, self.absence, self.steps, POLICY, now)
        return self.judgement.verdicts.get(host, NOBODY)


def missed_by(names, host="x"):
    return {one: ((), (host,)) if one != host else ((), ()) for one in names}


def test_gone_on_both_networks_is_lost_at_once():
    case = Case(full_mesh("abcx", silent="x"), missed_by("abcx"))
    found = case.at(0.0)
    assert (found.lost, found.rule) == (True, BOTH)
    assert found.reason == (
        "silent on all rails to 3 of 3 observers, missed by 3 of 3 agents of the job"
    )


def test_gone_since_nobody_knows_when_is_lost_after_its_time_without_a_step():
    """There was no majority before: it may train well, and say so in a moment."""
    case = Case(full_mesh("abcx", silent="x"), missed_by("abcx"), seen=False)
    assert case.at(100.0).rule == AWAY
    assert not case.at(100.0 + POLICY.away_s - 0.1).lost
    assert case.at(100.0 + POLICY.away_s).lost


def test_what_was_dark_before_there_was_a_majority_is_gone_since_nobody_knows_when():
    case = Case(full_mesh("abcdex", silent="cdex"), missed_by("abcdex"))
    assert case.at(100.0).rule == NO_CORE
    case.say(**full_mesh("abcdex", silent="x"))
    assert case.at(105.0).rule == AWAY
    case.say(**full_mesh("abcdex"))
    case.agents = AgentVotes.of(dict.fromkeys("abcdex", ((), ())))
    assert case.at(106.0) is NOBODY
    case.say(**full_mesh("abcdex", silent="x"))
    case.agents = AgentVotes.of(missed_by("abcdex"))
    assert case.at(107.0).rule == BOTH, "the majority has seen it go"


def test_a_job_that_steps_though_a_host_is_dark_loses_none_at_once():
    """Its prober is dead; that its agent is missed later makes nothing of that older."""
    case = Case(full_mesh("abcx", silent="x"), dict.fromkeys("abc", ("x", ())))
    for tick in range(20):
        case.step(tick, 100.0 + tick / 2)
        assert not case.at(100.0 + tick / 2).lost
    case.agents = AgentVotes.of(missed_by("abcx"))
    assert case.at(110.0).rule == STEPS_GO_ON
    over = 109.5 + POLICY.away_s
    case.at(over + 0.1)
    assert case.at(over + 0.2).lost


def test_silent_on_the_rails_alone_is_lost_after_its_time_without_a_step():
    case = Case(
        full_mesh("abcx", silent="x", x=view("a", "b", "c")), dict.fromkeys("abc", ("x", ()))
    )
    found = case.at(100.0)
    assert (found.lost, found.rule) == (False, AWAY)
    assert case.judgement.due == 100.0 + POLICY.away_s
    assert not case.at(100.0 + POLICY.away_s - 0.1).lost
    found = case.at(100.0 + POLICY.away_s)
    assert (found.lost, found.rule) == (True, DARK)


def test_that_no_step_is_made_has_to_be_said_by_a_rank():
    """Where all ranks have lost the broker, no news of steps is no evidence."""
    case = Case(
        full_mesh("abcx", silent="x", x=view("a", "b", "c")), dict.fromkeys("abc", ("x", ()))
    )
    assert case.at(100.0).rule == AWAY
    over = 100.0 + POLICY.away_s
    assert (found := case.at(over, looks=False)).rule == UNWITNESSED
    assert not found.lost
    assert case.judgement.due is None, "only news can tell"
    assert case.at(over + 60, looks=False).rule == UNWITNESSED
    assert case.at(over + 61).rule == DARK


def test_a_host_that_restarted_counts_in_the_electorate_and_has_no_vote():
    """Its fence could not be confirmed: that takes a majority of those that it was of."""
    known = Observers()
    for name, one in full_mesh("abcx", silent="x").items():
        known.update(name, one)
    agents = AgentVotes.of(missed_by("abcx"))

    def lost(electors, size):
        bench = Bench(
            hosts=list("abcx"), electorate=Electorate(frozenset(electors), size),
            ranks=set("abcx"), network=RAILS, observers=known, agents=agents,
        )  # fmt: skip
        absence = Absence()
        absence.calm(-60.0)
        return judge(bench, absence, StepWatch(), POLICY, 0.0).verdicts["x"].lost

    assert lost("abcx", 4)
    assert lost("abx", 3), "c is not of the electorate"
    assert not lost("abx", 4), "c restarted"


def test_steps_that_go_on_are_a_veto_and_their_end_is_none():
    case = Case(full_mesh("abcx", silent="x", x=view("a", "b", "c")))
    case.step(1, 99.0)
    case.at(100.0)
    case.step(2, 101.0)  # by then: it may have ended before
    for number in range(3, 12):
        case.step(number, 100.0 + number)
        found = case.at(100.0 + number + 0.5)
        assert (found.lost, found.rule) == (False, STEPS_GO_ON)
    assert not case.at(111.0 + POLICY.away_s - 0.1).lost
    assert case.at(111.0 + POLICY.away_s).lost


def test_the_first_report_after_long_is_of_steps_that_may_have_ended_before():
    """In calm an agent says its step each 30 s, while a host is in question each 0.2 s."""
    case = Case(full_mesh("abcx", silent="x", x=view("a", "b", "c")))
    case.step(1, 70.0)
    case.at(100.0)
    case.step(500, 100.0 + 2 * LATE_S)
    assert case.at(100.0 + POLICY.away_s).rule == DARK


def test_a_step_that_ended_as_the_host_went_dark_is_none():
    case = Case(full_mesh("abcx", silent="x", x=view("a", "b", "c")))
    case.step(1, 99.0)
    case.at(100.0)
    case.step(2, 100.0 + LATE_S)
    assert case.at(100.0 + POLICY.away_s).rule == DARK


def test_a_host_whose_prober_is_away_has_until_a_step_is_overdue():
    case = Case(
        full_mesh("abcx", silent="x", x=view(heard="abc", abstains=True)),
        dict.fromkeys("abc", ("x", ())),
    )
    assert case.at(0.0).rule == EXPLAINED
    assert not case.at(STEP_UNKNOWN_S - 0.1).lost
    assert case.at(STEP_UNKNOWN_S).lost


def test_of_long_steps_three_have_to_be_overdue_where_the_prober_is_away():
    case = Case(
        full_mesh("abcx", silent="x", x=view(heard="abc", abstains=True)),
        dict.fromkeys("abc", ("x", ())),
    )
    case.step(1, 0.0)
    case.step(2, 10.0)
    case.at(15.0)
    assert not case.at(15.0 + 29.9).lost
    assert case.at(15.0 + 30.0).lost


def test_without_links_a_host_has_no_excuse():
    case = Case(
        full_mesh("abcx", silent="x", x=view(abstains=True)), dict.fromkeys("abc", ("x", ())),
        linkless="x",
    )  # fmt: skip
    case.at(0.0)
    assert case.at(POLICY.away_s).lost


def test_heard_on_the_rails_it_is_not_lost_though_its_management_is_gone():
    case = Case(full_mesh("abcx", x=view(heard="abc", status=DEAD)), missed_by("abcx"))
    for now in range(100):
        case.step(now + 1, float(now))
        found = case.at(now + 0.5)
        assert (found.lost, found.rule) == (False, HEARD)
    assert not case.at(99.0 + POLICY.untold_s - 0.1).lost
    assert case.at(99.0 + POLICY.untold_s).rule == UNTOLD, "the job stands, and no order reaches it"


def test_but_when_a_generation_waits_for_it_and_no_order_reaches_it():
    case = Case(
        full_mesh("abcx", x=view(heard="abc", status=DEAD)), dict.fromkeys("abc", ("x", ())),
        pending=True,
    )  # fmt: skip
    assert case.at(0.0).rule == HEARD
    assert not case.at(POLICY.untold_s - 0.1).lost
    assert case.at(POLICY.untold_s).rule == UNTOLD


def test_on_the_agents_network_heartbeats_decide_and_probes_confirm():
    agents = missed_by("abcx")
    case = Case(full_mesh("abcx"), agents, network=AGENTS)
    assert case.at(0.0).rule == AWAY
    assert case.at(POLICY.away_s).rule == DARK
    case = Case(full_mesh("abcx", silent="x"), agents, network=AGENTS)
    assert case.at(0.0).rule == BOTH
    case = Case(full_mesh("abcx", silent="x"), network=AGENTS)
    assert case.at(1000.0).rule == NOT_DARK


def test_heartbeats_and_probes_of_one_network_count_once():
    case = Case(full_mesh("abcx", silent="x"), missed_by("abcx"), one_network=True)
    assert case.at(0.0).rule == AWAY
    case.say(x=view(status=DEAD))
    assert case.at(0.1).rule == BOTH


def test_most_observers_have_to_call_it_silent():
    mesh = full_mesh("abcdx", a=view("x", heard="bcd"), b=view("x", heard="acd"))
    case = Case(mesh)
    case.at(0.0)
    assert not case.at(1000.0).lost
    case.say(c=view("x", heard="abd"))
    case.at(1000.0)
    found = case.at(2000.0)
    assert found.lost
    assert found.reason.startswith("silent on all rails to 3 of 4 observers")


def test_silence_on_some_rails_is_no_vote():
    mesh = full_mesh("abx", a=view("x", heard="b", rails=1), b=view("x", heard="a", rails=1))
    case = Case(mesh)
    assert case.at(0.0) == NOBODY


@pytest.mark.parametrize("idle", ["paused", "dead", "left"])
def test_who_abstains_counts_for_the_half(idle):
    says = {
        "paused": view("x", heard="ab", abstains=True),
        "dead": view("x", heard="ab", status=DEAD),
        "left": view("x", heard="ab", status=LEFT),
    }[idle]
    mesh = full_mesh("abcdx", a=view("x", heard="bcd"), b=view("x", heard="acd"), c=says, d=says)
    case = Case(mesh)
    case.at(0.0)
    found = case.at(1000.0)
    assert not found.lost
    assert found.votes.abstained == ("c", "d")


def test_an_even_split_has_no_core_and_fences_nobody():
    mesh = full_mesh("abpq") | {
        "a": view("p", "q", heard="b"), "b": view("p", "q", heard="a"),
        "p": view("a", "b", heard="q"), "q": view("a", "b", heard="p"),
    }  # fmt: skip
    agents = {"a": ("b", "pq"), "b": ("a", "pq"), "p": ("q", "ab"), "q": ("p", "ab")}
    case = Case(mesh, agents)
    case.at(0.0)
    for host in "pq":
        found = case.at(1000.0, host)
        assert (found.lost, found.held, found.rule) == (False, True, NO_CORE)
        assert "2 of 4 hosts of the job hear each other (a, b)" in found.reason


def test_the_small_side_of_a_partition_is_lost_and_has_no_vote():
    mesh = full_mesh("abcpq") | {name: view("p", "q", heard=set("abc") - {name}) for name in "abc"}
    mesh |= {name: view("a", "b", "c", heard=set("pq") - {name}) for name in "pq"}
    case = Case(mesh)
    case.at(0.0)
    assert case.at(1000.0, "p").lost
    assert case.at(1000.0, "q").lost
    assert not case.at(1000.0, "a").lost


def test_observers_that_are_not_of_the_job_vote_where_they_hear_its_majority():
    """Eight of the ten that probe x are on the far side of a cut, x is with the job's majority."""
    far = "stuvwyz"
    near = {
        "a": view(*far, heard="bcx"), "b": view(*far, heard="acx"), "c": view(*far, heard="abx"),
        "x": view(*far, heard="abc"),
    }  # fmt: skip
    other = {name: view(*"abcx", heard=set(far) - {name}) for name in far}
    case = Case(near | other, job="abcx")
    case.at(0.0)
    assert not case.at(1000.0).lost
    case.say(**{one: view("x", *far, heard=set("abc") - {one}) for one in "abc"})
    case.at(1000.0)
    assert case.at(2000.0).lost


def test_what_only_the_host_itself_says_takes_longer_than_a_last_will():
    case = Case(full_mesh("abcx", x=view("a", "b", "c")))
    assert case.at(0.0).rule == AWAY
    assert not case.at(POLICY.deaf_s - 0.1).lost
    assert case.at(POLICY.deaf_s).lost


def test_old_words_of_a_dead_majority_accuse_nobody():
    """b, c and d lost power: what they said last is that all is well."""
    mesh = full_mesh("abcd", a=view("b", "c", "d"))
    case = Case(mesh, {one: ((), "bcd" if one == "a" else ()) for one in "abcd"})
    case.at(0.0, "a")
    assert not case.at(POLICY.deaf_s - 1, "a").lost
    case.say(**{one: view(heard="a", status=DEAD) for one in "bcd"})
    for host in "abcd":
        assert not case.at(1000.0, host).lost
    assert case.at(1000.0, "b").rule == NO_CORE


def test_who_comes_and_goes_is_lost_when_each_time_costs_a_generation():
    for generations in (True, False):
        case = Case(full_mesh("abcx"))
        document = AgentDocument("j", "a", "i", 1, 0, 1, "", "", "", [])
        for time in range(1, POLICY.flaps + 1):
            number = time if generations else 1
            begun = JobGeneration(number, 0, ["p"], ["a"], [], [], [], "", formed=True)
            case.steps.update(document, begun, 2.0 * time)
            case.say(**full_mesh("abcx", silent="x"))
            found = case.at(2.0 * time)
            assert found.lost == (generations and time == POLICY.flaps)
            case.say(**full_mesh("abcx"))
            case.at(2.0 * time + 1)
        assert found.rule == (FLAPS if generations else AWAY)


def test_a_fence_needs_a_majority_that_is_well():
    """Both of x and y are dark: with them the well ones are two of four."""
    mesh = full_mesh("abxy", silent="xy")
    mesh["x"], mesh["y"] = view(heard="ab"), view(heard="ab")
    mesh |= {"s": view("x", "y", heard="ab"), "a": view("x", "y", heard="bs")}
    case = Case(mesh, job="abxy")
    case.at(0.0)
    found = case.at(1000.0)
    assert not found.lost
    assert found.rule in (FEW_WELL, NO_CORE)
    assert found.held


def test_agents_of_a_version_that_names_no_network_are_a_veto_as_before():
    case = Case(full_mesh("abcx", silent="x"), dict.fromkeys("abc", ("x", ())), network=UNKNOWN)
    case.at(0.0)
    assert not case.at(1000.0).lost
    case = Case(full_mesh("abcx", silent="x"), missed_by("abcx"), network=UNKNOWN)
    assert case.at(0.0).lost


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
