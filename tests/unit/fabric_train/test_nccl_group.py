"""What the backend nccl does around NCCL itself; the rest needs a GPU (tests/gpu)."""

import pytest
from on_demand import on_demand

from fabric_train.messages.process import Assignment

torch = on_demand("torch")
collectives = on_demand("fabric_train.groups.collectives", needs="torch")
generation_group = on_demand("fabric_train.groups.generation_group", needs="torch")
nccl_group = on_demand("fabric_train.groups.nccl_group", needs="torch")


class Recorder:
    """A group that notes what it was asked."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        return lambda *args: self.asked.append((name, *args)) or name


class OnDevice:
    """Stands for a tensor of a GPU."""

    @property
    def device(self):
        return torch.device("cuda", 0)


def generation():
    """A generation whose device's work fails when ``failing`` is set."""

    class Generation(generation_group.GenerationGroup):
        failing = False
        still = True

        @property
        def group(self):
            return Recorder()

        def end(self):
            pass

        def discard(self):
            pass

        def settle(self):
            if self.failing:
                raise RuntimeError("NCCL: REMOTE_ERROR")

        def quiet(self, _timeout_s):
            return self.still

    return Generation(assignment(), None, 1.0)


def assignment():
    return Assignment(generation=3, rank=0, world=2, store="127.0.0.1:1")


def test_each_collective_goes_to_the_group_of_its_tensors():
    host, device = Recorder(), Recorder()
    both = nccl_group._ByDevice(host, device)
    here, there = torch.zeros(1), OnDevice()
    both.allreduce([here], None)
    both.allgather([[there, there]], [there], None)
    both._allgather_base(there, there, None)
    both.gather([], [there], None)
    both.barrier()
    both.send([here], 1, 7)
    assert [call[0] for call in host.asked] == ["allreduce", "barrier", "send"]
    assert [call[0] for call in device.asked] == ["allgather", "_allgather_base", "gather"]


def test_collectives_of_a_device_are_refused_once_its_group_has_ended():
    host = Recorder()
    both = nccl_group._ByDevice(host, Recorder())
    both.leave_device()
    with pytest.raises(RuntimeError, match="have ended"):
        both.allreduce([OnDevice()], None)
    both.allreduce([torch.zeros(1)], None)
    assert host.asked


def test_a_failure_on_the_device_marks_the_group_as_broken_before_the_vote():
    told = []
    group = collectives.FabricGroup(0, 2)
    group.on_broken = lambda generation, error: told.append((generation, error))
    inner = generation()
    group.adopt(inner)
    assert group.settle()
    inner.failing = True
    assert not group.settle()
    assert told == [(3, "NCCL: REMOTE_ERROR")]
    assert not group.settle()
    assert len(told) == 1


def test_a_device_that_does_not_come_to_rest_is_not_quiet():
    group = collectives.FabricGroup(0, 2)
    inner = generation()
    group.adopt(inner)
    assert group.wait_quiet(0.0)
    inner.still = False
    assert not group.wait_quiet(0.0)


def test_without_a_device_there_is_no_generation():
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        nccl_group.NcclGeneration(assignment(), None, 1.0)
