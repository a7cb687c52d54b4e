import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.host.core import FAILURES, HostCore
from fabric_train.host.effects import Assign, End, Greet, Note, Setup, Start
from fabric_train.messages.documents import JobGeneration, JobOrder, Member
from fabric_train.rules.coordinator import Kill, ReleaseAll, Spawn

SOFTWARE = {"torch": "2.13", "python": "3.11"}


def setup(nproc=1, standby=1, nodes=2, spares=1):
    return Setup(
        "gpt", "a", "i1", nodes, spares, nproc, standby, "127.0.0.2:1", "127.0.0.2:2", "token"
    )


def member(host, incarnation="i1"):
    return Member(host, incarnation, "127.0.0.2:1", "127.0.0.2:2", f"token of {host}")


def generation(number=1, slots=("a/i1/p0", "b/i1/p0"), base=None, formed=None, **more):
    hosts = [slot.partition("/")[0] for slot in slots]
    names = sorted({*hosts, "a", "b", "c"})
    fields = {
        "electorate": [f"{name}/i1" for name in names],
        "voters": [f"{name}/i1" for name in names],
        "members": [member(name) for name in names],
        "store": "127.0.0.2:2",
        "formed": number > 1 if formed is None else formed,
        **more,
    }
    base = number - 1 if base is None else base
    return JobGeneration(number, base, list(slots), hosts, **fields)


class Host:
    """Plays the shell: what is spawned lives until it is killed."""

    def __init__(self, **options):
        self.core = HostCore(setup(**options))
        self.now = 5.0
        self.alive = []
        self.greeted = {}
        self.assigned = []
        self.started = []
        self.notes = []
        self.killed = []
        self.released = False
        self.end = None
        self.perform(self.core.start())

    def perform(self, effects):
        for effect in effects:
            match effect:
                case Spawn():
                    assert effect.process not in self.alive
                    self.alive.append(effect.process)
                case Kill():
                    self.killed.append(effect.process)
                case Greet():
                    assert effect.process not in self.greeted
                    self.greeted[effect.process] = effect.spare
                case Start():
                    self.started.append(effect.generation)
                case Assign():
                    assert effect.process in self.greeted
                    rank = effect.generation.rank_of(effect.process)
                    self.assigned.append((effect.process, effect.generation.number, rank))
                case ReleaseAll():
                    self.released = True
                case End():
                    self.end = effect
                case Note():
                    self.notes.append(effect.text)

    def join(self, *processes):
        for process in processes:
            self.perform(self.core.joined(process, SOFTWARE))

    def protect(self, *processes, layout="layout"):
        for process in processes:
            self.perform(self.core.protected(process, layout))

    def exit(self, process, reason="killed by SIGKILL", clean=False):
        self.alive.remove(process)
        self.perform(self.core.lost(process, reason, self.now, clean=clean))

    def order(self, phase, news=None, reason="", kill=(), compute="one", incarnation="i1"):
        order = JobOrder(incarnation, phase, reason, news, list(kill))
        self.perform(self.core.order(compute, order, self.now))

    def run(self, news):
        self.order("proposed", news)
        self.order("running", news)

    def states(self):
        return {one.process: one.state for one in self.core.document().processes}


def running(**options):
    host = Host(**options)
    host.join(*host.alive)
    mine = [one for one in host.alive if not is_standby(host, one)]
    host.run(generation(slots=[*mine, "b/i1/p0"]))
    host.protect(*host.alive)
    return host


def is_standby(host, process):
    return next(one.standby for one in host.core.document().processes if one.process == process)


def test_main_processes_learn_what_they_are_when_a_generation_runs_and_a_standby_at_once():
    host = Host()
    assert host.states() == {"a/i1/p0": "starting", "a/i1/p1": "starting"}
    host.join("a/i1/p0", "a/i1/p1")
    assert host.greeted == {"a/i1/p1": True}
    host.order("waiting", reason="2 of 3 hosts are here")
    host.order("proposed", generation())
    assert host.greeted == {"a/i1/p1": True}
    host.order("running", generation())
    assert host.greeted == {"a/i1/p1": True, "a/i1/p0": False}
    assert host.assigned == [("a/i1/p1", 1, None), ("a/i1/p0", 1, 0)]
    assert "waiting: 2 of 3 hosts are here" in host.notes


