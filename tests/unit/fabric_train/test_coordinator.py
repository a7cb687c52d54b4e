import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.rules.agreement import LATE
from fabric_train.rules.coordinator import (
    Announce,
    Coordinator,
    JobFailed,
    Kill,
    Limits,
    Phase,
    Refuse,
    ReleaseAll,
    Spawn,
)

SOFTWARE = {"torch": "2.13", "python": "3.11"}


class World:
    """Plays processes and agent: what is spawned joins when it is told to."""

    def __init__(self, ranks=4, spares=1, limits=None, early=()):
        self.core = Coordinator(ranks, spares, limits, early)
        self.spawned = {}
        self.now = 5.0
        self.alive = set()
        self.released = False
        self.failed = None
        self.announced = []
        self.refused = []
        self.perform(self.core.start())

    def perform(self, effects):
        for effect in effects:
            if isinstance(effect, Spawn):
                assert effect.process not in self.alive
                self.alive.add(effect.process)
                self.spawned[effect.process] = effect.rank
            elif isinstance(effect, Announce):
                self.announced.append(effect)
            elif isinstance(effect, Kill):
                self.alive.discard(effect.process)
            elif isinstance(effect, Refuse):
                self.refused.append(effect)
                self.alive.discard(effect.process)
            elif isinstance(effect, ReleaseAll):
                self.released = True
            elif isinstance(effect, JobFailed):
                self.failed = effect.reason

    def join(self, *processes):
        for process in processes:
            self.perform(self.core.joined(process, SOFTWARE))

    def protect(self, *processes, layout="layout"):
        for process in processes:
            self.perform(self.core.protected(process, layout, self.now))

    def kill(self, process, reason="killed by SIGKILL"):
        self.alive.discard(process)
        self.perform(self.core.lost(process, reason, self.now))

    def recover(self, step=0):
        generation = self.core.generation
        for process in generation.slots:
            self.perform(self.core.recovered(process, generation.number, step, self.now))

    def commit(self, step):
        for process in self.core.generation.slots:
            self.core.committed(process, self.core.generation.number, step, self.now)

    @property
    def slots(self):
        return self.core.generation.slots


def running(ranks=4, spares=1, limits=None):
    world = World(ranks, spares, limits)
    everybody = [f"p{i}" for i in range(ranks + spares)]
    world.join(*everybody)
    world.protect(*everybody)
    assert world.core.phase is Phase.RUNNING
    return world


def early(*ranks, spares=1):
    world = World(3, spares, early=ranks)
    everybody = sorted(world.alive)
    world.join(*everybody)
    late = [name for name in everybody[3:] if world.spawned[name] is None]
    world.protect(*(name for name in everybody if name not in late))
    world.protect(*late, layout=LATE)
    return world


def test_a_spare_that_was_built_for_a_rank_gets_it_and_another_one_is_built():
    world = early(1)
    assert world.spawned == {"p0": None, "p1": None, "p2": None, "p3": None, "p4": 1}
    world.kill("p1")
    assert world.slots == ("p0", "p4", "p2")
    world.recover()
    assert world.spawned["p5"] == 1
    assert "p6" not in world.spawned


def test_another_rank_goes_to_a_spare_that_builds_its_model_late():
    world = early(1)
    world.kill("p2")
    assert world.slots == ("p0", "p1", "p3")
    world.recover()
    assert world.spawned["p5"] is None


def test_without_a_late_spare_one_is_started_for_the_other_rank():
    world = early(1, spares=0)
    world.kill("p2")
    assert world.core.phase is Phase.HELD
    assert world.spawned["p4"] is None
    world.join("p4")
    world.protect("p4", layout=LATE)
    assert world.slots == ("p0", "p1", "p4")


def test_an_early_spare_that_still_builds_is_waited_for_where_nobody_else_is_there():
    world = World(3, 0, early=[1])
    world.join("p0", "p1", "p2")
    world.protect("p0", "p1", "p2")
    world.kill("p1")
    assert world.core.phase is Phase.HELD
    assert "p4" not in world.spawned
    world.join("p3")
    world.protect("p3")
    assert world.slots == ("p0", "p3", "p2")


