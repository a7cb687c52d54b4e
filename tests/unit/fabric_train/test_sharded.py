"""State of which each rank holds its own part is no replica: it is refused or named."""

import gc

import pytest
from on_demand import on_demand

dist = on_demand("torch.distributed")
nn = on_demand("torch.nn")
torch = on_demand("torch")
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