@pytest.mark.parametrize("phase", ["held", "running"])
def test_a_host_without_ranks_has_spares(phase):
    host = Host()
    host.join("a/i1/p0")
    news = generation(4, slots=("c/i1/p0", "b/i1/p0"))
    if phase == "running":
        host.run(news)
    else:
        host.order("held", news)  # not accepted here: it may contain a host that is fenced
    assert host.greeted == {"a/i1/p0": True}
    assert host.core.document().accepted == (news if phase == "running" else None)


def test_a_process_that_is_late_for_its_generation_is_greeted_when_it_comes():
    host = Host(standby=0)
    host.run(generation(slots=("c/i1/p0", "b/i1/p0")))
    host.join("a/i1/p0")
    assert host.greeted == {"a/i1/p0": True}
    assert host.assigned == [("a/i1/p0", 1, None)]


def test_a_rank_that_crashes_is_taken_over_by_the_standby_of_its_host():
    host = running()
    host.exit("a/i1/p0")
    document = host.core.document()
    assert [(one.process, one.state, one.reason) for one in document.processes] == [
        ("a/i1/p0", "ended", "killed by SIGKILL"), ("a/i1/p1", "warm", ""),
    ]  # fmt: skip
    assert host.alive == ["a/i1/p1"], "imports of a new standby would slow the takeover"
    host.now = 6.0
    second = generation(2, slots=("a/i1/p1", "b/i1/p0"), lost=[0], reason="rank 0: crashed")
    host.run(second)
    assert host.assigned[-1] == ("a/i1/p1", 2, 0)
    assert list(host.states()) == ["a/i1/p1"], "the ended one is forgotten with its generation"
    host.perform(host.core.recovered("a/i1/p1", 2, 7, 6.5))
    assert host.alive == ["a/i1/p1", "a/i1/p2"]
    host.core.committed("a/i1/p1", 2, 8, 6.6)
    (record,) = host.core.records
    assert (record.generation, record.ranks, record.step) == (2, (0,), 7)
    times = (record.lost_at, record.assigned_at, record.recovered_at, record.committed_at)
    assert times == (5.0, 6.0, 6.5, 6.6)


def test_without_a_standby_a_new_process_is_started_at_once():
    host = running(standby=0)
    host.exit("a/i1/p0")
    assert host.alive == ["a/i1/p1"]
    assert is_standby(host, "a/i1/p1")
    assert host.states() == {"a/i1/p0": "ended", "a/i1/p1": "starting"}


def test_a_main_process_that_ends_before_the_job_has_formed_is_started_again():
    host = Host(standby=0)
    host.exit("a/i1/p0", "exited with status 1")
    assert host.states() == {"a/i1/p1": "starting"}
    assert not is_standby(host, "a/i1/p1")
    host.exit("a/i1/p1", "exited with status 1")
    host.exit("a/i1/p2", "exited with status 1")
    assert host.alive == []
    assert "3 times, new processes ended before they were warm" in host.core.document().failed


def test_processes_that_fail_together_count_once():
    host = Host(nproc=4, standby=0, nodes=1)
    for process in list(host.alive):
        host.exit(process, "exited with status 1")
    assert len(host.alive) == 4
    assert host.core.document().failed == ""


def test_standbys_that_fail_do_not_hurt_a_running_job_and_are_given_up():
    host = running()
    host.exit("a/i1/p1")  # it was warm
    for process in ("a/i1/p2", "a/i1/p3", "a/i1/p4"):
        assert process in host.alive
        host.exit(process, "exited with status 1")
    assert host.alive == ["a/i1/p0"]
    assert host.core.document().failed == ""
    assert any("no more processes are started" in note for note in host.notes)


