"""The interface of torch's process groups: what torch calls, and what a job's group answers."""

import importlib
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from on_demand import on_demand

torch = on_demand("torch")
c10d = on_demand("torch._C._distributed_c10d", needs="torch")
collectives = on_demand("fabric_train.groups.collectives", needs="torch")
generation_group = on_demand("fabric_train.groups.generation_group", needs="torch")
plugin_group = on_demand("fabric_train.groups.plugin_group", needs="torch")
torch_calls = on_demand("fabric_train.groups.torch_calls", needs="torch")

PROJECT = Path(__file__).parents[3] / "fabric_train" / "pyproject.toml"
NO_COLLECTIVES = {
    "abort", "bound_device_id", "boxed", "get_group_store", "group_desc", "merge_remote_group",
    "monitored_barrier", "name", "set_timeout", "shutdown", "split_group", "unbox",
    "use_pg_for_symm_mem_rendezvous", "BackendType",
}  # fmt: skip
"""What torch asks of its own backends alone, or what is refused: other groups."""


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_") and name.upper() != name}


def own(kind):
    """What classes of fabric_train among the bases of ``kind`` define."""
    mine = [one for one in kind.__mro__ if one.__module__.startswith("fabric_train")]
    return {name for one in mine for name in vars(one)}


def test_every_collective_of_the_installed_torch_is_answered():
    known = own(collectives.FabricGroup)
    left = public(c10d.ProcessGroup) - known - NO_COLLECTIVES
    assert left == set()
    assert {"_allgather_base", "_reduce_scatter_base"} <= known


def test_torch_calls_no_other_method_of_a_group():
    """Read in torch: who calls ``group.NAME(…)`` calls what is answered, or what is refused."""
    source = importlib.import_module("torch.distributed.distributed_c10d").__file__
    called = set(re.findall(r"\bgroup\.(_?[a-z_]+)\(", Path(source).read_text()))
    assert {"all_gather_single", "reduce_scatter_single", "all_to_all_single"} <= called
    questions = {"rank", "size", "_get_backend", "_start_coalescing", "_end_coalescing"}
    assert called - questions <= own(collectives.FabricGroup)


def test_the_installed_torch_is_one_that_the_package_names():
    (requirement,) = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    least, below = re.fullmatch(r"torch>=(\d+\.\d+),<(\d+\.\d+)", requirement).groups()
    installed = re.match(r"\d+\.\d+", version("torch")).group()
    as_numbers = [tuple(map(int, one.split("."))) for one in (least, installed, below)]
    assert as_numbers[0] <= as_numbers[1] < as_numbers[2]


@pytest.mark.parametrize("backend", ["gloo", "plugin"])
def test_every_collective_has_its_method_in_each_backend(backend):
    group = torch.distributed.ProcessGroupGloo if backend == "gloo" else plugin_group.PluginGroup
    coalesced = {"all_gather_single_coalesced", "reduce_scatter_single_coalesced"}
    answered = {name for name in vars(torch_calls.TorchCalls) if name in public(c10d.ProcessGroup)}
    old = {"allgather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced", "alltoall_base"}
    for name in answered - coalesced - old - {"rank", "size", "group_name"}:
        assert callable(generation_group.method(group, name)), name


def test_alone_each_collective_answers_from_what_this_process_gives():
    group = collectives.FabricGroup(1, 3)
    two, three = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])

    def filled(*shape):
        return torch.full(shape, 9.0)

    one = filled(6)
    group.all_gather_single(one, two).wait()
    assert one.tolist() == [1, 2, 1, 2, 1, 2]
    one = filled(3, 2)
    group.all_gather_single(one, two).wait()
    assert one.tolist() == [[1, 2], [1, 2], [1, 2]]
    one = filled(1)
    group.reduce_scatter_single(one, three).wait()
    assert one.tolist() == [2]
    group.reduce_scatter([one], [[filled(1), torch.tensor([5.0]), filled(1)]]).wait()
    assert one.tolist() == [5]
    one = filled(3)
    group.all_to_all_single(one, three, [], []).wait()
    assert one.tolist() == [0, 2, 0]
    one = filled(4)
    group.all_to_all_single(one, three, [1, 2, 1], [0, 2, 1]).wait()
    assert one.tolist() == [0, 1, 2, 0]
    outputs = [filled(2), filled(1), filled(1)]
    group.alltoall(outputs, [filled(2), torch.tensor([4.0]), filled(1)]).wait()
    assert [output.tolist() for output in outputs] == [[0, 0], [4], [0]]
    rows = [[filled(2), filled(3)] for _ in range(3)]
    group.allgather_coalesced(rows, [two, three]).wait()
    assert [[each.tolist() for each in row] for row in rows] == [[[1, 2], [1, 2, 3]]] * 3
    one = filled(2)
    work = group.recv_anysource([one], 5)
    work.wait()
    assert one.tolist() == [0, 0]
    assert work._source_rank() == 0


class Failing:
    """A collective of a generation that ends with ``text``."""

    def __init__(self, text):
        self._future = torch.futures.Future()
        self._future.set_exception(RuntimeError(text))

    def get_future(self):
        return self._future


def generation(*, at_once, text):
    from fabric_train.groups.gloo_group import GlooGeneration
    from fabric_train.messages.process import Assignment

    class Generation(generation_group.GenerationGroup):
        is_mistake = GlooGeneration.is_mistake
        _aborted = False

        @property
        def group(self):
            return self

        def allreduce(self, _tensors, _opts):
            if at_once:
                raise RuntimeError(text)
            return Failing(text)

        def end(self):
            pass

        def discard(self):
            pass

    return Generation(Assignment(generation=3, rank=0, world=2, store="h0"), None, 1.0)


def reduce(group):
    group.use = collectives.Use.ATTEMPT
    group.allreduce([torch.ones(1)]).wait()
    return group.settle()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_collective_that_cannot_be_done_is_the_loops_mistake_and_no_lost_rank(at_once):
    group = collectives.FabricGroup(0, 2)
    group.adopt(generation(at_once=at_once, text="Invalid scalar type"))
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        reduce(group)
    assert not group.broken


@pytest.mark.parametrize("at_once", [True, False])
def test_an_error_of_a_connection_is_a_lost_rank(at_once):
    group = collectives.FabricGroup(0, 2)
    text = "[/x/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"
    group.adopt(generation(at_once=at_once, text=text))
    assert reduce(group) is False
    assert group.broken