@pytest.mark.parametrize("ranks", [[3], [-1], [1, 1]])
def test_early_spares_are_for_different_ranks_of_the_job(ranks):
    with pytest.raises(ValueError, match="early spares"):
        Coordinator(3, 1, early=ranks)


def test_a_job_forms_when_all_ranks_are_here_with_or_without_its_spare():
    world = World(2, 1)
    world.join("p2", "p1")
    assert not world.announced
    world.join("p0")
    assert world.slots == ("p0", "p1")
    world.protect("p0")
    assert world.core.phase is Phase.FORMING
    world.protect("p1")
    assert world.core.phase is Phase.RUNNING


def test_a_spare_takes_over_and_a_new_one_is_started_after_the_recovery():
    world = running()
    world.now = 100.0
    world.kill("p2")
    assert world.slots == ("p0", "p1", "p4", "p3")
    assert (world.announced[-1].lost, world.announced[-1].formed) == ((2,), True)
    assert "p5" not in world.alive, "imports of a new spare would slow the recovery"
    world.now = 100.2
    world.recover(step=7)
    assert world.core.phase is Phase.RUNNING
    assert "p5" in world.alive
    world.now = 100.3
    world.commit(8)
    (record,) = world.core.records
    assert (record.ranks, record.step, record.reason) == ((2,), 7, "rank 2: killed by SIGKILL")
    assert (record.lost_at, record.recovered_at, record.committed_at) == (100.0, 100.2, 100.3)


def test_without_a_warm_spare_the_job_is_held_until_there_is_one():
    world = running(spares=0)
    world.kill("p1")
    assert world.core.phase is Phase.HELD
    assert world.core.held_for == (1,)
    world.join("p4")
    assert world.core.phase is Phase.HELD
    world.protect("p4")
    assert world.core.phase is Phase.RECOVERING
    assert world.slots == ("p0", "p4", "p2", "p3")


def test_a_loss_during_a_recovery_makes_another_generation():
    world = running(spares=2)
    world.kill("p1")
    world.kill("p4")
    assert world.slots == ("p0", "p5", "p2", "p3")
    assert world.announced[-1].generation.number == 3
    assert world.announced[-1].lost == (1,)
    # What is said of the generation before no longer counts.
    for process in ("p0", "p2", "p3", "p5"):
        world.perform(world.core.recovered(process, 2, 7, world.now))
    assert world.core.phase is Phase.RECOVERING
    world.recover()
    assert world.core.phase is Phase.RUNNING


def test_two_losses_at_once_wait_for_the_second_spare():
    world = running(spares=1)
    world.kill("p0")
    world.kill("p3")
    assert world.core.phase is Phase.HELD
    assert world.core.held_for == (0, 3)
    world.join("p5", "p6")
    world.protect("p5", "p6")
    assert world.core.phase is Phase.RECOVERING
    assert set(world.slots) >= {"p1", "p2"}
    assert len(set(world.slots)) == 4


def test_all_ranks_lost_is_the_end():
    world = running(ranks=2, spares=1)
    world.kill("p0")
    world.kill("p1")
    world.kill("p2")
    assert world.core.phase is Phase.FAILED
    assert "all ranks are lost" in world.failed


def test_a_rank_lost_before_there_is_state_starts_the_job_again():
    world = World(2, 1)
    world.join("p0", "p1")
    world.protect("p0")
    world.kill("p1", "exited with status 1")
    assert world.alive == {"p3", "p4", "p5"}
    world.join("p3", "p4", "p5")
    assert world.slots == ("p3", "p4")
    assert world.core.generation.number == 2
    world.kill("p3", "exited with status 1")
    world.kill("p6", "exited with status 1")
    assert world.failed == "exited with status 1 before the job had state, 3 times"


def test_a_step_that_kills_every_process_ends_the_job():
    world = running(spares=1)
    world.commit(11)
    for spare in ("p5", "p6", "p7", "p8", "p9"):
        victim = world.slots[0]
        world.kill(victim, "exited with status 1")
        world.recover(11)
        world.join(spare)
        world.protect(spare)
    world.kill(world.slots[0], "exited with status 1")
    assert "5 recoveries without a step forward from step 11" in world.failed
    assert "rank 0: exited with status 1" in world.failed


