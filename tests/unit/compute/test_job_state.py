"""What a job's hosts are told: who learns of it, evidence and takeovers, how often."""

from hypothesis import given
from hypothesis import strategies as st
from job_world import JOB, World

from compute.decide.decider import STATE_S
from compute.decide.effects import JobState
from compute.decide.evidence import BOTH, DARK, HEARD, STEPS_GO_ON, Verdict, Votes
from compute.decide.job_state import NOT_KNOWN, Suspect, job_state, recovery_of
from compute.decide.recovery import JobRecord
from compute.views import HostViews
from fabric_train.messages.documents import AgentDocument, JobGeneration, ProcessState
from fabricd.escalate.job_views import migration, recovery_row
from telemetry.messages.documents import MOST_NAMES, ComputeJob, ComputeView, parse


class TellingWorld(World):
    """Keeps the states of its one job, each with its time."""

    def __init__(self, **arguments):
        self.states = []
        super().__init__(1, computes=1, **arguments)

    def _decide(self, name, decider):
        inner = decider.decide

        def decide(now):
            effects = inner(now)
            self.states += [(now, one.state) for one in effects if isinstance(one, JobState)]
            return effects

        decider.decide = decide
        try:
            super()._decide(name, decider)
        finally:
            decider.decide = inner

    @property
    def state(self):
        return self.states[-1][1]

    def go(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.tick()


def test_a_takeover_is_told_with_evidence_votes_fence_and_recovery():
    world = TellingWorld(nodes=4, spares=2)
    world.go(4)
    assert world.state.phase == "running"
    assert world.state.hosts == [f"h{i}" for i in range(6)]
    assert world.state.spares == ["h4 h4.i0.0", "h5 h5.i0.0"]
    assert world.state.evidence == []
    world.hosts["h2"].paused = True
    world.go(6)
    [said] = world.state.evidence
    assert (said.host, said.lost, said.fence) == ("h2", True, f"{JOB}/h2/i0")
    assert said.rule in (BOTH, DARK)
    assert said.counts["silent"] == len(said.silent) >= 3
    assert {"h0", "h1", "h3", "h4"} <= set(said.acknowledged)
    [one] = world.state.recoveries
    assert (one.failure_class, one.outcome) == ("host", "recovered")
    assert (one.ranks, one.origins, one.targets) == ([2], ["h2"], ["h4"])
    assert one.proposal == world.state.proposal
    assert world.state.spares == ["h5 h5.i0.0"], "a fenced host has no spare"
    data = ComputeView(jobs=[world.state]).model_dump(mode="json")
    assert parse(ComputeView, data).jobs == [world.state]


def test_a_fabric_compute_that_was_restarted_says_that_it_has_no_votes():
    world = TellingWorld(nodes=4, spares=2)
    world.go(4)
    world.hosts["h2"].paused = True
    world.go(6)
    world.crash_compute("c0")
    world.go(2)
    [said] = world.state.evidence
    assert (said.rule, said.fence) == (NOT_KNOWN, f"{JOB}/h2/i0")
    assert "silent" in said.reason


def test_a_host_that_one_agent_hears_is_lost_once_the_job_has_stood_still():
    world = TellingWorld(nodes=4, spares=2)
    world.go(4)
    for other in ("h0", "h1", "h3", "h4"):
        world.cut.add(frozenset(("h2", other)))
    world.go(3)
    said = {one.host: one for one in world.state.evidence}["h2"]
    assert (said.lost, said.rule, said.heard_by) == (True, DARK, ["h5"])
    assert said.fence


def test_a_host_whose_prober_is_dead_is_not_lost_while_the_job_steps():
    world = TellingWorld(nodes=4, spares=2)
    world.go(4)
    world.hosts["h2"].prober = False
    world.go(4)
    said = {one.host: one for one in world.state.evidence}["h2"]
    assert (said.lost, said.fence, said.rule) == (False, "", STEPS_GO_ON)
    assert len(said.silent) == 5


def test_a_host_without_management_is_not_lost_while_it_is_heard_on_the_jobs_network():
    world = TellingWorld(nodes=4, spares=2)
    world.go(4)
    world.management_cut |= {frozenset(("h2", other)) for other in world.hosts}
    world.hosts["h2"].broker = False
    world.go(6)
    said = {one.host: one for one in world.state.evidence}["h2"]
    assert (said.lost, said.fence, said.rule, said.last_will) == (False, "", HEARD, True)
    assert len(said.missed_by) == 5
    assert world.progress[0] == 1


def test_one_vote_is_told_when_it_has_stood_for_a_second():
    world = TellingWorld(nodes=4, spares=2)
    world.go(4)
    del world.states[:]
    phases = sum(one.kind == "phase" for one in world.records)
    spares = frozenset(("h4", "h5"))
    for _ in range(5):
        world.cut.add(spares)
        world.go(0.5)
        world.cut.discard(spares)
        world.go(0.7)
    assert world.states == []
    world.cut.add(spares)
    cut_at = world.now
    world.go(3)
    [(told_at, state)] = world.states
    assert told_at - cut_at >= STATE_S
    assert {one.host for one in state.evidence} == {"h4", "h5"}
    assert {one.lost for one in state.evidence} == {False}
    assert sum(one.kind == "phase" for one in world.records) == phases


def test_many_observers_are_counted_and_some_named():
    names = tuple(f"h{i:04}" for i in range(MOST_NAMES + 10))
    verdict = Verdict(True, "silent", Votes(silent=names), BOTH)
    state = job_state(JOB, "held", "", None, {}, [Suspect("x", verdict, held="budget")], [])
    [said] = state.evidence
    assert (len(said.silent), said.counts["silent"]) == (MOST_NAMES, MOST_NAMES + 10)
    assert said.rule == f"{BOTH}; not fenced: budget"


def test_a_host_sees_the_jobs_in_which_it_has_a_part_and_no_other():
    views = HostViews()
    first = ComputeJob(job="a", phase="running", hosts=["h0", "h1"])
    second = ComputeJob(job="b", phase="running", hosts=["h1", "h2"])
    assert views.update("a", first, "a", first.hosts) == {"h0", "h1"}
    assert views.update("b", second, "b", second.hosts) == {"h1", "h2"}
    assert [job["job"] for job in views.of("h1")["jobs"]] == ["a", "b"]
    assert [job["job"] for job in views.of("h0")["jobs"]] == ["a"]
    assert views.of("h9") is None
    assert views.size_of("h9") == 0
    assert views.size_of("h1") == views.size_of("h0") + views.size_of("h2") > 100
    left = second.model_copy(update={"hosts": ["h2"]})
    assert views.update("b", left, "b", left.hosts) == {"h1", "h2"}
    assert [job["job"] for job in views.of("h1")["jobs"]] == ["a"]
    assert views.update("a", None, "a", ()) == {"h0", "h1"}
    assert set(views.hosts) == {"h2"}


ANY = st.text(st.characters(codec=None), max_size=5) | st.just("\ud800") | st.just("x" * 5000)
NUMBER = st.integers(-(1 << 63) + 1, (1 << 63) - 1)


@given(ANY, NUMBER, ANY, NUMBER)
def test_what_a_job_says_of_itself_is_shortened_until_it_fits(process, number, host, step):
    generation = JobGeneration(number, 0, [process], [host], [], [], [], "", formed=False)
    state = ProcessState(f"{process}2", "warm", step=step)
    agent = AgentDocument(JOB, "h0", "i", 1, 1, 1, "", "", "t", [state] * 2000)
    failed = JobRecord("job_failed", {"reason": process, "step": step, "steps_lost": step})
    times = dict.fromkeys(
        ("fenced_ms", "proposed_ms", "running_ms", "recovered_ms", "committed_ms"), 1.5
    )
    moved = JobRecord(
        "recovery",
        {"generation": number, "class": "host", "ranks": [0], "from": [host], "to": [host],
         "reason": process, "step": step, "steps_lost": step, **times},
    )  # fmt: skip
    recoveries = [recovery_of(failed, generation), recovery_of(moved, generation)]
    told = job_state(JOB, "running", process, generation, {"h0": agent}, [], recoveries)
    assert parse(ComputeJob, told.model_dump(mode="json")) == told
    row = recovery_row(JOB, told.recoveries[1])
    assert migration({"wall_ns": 1, "data": row.data})["ranks"] == [0]