def test_standbys_of_another_model_are_not_started_for_ever():
    host = running()
    for number in range(1, 10):
        process = f"a/i1/p{number}"
        if process not in host.alive:
            break
        host.join(process) if process not in host.greeted else None
        host.protect(process, layout="other")
        host.order("running", host.core.running, "another model", kill=[process])
        host.exit(process)
    assert number == 1 + FAILURES
    assert host.alive == ["a/i1/p0"]


def test_what_counts_as_lost_is_killed_once_and_says_why():
    host = running()
    for _ in range(2):
        host.order("running", host.core.running, "silent for 30 s", kill=["a/i1/p0", "b/i1/p0"])
    assert host.killed == ["a/i1/p0"]
    assert host.states()["a/i1/p0"] == "warm", "it has not ended yet"
    host.exit("a/i1/p0")
    assert host.core.document().processes[0].reason == "silent for 30 s"


def test_a_job_ends_when_its_ranks_have_finished_and_not_before():
    host = running()
    host.order("ended")
    assert not host.released
    host.core.finished("a/i1/p0", 40)
    host.order("ended")
    assert host.released
    host.exit("a/i1/p1", clean=True)
    assert host.end is None
    host.exit("a/i1/p0", clean=True)
    assert host.end == End("")


def test_a_spare_host_that_never_ran_a_generation_ends_with_the_job():
    host = Host(standby=0)
    host.join("a/i1/p0")
    host.order("held", generation(4, slots=("c/i1/p0", "b/i1/p0")))
    host.order("ended")
    assert host.released
    host.exit("a/i1/p0", clean=True)
    assert host.end == End("")


def test_a_rank_that_fails_after_its_last_step_fails_the_job():
    host = running(standby=0)
    host.core.finished("a/i1/p0", 40)
    host.order("ended")
    host.exit("a/i1/p0", "exited with status 3")
    assert host.end == End("a/i1/p0 exited with status 3 after its last step")


def test_a_takeover_after_the_last_step_waits_for_it_again():
    host = running()
    host.core.finished("a/i1/p0", 40)
    host.run(generation(2, slots=("a/i1/p0", "c/i1/p0")))
    host.order("ended")
    assert not host.released


def test_a_process_that_was_never_greeted_is_killed_at_the_end():
    host = running()
    host.exit("a/i1/p1")
    host.core.finished("a/i1/p0", 40)
    host.order("ended")
    assert host.killed == ["a/i1/p2"]
    host.join("a/i1/p2")
    assert "a/i1/p2" not in host.greeted


def test_a_failed_job_and_a_fence_end_this_fabric_run():
    host = running()
    host.order("failed", reason="no replica")
    assert host.end == End("no replica")
    other = running()
    other.perform(other.core.stop("silent on all rails"))
    assert other.end == End("fenced: silent on all rails", at_once=True)
    other.order("running", generation(2))
    assert len(other.started) == 1