def test_failed_connections_alone_are_made_anew_with_the_same_processes():
    world = running(limits=Limits(suspicion_s=1))
    world.core.suspect(1, world.now)
    world.now += 0.5
    world.perform(world.core.expire(world.now))
    assert world.core.phase is Phase.RUNNING
    world.now += 0.6
    world.perform(world.core.expire(world.now))
    assert world.core.phase is Phase.RECOVERING
    assert world.slots == ("p0", "p1", "p2", "p3")
    world.recover(3)
    assert world.core.records[-1].reason == "connections failed"
    assert world.core.phase is Phase.RUNNING


def test_connections_that_fail_in_a_recovery_are_made_anew_too():
    world = running(limits=Limits(suspicion_s=1))
    world.kill("p1")
    world.core.suspect(2, world.now)
    world.now += 1.1
    world.perform(world.core.expire(world.now))
    assert world.announced[-1].generation.number == 3
    assert world.slots == ("p0", "p4", "p2", "p3")
    world.recover(3)
    assert world.core.phase is Phase.RUNNING


def test_a_rank_that_does_not_answer_counts_as_lost_and_nobody_else():
    world = running(spares=2, limits=Limits(answer_s=10))
    world.kill("p0")
    for process in ("p4", "p1", "p2"):
        world.core.acknowledged(process, 2)
    world.now += 9
    world.perform(world.core.expire(world.now))
    assert world.core.phase is Phase.RECOVERING
    world.now += 2
    world.perform(world.core.expire(world.now))
    assert world.alive >= {"p1", "p2", "p4", "p5"}
    assert "p3" not in world.alive
    assert world.slots == ("p4", "p1", "p2", "p5")


def test_a_generation_that_does_not_recover_is_given_up_and_kills_nobody():
    world = running(spares=1, limits=Limits(recovery_s=100))
    world.kill("p0")
    for number in range(2, 6):
        assert world.core.generation.number == number
        for process in world.slots:
            world.core.acknowledged(process, number)
        world.now += 101
        world.perform(world.core.expire(world.now))
    assert world.alive >= {"p1", "p2", "p3", "p4"}
    world.now += 101
    for process in world.slots:
        world.core.acknowledged(process, 6)
    world.perform(world.core.expire(world.now))
    assert "not all ranks recovered within 100 s" in world.failed


def test_a_held_job_tries_three_new_processes():
    world = running(spares=0)
    world.kill("p2")
    for process in ("p4", "p5"):
        world.join(process)
        world.kill(process, "exited with status 1")
        assert world.core.phase is Phase.HELD
    world.kill("p6", "exited with status 1")
    assert "no process for rank 2: 3 new ones ended before they were warm" in world.failed


def test_spares_that_fail_do_not_hurt_a_running_job():
    world = running(spares=1)
    world.kill("p4")
    for process in ("p5", "p6", "p7"):
        world.kill(process, "exited with status 1")
    assert world.core.phase is Phase.RUNNING
    assert world.alive == {"p0", "p1", "p2", "p3"}


def test_other_software_or_another_model_is_refused_and_named():
    world = World(2, 2)
    world.join("p0", "p1")
    world.perform(world.core.joined("p2", {"torch": "2.12", "python": "3.11"}))
    assert world.refused[-1].reason == "torch is 2.12 here and 2.13 in the job"
    world.protect("p0", "p1")
    world.join("p3")
    world.protect("p3", layout="other")
    assert "does not train the same model" in world.refused[-1].reason
    assert world.core.phase is Phase.RUNNING


def test_ranks_of_different_models_end_the_job():
    world = World(2, 0)
    world.join("p0", "p1")
    world.protect("p0")
    world.protect("p1", layout="other")
    assert "process p1: the state: not as in the job's other processes" in world.failed


def test_the_job_ends_when_all_ranks_have_and_late_spares_are_released():
    world = running(ranks=2, spares=1)
    world.kill("p0")
    world.recover(4)
    world.perform(world.core.finished("p2", 5))
    assert not world.released
    world.perform(world.core.finished("p1", 5))
    assert world.released
    assert world.core.phase is Phase.ENDED
    assert world.core.joined("p3", SOFTWARE) == [ReleaseAll()]


