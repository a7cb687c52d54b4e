"""Shards whose optimizers cannot be replayed: whole copies, and a step back, bit by bit."""

import dataclasses

import pytest
import shard_world as worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from on_demand import on_demand

from fabric_train.rules.agreement import DisagreementError
from fabric_train.rules.buddies import Room, check_room
from fabric_train.rules.step_rule import RankReport, plan_return

torch = on_demand("torch")
entry = on_demand("fabric_train.shards.entry", needs="torch")
keeper = on_demand("fabric_train.shards.keeper", needs="torch")
plain_values = on_demand("fabric_train.state.plain_values", needs="torch")
rank_local = on_demand("fabric_train.state.rank_local", needs="torch")
step_start = on_demand("fabric_train.state.step_start", needs="torch")
units = on_demand("fabric_train.shards.units", needs="torch")
whole = on_demand("fabric_train.shards.whole", needs="torch")


def lars(parameters):
    """Looks at a whole tensor's norm, and keeps a number and a list beside tensors."""

    class Lars(torch.optim.Optimizer):
        def __init__(self, parameters, lr=0.1):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for one in group["params"]:
                    if one.grad is None:
                        continue
                    state = self.state[one]
                    trust = float(one.norm() / (one.grad.norm() + 1e-3))
                    state["trust"] = 0.9 * state.get("trust", 1.0) + 0.1 * trust
                    state["past"] = [*state.get("past", ()), one.grad.clone()][-2:]
                    state["mean"] = state.get("mean", 0) * 0.9 + one.grad
                    one.sub_(state["mean"] * group["lr"] * state["trust"])

    return Lars(parameters)


MAKERS = {
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, 0.1),
    "own": lars,
}


class Rank(worlds.Rank):
    def __init__(self, rank, make, options, seed=0):
        super().__init__(rank, make, options, seed)
        self.start = step_start.StepStart(self.state, rank_local.LocalStates({}))
        self.step_number = 0
        self.holds = True

    def report(self):
        own = self.keeper.own.step
        return RankReport(self.step_number if self.holds else None, False, self.keeper.keeps(), own)


def world(make, *, count=3, buddies=1):
    options = keeper.GradientLog(buddies=buddies)
    ranks = [Rank(rank, MAKERS[make], options) for rank in range(count)]
    worlds.meet(ranks, 0)
    return ranks


def attempt(ranks, *, until="end", torn=()):
    """One step of all ranks, which ends before the vote, or behind the vote of some."""
    step = ranks[0].step_number
    for one in ranks:
        one.start.capture()
        one.give(step)
    assert worlds.exchange(ranks, step) == {}
    for one in ranks if until == "end" else ():
        one.keeper.voted(one.state)
        one.start.keep()
        one.step()
        one.step_number += 1
        if one.rank in torn:
            one.holds = False
            next(one.model.parameters()).data.fill_(float("nan"))


def recover(ranks, lost, make):
    """``lost`` ranks are replaced; returns the plan. The rule is the real one."""
    for rank in lost:
        ranks[rank] = Rank(rank, MAKERS[make], ranks[0].keeper.options, seed=77 + rank)
        ranks[rank].holds = False
    reports = [one.report() for one in ranks]
    plan = plan_return(reports, [(one.rank,) for one in ranks])
    for one in ranks:
        hosts = [f"h{each.rank}" for each in ranks]
        one.keeper.meet(one.rank, hosts, plan.step, [report.keeps for report in reports])
    for rank in plan.back:
        ranks[rank].keeper.own.put_back(ranks[rank].state)
        ranks[rank].start.go_back()
    for rank, source in plan.copies.items():
        assert worlds.rebuild(ranks, rank, source, plan.step, ranks[rank]) == {}
    for one in ranks:
        one.step_number, one.holds = plan.step, True
        one.optimizer.zero_grad()
    return plan


def content(rank):
    return {**rank.values(), "scalars": plain_values.unpack(rank.state.scalars())}


def same(one, other):
    return step_start._same(one, other)


def undisturbed(make, steps):
    ranks = world(make)
    found = [[content(one) for one in ranks]]
    for _ in range(steps):
        attempt(ranks)
        found.append([content(one) for one in ranks])
    return found