def test_what_a_process_says_is_in_the_document():
    host = running()
    host.core.acknowledged("a/i1/p0", 1)
    host.perform(host.core.recovered("a/i1/p0", 1, 3, host.now))
    host.core.committed("a/i1/p0", 1, 4, host.now)
    host.core.suspect("a/i1/p0", 1, "connection closed", host.now)
    host.core.given_up("a/i1/p0", "nobody has its local state")
    host.core.heard(["c", "b"], ["d"], host.now)
    document = host.core.document()
    one = document.processes[0]
    assert (one.acknowledged, one.recovered, one.committed, one.step) == (1, 1, 1, 4)
    assert (one.layout, one.software) == ("layout", SOFTWARE)
    assert (document.suspects, document.hears, document.misses) == (1, ["b", "c"], ["d"])
    assert document.failed == "rank 0 (a/i1/p0): nobody has its local state"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"store": "here"}, "is no ip:port"),
        ({"store": "127.0.0.1:0"}, "has no port"),
        ({"members": [member("a"), member("b"), member("b")]}, "named twice"),
        ({"members": [member("a")]}, "no member"),
        ({"members": [member("a", "i0"), member("b")]}, "incarnation i0 of this host"),
        ({"slots": ["a/i1/p0", "a/i1/p0"], "hosts": ["a", "a"]}, "two ranks"),
        ({"slots": ["a/i1/p9", "b/i1/p0"]}, "a/i1/p9 on a is not as this host knows it"),
        ({"hosts": ["b", "b"]}, "a/i1/p0 on b is not"),
        ({"slots": ["a/i1/p0"], "hosts": ["a"]}, "1 slots, and the job has 2 ranks"),
        ({"base": 7}, "generation 1 follows 7"),
    ],
)
def test_a_generation_that_cannot_be_is_refused_and_changes_nothing(change, text):
    host = Host()
    host.join(*host.alive)
    before = host.core.document()
    for phase in ("proposed", "running"):
        host.order(phase, dataclasses.replace(generation(), **change))
    assert host.core.document() == before
    assert host.core.refused_orders == 2
    assert text in host.notes[-1]


def test_an_order_for_another_life_or_without_its_generation_is_refused():
    host = Host()
    host.order("proposed", generation(), incarnation="i0")
    assert "it is for incarnation i0, this is i1" in host.notes[-1]
    host.order("running")
    assert "phase running without a generation" in host.notes[-1]
    assert host.core.accepted is None


def test_a_generation_with_a_fenced_host_is_not_accepted():
    host = Host()
    host.core.fence("b", "i1")
    host.order("proposed", generation())
    assert host.core.accepted is None
    assert "incarnation i1 of b is fenced" in host.notes[-1]
    spared = generation(slots=("a/i1/p0", "c/i1/p0"))
    host.order("proposed", spared)
    assert host.core.accepted == spared


def test_of_two_proposals_with_one_number_the_first_is_accepted_and_only_it_runs():
    host = Host()
    first, second = generation(), generation(slots=("a/i1/p0", "c/i1/p0"))
    host.order("proposed", first, compute="one")
    host.order("proposed", second, compute="two")
    host.order("running", second, compute="two")
    assert (host.core.accepted, host.core.running) == (first, None)
    assert "another generation 1 was accepted here before" in host.notes[-1]
    host.order("running", first, compute="one")
    assert host.core.running == first


def test_a_generation_that_follows_an_older_one_than_this_host_knows_is_not_accepted():
    host = Host()
    host.run(generation(3, base=2))
    host.order("proposed", generation(5, base=2))
    assert host.core.accepted.number == 3
    assert "it follows 2, and 3 is accepted here" in host.notes[-1]


def test_a_start_from_the_beginning_is_not_accepted_once_steps_were_committed():
    host = Host()
    host.run(generation(1))
    host.order("proposed", generation(2, formed=False))
    assert host.core.accepted.number == 2, "nothing would be lost"
    host.order("running", generation(2, formed=False))
    host.core.committed(host.alive[0], 2, 1, host.now)
    host.order("proposed", generation(3, formed=False))
    assert host.core.accepted.number == 2
    assert "processes here have committed steps" in host.notes[-1]


SLOTS = [("a/i1/p0", "b/i1/p0"), ("a/i1/p0", "c/i1/p0"), ("c/i1/p0", "b/i1/p0")]
GENERATIONS = st.builds(
    lambda number, back, slots: generation(number, slots, base=max(0, number - back)),
    st.integers(1, 6), st.integers(1, 3), st.sampled_from(SLOTS),
)  # fmt: skip
ORDERS = st.tuples(
    st.sampled_from(["one", "two"]),
    st.sampled_from(["waiting", "proposed", "proposed", "running", "held"]),
    GENERATIONS,
)