def test_a_rank_lost_after_its_end_is_taken_over_and_the_others_wait():
    world = running(ranks=2, spares=1)
    world.perform(world.core.finished("p0", 5))
    world.kill("p0")
    world.perform(world.core.finished("p1", 5))
    assert not world.released
    world.recover(5)
    world.perform(world.core.finished("p1", 5))
    world.perform(world.core.finished("p2", 5))
    assert world.released


def test_loops_of_different_length_are_an_error():
    world = running(ranks=2)
    world.perform(world.core.finished("p0", 5))
    world.perform(world.core.finished("p1", 6))
    assert "different steps: [5, 6]" in world.failed


def silent_after(ranks, *acknowledging, spares=2):
    """Rank 0 is lost, and 31 s later of the new generation only these have acknowledged it."""
    world = running(ranks, spares)
    world.kill("p0")
    for process in acknowledging:
        world.core.acknowledged(process, world.core.generation.number)
    before = len(world.announced)
    world.now += 31.0
    world.perform(world.core.expire(world.now))
    return world, [one.generation.slots for one in world.announced[before:]]


def test_of_ranks_that_are_silent_together_none_is_in_the_next_generation():
    world, slots = silent_after(4, "p1", "p4", spares=3)
    assert slots == [("p4", "p1", "p5", "p6")]
    assert not {"p2", "p3"} & world.alive


def test_when_all_with_state_are_silent_a_spare_is_not_taken_for_a_rank_that_has_it():
    world, slots = silent_after(2, spares=3)
    assert slots == []
    assert world.failed == "all ranks are lost, and with them the state"


def test_a_process_that_gives_up_ends_the_job():
    world = running(ranks=2)
    world.perform(world.core.given_up("p1", "nobody has the local state"))
    assert world.failed == "rank 1 (p1): nobody has the local state"
    assert not world.alive


@pytest.mark.parametrize(("ranks", "spares"), [(0, 1), (1, -1)])
def test_a_job_needs_a_rank(ranks, spares):
    with pytest.raises(ValueError, match="at least one rank"):
        Coordinator(ranks, spares)


EVENTS = ["join", "protect", "kill", "recover", "commit", "suspect", "wait", "finish"]


@given(st.data())
def test_no_process_has_two_ranks_and_a_dead_one_has_none_in_any_order_of_events(data):
    ranks, spares = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 3))
    world = World(ranks, spares)
    joined, numbers = set(), []
    for _ in range(data.draw(st.integers(5, 60))):
        world.now += data.draw(st.sampled_from([0.0, 0.1, 2.0, 100.0]))
        event = data.draw(st.sampled_from(EVENTS))
        process = data.draw(st.sampled_from(sorted(world.alive))) if world.alive else None
        before = len(world.announced)
        if event == "wait":
            world.perform(world.core.expire(world.now))
        elif process is None:
            break
        elif event == "join" and process not in joined:
            joined.add(process)
            world.join(process)
        elif event == "protect" and process in joined:
            world.protect(process)
        elif event == "kill":
            world.kill(process)
        elif event == "suspect" and world.core.generation:
            world.core.suspect(world.core.generation.number, world.now)
        elif event == "recover" and world.core.generation:
            number = world.core.generation.number
            world.perform(world.core.recovered(process, number, 3, world.now))
        elif event == "commit" and world.core.generation:
            number = world.core.generation.number
            world.core.committed(process, number, data.draw(st.integers(0, 9)), world.now)
        elif event == "finish":
            world.perform(world.core.finished(process, 9))
        for announce in world.announced[before:]:
            slots = announce.generation.slots
            assert len(set(slots)) == len(slots) == ranks
            assert set(slots) <= world.alive
            assert set(slots) <= joined
            numbers.append(announce.generation.number)
        assert numbers == sorted(set(numbers)), "a generation's number is used once"
        if world.core.phase is Phase.FAILED:
            assert world.failed
            assert not world.alive
