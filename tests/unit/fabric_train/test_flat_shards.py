"""Shards that are plain tensors, as an adapter says, and what is made of those of all ranks."""

import dataclasses
from types import SimpleNamespace

import pytest
from on_demand import on_demand

torch = on_demand("torch")
after_recovery = on_demand("fabric_train.rank.after_recovery", needs="torch")
flat_shards = on_demand("fabric_train.state.flat_shards", needs="torch")
replicas = on_demand("fabric_train.state.replicas", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")
structure = on_demand("fabric_train.state.structure", needs="torch")
unprotected = on_demand("fabric_train.state.unprotected", needs="torch")
units = on_demand("fabric_train.shards.units", needs="torch")


@pytest.fixture
def parts():
    """As rank 2 of 4 has them: a weight is made of four partitions, and a bias is frozen."""
    pytest.importorskip("torch")
    net = torch.nn.Linear(4, 2)
    net.bias.requires_grad_(False)
    partition = net.weight.detach().flatten()[4:6].clone().requires_grad_()

    class Shards(flat_shards.FlatShards):
        ended = 0

        def check(self):
            raise structure.ChangedError("gradients are left")

        def forget_attempt(self):
            self.ended += 1

    shards = Shards({"partition 0": partition}, (2,), [net.weight])
    optimizer = torch.optim.AdamW([partition])
    return {"model": net, "shards": shards, "optimizer": optimizer}


def test_a_partition_is_a_shard_of_its_rank_alone(parts):
    holders = replicas.Holders.of(parts, None, 2, 4, late=True)
    assert holders.ranks == (2,)
    assert holders.alone
    (unit,) = units.ShardUnits(parts).units
    assert (unit.name, unit.optimizer, unit.place) == ("shards/partition 0", "optimizer", 0)
    with pytest.raises(TypeError, match=r"^shards: partition 0 is a shard: no rank is a replica"):
        replicated.ReplicatedState(parts)


def test_what_is_made_of_partitions_is_no_state_and_may_change(parts):
    state = replicated.ReplicatedState(parts, (2,), kept=True)
    assert [name for name, _ in state.tensors()] == ["model/bias", "shards/partition 0"]
    state.structure.begin()
    state.structure.mark()
    with torch.no_grad():
        parts["model"].weight.mul_(2)
    parts["model"].weight.data = torch.zeros(0)
    state.structure.check()
    with torch.no_grad():
        parts["model"].bias.mul_(2)
    with pytest.raises(structure.ChangedError, match="bias was changed in place"):
        state.structure.check()
    found = unprotected.find_unprotected(parts)
    assert not [text for text in found if "optimizer state of 1 parameters" in text]


def test_an_adapter_is_asked_at_the_gate_and_told_of_an_attempts_end(parts):
    state = replicated.ReplicatedState(parts, (2,), kept=True)
    with pytest.raises(structure.ChangedError, match="gradients are left"):
        state.check()
    state.forget_attempt()
    assert parts["shards"].ended == 1


@pytest.mark.parametrize("mark", ["_hp_mapping", "ds_tensor"])
def test_parameters_of_zero_are_refused_where_no_adapter_speaks_for_them(mark):
    net = torch.nn.Linear(4, 2)
    setattr(net.weight, mark, None)
    parts = {"model": net, "optimizer": torch.optim.SGD([torch.zeros(2, requires_grad=True)])}
    with pytest.raises(TypeError, match=r"^model: weight is made of partitions by ZeRO of Deep"):
        replicated.ReplicatedState(parts)


class Own:
    """What `AfterRecovery.settle` uses of a process, which notes what it does."""

    def __init__(self):
        self.state = SimpleNamespace(replicas=None)
        self.done, self.broken, self.gather = [], False, None
        self.holders = SimpleNamespace(classes={})
        self.keeper = SimpleNamespace(send=lambda *_: self.done.append("owed"))

    def settle(self, _step):
        pass

    def make_whole(self, _inner):
        if self.broken:
            raise RuntimeError("connection closed")
        self.done.append("made")


@dataclasses.dataclass
class Plan:
    copies: dict
    rebuilt: frozenset

    def is_owed(self, _rank):
        return True


def test_parameters_are_made_once_behind_each_step_and_again_when_that_was_broken_off():
    after, own, group = after_recovery.AfterRecovery(), Own(), SimpleNamespace(inner=object())
    after.settle(group, own, 0, leaves=False)
    assert own.done == []
    after.stepped()
    own.broken = True
    with pytest.raises(RuntimeError):
        after.settle(group, own, 1, leaves=False)
    own.broken = False
    after.settle(group, own, 1, leaves=False)
    after.settle(group, own, 1, leaves=False)
    assert own.done == ["made"]


def test_who_waits_for_a_state_gets_it_before_all_make_their_parameters():
    """It could not take part before: the others would wait for it, and it for one of them."""
    after, own = after_recovery.AfterRecovery(), Own()
    inner = SimpleNamespace(rank=1, group=None)
    after.note(inner, Plan({0: 1}, frozenset({0})))
    after.stepped()
    after.settle(SimpleNamespace(inner=inner), own, 5, leaves=False)
    assert own.done == ["owed", "made"]