@given(st.lists(ORDERS, max_size=40), st.randoms())
def test_promises_hold_for_any_orders_of_two_fabric_computes(orders, random):
    """Repeated, reordered, contradictory: what was promised once stays."""
    host = Host()
    host.join(*host.alive)
    orders = [*orders, *random.sample(orders, len(orders) // 2)]
    accepted = {}
    ran = []
    for compute, phase, news in orders:
        before = host.core.accepted
        host.order(phase, news, compute=compute)
        after = host.core.accepted
        if after is not before:
            assert before is None or after.number > before.number, "never back"
            assert before is None or after.base >= before.number
            assert phase == "proposed"
        if after is not None:
            assert accepted.setdefault(after.number, after.proposal) == after.proposal
        for started in host.started[len(ran) :]:
            assert accepted[started.number] == started.proposal, "never what was not accepted"
            assert started is host.core.accepted
            assert phase == "running"
            ran.append(started.number)
    assert ran == sorted(set(ran)), "never back, and each once"
    running = host.core.document().running
    # Who begins anew runs none until there is a later one, and has other processes.
    assert running == (ran[-1] if ran else 0) or (running, ran[-1]) == (0, 1)
    live = [one for one in host.core.document().processes if one.state != "ended"]
    assert len(live) == 2, "orders alone start no more processes"


EVENTS = ["join", "protect", "exit", "kill", "order", "recover", "finish", "fence"]


@given(st.data())
def test_any_events_keep_the_document_true(data):
    nproc, standby = data.draw(st.integers(1, 2)), data.draw(st.integers(0, 2))
    host = Host(nproc=nproc, standby=standby, nodes=1)
    joined = set()
    for _ in range(data.draw(st.integers(5, 60))):
        if host.end is not None:
            break
        host.now += data.draw(st.sampled_from([0.0, 0.1, 5.0]))
        event = data.draw(st.sampled_from(EVENTS))
        process = data.draw(st.sampled_from(host.alive)) if host.alive else None
        if event == "order":
            phase = data.draw(st.sampled_from(["waiting", "proposed", "running", "held", "ended"]))
            known = [*host.states(), *(f"b/i1/p{n}" for n in range(nproc))]
            slots = data.draw(st.permutations(known))[:nproc]
            host.order(phase, generation(data.draw(st.integers(1, 9)), slots, base=0))
        elif event == "fence":
            host.core.fence("b", data.draw(st.sampled_from(["i0", "i1"])))
        elif process is None:
            continue
        elif event == "join" and process not in joined:
            joined.add(process)
            host.join(process)
        elif event == "protect" and process in host.greeted:
            host.protect(process)
        elif event == "exit":
            host.exit(process)
        elif event == "kill":
            host.order("held", None, kill=[process])
        elif event == "recover" and host.core.running:
            host.perform(host.core.recovered(process, host.core.running.number, 3, host.now))
        elif event == "finish":
            host.core.finished(process, 9)
        states = host.states()
        assert {one for one, state in states.items() if state != "ended"} == set(host.alive)
        assert len(host.alive) <= nproc + standby
        if host.core.running is not None:
            mine = [one for one in host.core.running.slots if one.startswith("a/")]
            assert set(mine) <= states.keys(), "a rank that ended stays until it is replaced"


def parked(number=2):
    news = generation(number, parked=True)
    left = [one for one in news.members if one.host != "b"]
    return dataclasses.replace(news, members=left, electorate=["a/i1", "c/i1"])


def test_a_parked_generation_is_accepted_though_a_rank_is_gone_and_never_runs():
    host = running()
    host.order("proposed", parked())
    assert host.core.accepted == parked()
    host.order("held", parked(), "no warm spare for rank 1")
    host.order("running", parked())
    assert host.core.running.number == 1
    assert host.core.refused_orders == 1
    assert "parked: it cannot run" in host.notes[-1]
    host.run(generation(3, ["a/i1/p0", "c/i1/p0"], base=2))
    assert host.core.running.number == 3
