"""State of which each rank holds its own part is no replica: it is refused or named."""

import gc

import pytest
from on_demand import on_demand

dist = on_demand("torch.distributed")
nn = on_demand("torch.nn")
torch = on_demand("torch")
replicas = on_demand("fabric_train.state.replicas", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")
unprotected = on_demand("fabric_train.state.unprotected", needs="torch")


@pytest.fixture
def sharded():
    """A model of four ranks' FSDP2, as rank 0 has it; its peers are played by torch."""
    pytest.importorskip("torch")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        yield fully_shard(nn.Linear(8, 8), mesh=init_device_mesh("cpu", (4,)))
    finally:
        dist.destroy_process_group()


def test_a_sharded_model_is_refused_and_so_is_an_optimizer_of_its_parameters(sharded):
    with pytest.raises(TypeError, match=r"^model: .*sharded.*no rank is a replica"):
        replicated.ReplicatedState({"model": sharded})
    with pytest.raises(TypeError, match=r"^adam: a parameter is sharded"):
        replicated.ReplicatedState({"adam": torch.optim.AdamW(sharded.parameters())})


def test_a_sharded_model_beside_what_is_protected_is_named_as_unprotected(sharded):
    gc.collect()
    model = nn.Linear(2, 2)
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    replicated.ReplicatedState(parts)
    assert any("(sharded) of 72 elements" in text for text in unprotected.find_unprotected(parts))
    del sharded


def test_what_all_ranks_hold_alike_is_taken():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    replicated.ReplicatedState({"model": model, "optimizer": torch.optim.SGD(model.parameters())})


@pytest.fixture
def hsdp():
    """As rank 1 of 2 × 2 has it, replicate × shard, with 5 rows: this rank's shard has two."""
    pytest.importorskip("torch")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        yield lambda: fully_shard(nn.Linear(3, 5), mesh=mesh)
    finally:
        dist.destroy_process_group()
        gc.collect()  # other tests look for models that nobody protects


def stepped(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def test_ranks_along_what_replicates_hold_the_same_shards(hsdp):
    model = hsdp()
    parts = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    assert replicas.replicas_of(parts, 1, 4) == (1, 3)
    assert replicas.replicas_of({"model": nn.Linear(2, 2)}, 1, 4) is None
    state = replicated.ReplicatedState(parts, (1, 3))
    assert {name: tuple(one.shape) for name, one in state.tensors()} == {
        "model/weight": (2, 3), "model/bias": (2,),
    }  # fmt: skip
    assert state.sharded_parts() == ["model", "optimizer"]
    with pytest.raises(TypeError, match="no rank is a replica"):
        replicated.ReplicatedState(parts, (1,))


def test_a_replacement_takes_over_shards_and_what_the_optimizer_keeps_of_them(hsdp):
    source, here = hsdp(), hsdp()
    theirs = replicated.ReplicatedState({"m": source, "o": stepped(source)}, (1, 3))
    fresh = torch.optim.AdamW(here.parameters(), lr=0.1)  # has made no state yet
    mine = replicated.ReplicatedState({"m": here, "o": fresh}, (1, 3))
    manifest, first, later = theirs.offer()
    assert mine.digest() != theirs.digest()
    for to, tensor in zip(mine.accept(manifest), first + later, strict=True):
        to.copy_(tensor)
    mine.take_over(manifest)
    assert mine.digest() == theirs.digest()
    moment = fresh.state[here.weight]["exp_avg"]
    assert type(moment) is type(here.weight.data)
    assert moment.placements == here.weight.placements
    assert moment.shape == here.weight.shape
    for parameter in (*source.parameters(), *here.parameters()):
        parameter.grad = torch.full_like(parameter, 0.5)
    for optimizer in (*theirs.optimizers(), fresh):
        optimizer.step()
    assert mine.digest() == theirs.digest()
