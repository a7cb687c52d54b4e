"""What is done at the start of a step: parameters are gathered, and parts are compared."""

import json
from dataclasses import dataclass, field

import pytest
from on_demand import on_demand

from fabric_train.rules.agreement import DisagreementError

torch = on_demand("torch")
after_recovery = on_demand("fabric_train.rank.after_recovery", needs="torch")
job_group = on_demand("fabric_train.groups.job_group", needs="torch")
torch_calls = on_demand("fabric_train.groups.torch_calls", needs="torch")
replicas = on_demand("fabric_train.state.replicas", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")

CLASSES = {"model": (0, 1), "optimizer": (0,)}


@dataclass
class Connections:
    """Of a generation, with one more rank that has said ``theirs``."""

    generation: int = 1
    rank: int = 0
    theirs: dict = field(default_factory=dict)
    compared: int = 0
    all: tuple = ()

    def exchange(self, mine):
        self.compared += 1
        return [mine, json.dumps(self.theirs or json.loads(mine)).encode()]

    def abort(self):
        """Nothing is under way."""


class Own:
    """Parts of a process, and their gather."""

    keeper = None

    def __init__(self, gather, classes=CLASSES):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        self.gather = gather
        self.state = replicated.ReplicatedState({"model": model, "optimizer": optimizer})
        self.holders = replicas.Holders((0,), declared=True, classes=classes)

    def settle(self, step):
        """No shards."""


@pytest.fixture
def group():
    one = job_group.JobGroup(0, 2, late=True)
    one.adopt(Connections())
    one.use = torch_calls.Use.CLOSED
    return one


def test_parameters_are_gathered_once_a_step_and_again_in_a_new_generation(group):
    uses = []
    own = Own(lambda: uses.append(group.use))
    after = after_recovery.AfterRecovery()
    for step in (0, 0, 1):
        after.settle(group, own, step, leaves=False)
    assert uses == [torch_calls.Use.ATTEMPT] * 2
    assert group.use is torch_calls.Use.CLOSED
    group.adopt(Connections(generation=2))
    after.settle(group, own, 1, leaves=False)
    assert len(uses) == 3


def test_a_gather_in_which_a_rank_is_lost_is_done_again_before_anything_is_compared(group):
    lost = [True, False]

    def gather():
        group.broken = lost.pop(0)

    after, own = after_recovery.AfterRecovery(), Own(gather)
    after.compare()
    after.settle(group, own, 3, leaves=False)
    assert group.broken
    assert group.inner.compared == 0
    group.adopt(Connections(generation=2))  # the recovery
    after.compare()
    after.settle(group, own, 3, leaves=False)
    assert lost == []
    assert group.inner.compared == 1


def test_where_a_rank_has_left_by_plan_the_next_generation_gathers_and_compares(group):
    uses = []
    own = Own(lambda: uses.append(group.inner.generation))
    after = after_recovery.AfterRecovery()
    after.compare()
    after.settle(group, own, 3, leaves=True)
    assert (uses, group.inner.compared) == ([], 0)
    group.adopt(Connections(generation=2))
    assert after.gather(group, own, 3)
    after.settle(group, own, 4, leaves=False)
    assert (uses, group.inner.compared) == ([2, 2], 1)


@pytest.mark.parametrize("part", CLASSES)
def test_each_part_is_compared_by_the_ranks_that_hold_it(group, part):
    own = Own(None)
    mine = {name: [list(ranks), own.state.digest(part=name)] for name, ranks in CLASSES.items()}
    theirs = dict(mine, optimizer=[[1], mine["optimizer"][1]])
    theirs[part] = [theirs[part][0], "other bits"]
    group.adopt(Connections(theirs=theirs))
    after = after_recovery.AfterRecovery()
    after.compare()
    if part == "optimizer":  # of another shard
        after.settle(group, own, 0, leaves=False)
        return
    with pytest.raises(DisagreementError, match="ranks 0 and 1 hold the same model, and it diff"):
        after.settle(group, own, 0, leaves=False)


def test_holders_that_ranks_declare_otherwise_are_told(group):
    own = Own(None)
    mine = {name: [list(ranks), own.state.digest(part=name)] for name, ranks in CLASSES.items()}
    group.adopt(Connections(theirs=dict(mine, model=[[1], mine["model"][1]])))
    after = after_recovery.AfterRecovery()
    after.compare()
    with pytest.raises(DisagreementError, match="ranks 0 and 1"):
        after.settle(group, own, 0, leaves=False)