@pytest.mark.parametrize("make", [*MAKERS])
def test_who_is_lost_behind_a_step_takes_all_back_and_the_step_gives_the_same(make):
    known = undisturbed(make, 6)
    ranks = world(make)
    for step in range(6):
        attempt(ranks)
        plan = recover(ranks, [step % 3], make)
        assert (plan.step, plan.again) == (step, 1)
        assert all(map(same, map(content, ranks), known[step]))
        attempt(ranks)
        assert all(map(same, map(content, ranks), known[step + 1]))


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_whatever_is_lost_and_when_states_are_those_of_the_undisturbed_job(data):
    make = data.draw(st.sampled_from([*MAKERS]))
    known = undisturbed(make, 9)
    ranks = world(make, buddies=data.draw(st.integers(1, 2)))
    while ranks[0].step_number < 8:
        what = data.draw(st.sampled_from(["step", "step", "gate", "behind", "torn", "nobody"]))
        torn = [data.draw(st.integers(0, 2))] if what == "torn" else []
        attempt(ranks, until="gate" if what == "gate" else "end", torn=torn)
        if what != "step":
            lost = [] if what == "nobody" else [data.draw(st.integers(0, 2))]
            before = max(one.step_number for one in ranks if one.holds)
            plan = recover(ranks, lost, make)
            assert before - 1 <= plan.step <= before
        assert all(map(same, map(content, ranks), known[ranks[0].step_number]))


def test_a_copy_stays_until_all_ranks_have_the_next_one():
    ranks = world("own")
    attempt(ranks)
    assert ranks[1].keeper.keeps() == {0: (0, 0)}
    attempt(ranks, until="gate")
    assert ranks[1].keeper.keeps() == {0: (0, 1)}
    assert ranks[0].keeper.own.step == 0


def test_memory_is_used_again_and_stays_as_promised():
    ranks = world("Adafactor")
    need, each_step = ranks[0].keeper.need()
    sizes = []
    for _ in range(8):
        attempt(ranks)
        sizes.append(ranks[1].keeper.size())
    assert max(sizes) == need == 2 * each_step
    assert sizes[4] == sizes[-1]


def test_the_report_says_which_optimizer_and_that_a_step_is_run_again():
    ranks = world("own")
    one = ranks[0]
    text = one.keeper.describe(one.state)
    assert text.startswith("1 buddy gets a whole copy with each step, for the step of optimizer (")
    assert text.endswith("at most one step is run again")
    attempt(ranks)
    assert one.keeper.own_need(one.state) == sum(
        tensor.numel() * tensor.element_size() for _, tensor in one.state.tensors()
    )


def test_a_rank_without_memory_for_its_own_copy_is_named():
    rooms = [Room("a", 70, 9, 100, 1, 20), Room("b", 70, 9, 80, 1, 20)]
    with pytest.raises(DisagreementError, match=r"rank 1 keeps .* \[0\] and a copy of itself: 90"):
        check_room(rooms)
    check_room([dataclasses.replace(one, limit=90) for one in rooms])


def test_an_entry_that_is_no_whole_copy_or_does_not_follow_is_refused():
    ranks = world("own")
    attempt(ranks)
    log = ranks[1].keeper._logs[0]
    given_ = dict.fromkeys(range(3), ())
    with pytest.raises(entry.BadEntryError, match="no whole copy"):
        log.buffers(entry.Entry(0, 1, False, 4, {}, given_, {}))
    with pytest.raises(entry.BadEntryError, match=r"gives step 3, and \(0, 0\)"):
        log.buffers(entry.Entry(0, 3, False, 3, {}, given_, {}))


@pytest.mark.parametrize("place", range(4))
def test_what_is_broken_off_or_corrupt_leaves_the_copies_as_they_were(place):
    known = undisturbed("own", 3)
    ranks = world("own")
    for _ in range(2):
        attempt(ranks)
    kept = ranks[1].keeper.keeps()
    for harm in (
        lambda sent: RuntimeError("connection closed"),
        lambda sent: sent.bitwise_xor(torch.tensor(1, dtype=sent.dtype)),
    ):
        for one in ranks:
            one.start.capture()
            one.give(2)

        def harmed(source, _to, at, sent, harm=harm):
            return harm(sent) if (source, at) == (0, place) else sent

        raised = worlds.exchange(ranks, 2, worlds.Network(3, harmed))
        if place < 3:  # head, chunk, sums
            assert raised
            assert ranks[1].keeper.keeps() == kept
    recover(ranks, [0], "own")
    assert all(map(same, map(content, ranks), known[ranks[0].step_number]))
