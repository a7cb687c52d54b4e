"""Objects that a process alone gives to collectives, and the backend's name for frameworks."""

import pytest
from on_demand import on_demand

torch = on_demand("torch")
dist = on_demand("torch.distributed", needs="torch")
object_calls = on_demand("fabric_train.groups.object_calls", needs="torch")

NAMES = ("broadcast_object_list", "all_gather_object", "gather_object", "get_backend")


@pytest.fixture
def modules(monkeypatch):
    """torch.distributed, whose calls are put back afterwards."""
    for module in (dist, dist.distributed_c10d):
        for name in NAMES:
            monkeypatch.setattr(module, name, getattr(module, name))
    return dist


def test_alone_a_process_gets_what_it_has_given(modules):
    object_calls.answer_objects_alone(lambda: True)
    said, all_said, gathered = ["mine"], [None, None], [None, None]
    modules.broadcast_object_list(said, src=1)
    modules.all_gather_object(all_said, "mine")
    modules.gather_object("mine", gathered, dst=0)
    modules.gather_object("mine", dst=1)
    assert (said, all_said, gathered) == (["mine"], ["mine"] * 2, ["mine"] * 2)
    assert modules.distributed_c10d.all_gather_object is not None


def test_with_others_it_asks_torch(modules):
    object_calls.answer_objects_alone(lambda: False)
    with pytest.raises(ValueError, match="process group has not been initialized"):
        modules.broadcast_object_list(["mine"], src=0)


def test_frameworks_hear_of_the_backend_that_they_know(modules, monkeypatch):
    for module in (modules, modules.distributed_c10d):
        monkeypatch.setattr(module, "get_backend", lambda group=None: group or "fabric")
    object_calls.say_gloo()
    assert modules.get_backend() == "gloo"
    assert modules.distributed_c10d.get_backend("nccl") == "nccl"
