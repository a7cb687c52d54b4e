"""Collectives of an attempt are repeated after a loss; who waits for one gets its result then."""

import threading

import pytest
from on_demand import on_demand

torch = on_demand("torch")
kept_calls = on_demand("fabric_train.groups.kept_calls", needs="torch")
torch_calls = on_demand("fabric_train.groups.torch_calls", needs="torch")
loop = on_demand("fabric_train.rules.loop")


class Group:
    """A group of two ranks, whose peer gives ``theirs`` to each sum."""

    def __init__(self):
        self.broken = False
        self.ends = []  # of what has begun: end it by calling it with whether it went well
        self.begun = []

    def raise_mistake(self):
        pass

    def begin(self, call, result, finish, *, joint):
        self.begun.append(call.name)

        def end(well, theirs=10.0):
            if call.name == "allreduce":
                result[0].add_(theirs)  # a failed one leaves garbage
            if call.name == "all_gather_single":
                result[0].copy_(torch.tensor([float(call.arguments[1]), theirs]))
            finish(well)

        self.ends.append(end)
        return True


@pytest.fixture
def calls():
    made = kept_calls.KeptCalls()
    made.open()
    return made


def reduce(calls, group, tensor):
    call = torch_calls.Call("allreduce", ([tensor], None))
    return calls.run(group, call, [tensor], joint=True)


def test_a_failed_collective_ends_with_what_it_gives_when_it_is_repeated(calls):
    group, tensor = Group(), torch.tensor([1.0])
    work = reduce(calls, group, tensor)
    group.ends[0](False, 77.0)
    assert not work.is_completed()
    calls.suspend()
    calls.replay()
    assert group.begun == ["allreduce"] * 2
    group.ends[1](True)
    assert work.is_completed()
    assert tensor.tolist() == [11.0]


def test_it_may_fail_any_number_of_times(calls):
    group, tensor = Group(), torch.tensor([1.0])
    work = reduce(calls, group, tensor)
    for place in range(3):
        group.ends[place](False)
        calls.replay()
    group.ends[3](True)
    assert work.is_completed()
    assert tensor.tolist() == [11.0]


def test_what_has_ended_is_repeated_and_its_result_stays(calls):
    group, tensor = Group(), torch.tensor([1.0])
    reduce(calls, group, tensor)
    group.ends[0](True)
    tensor.mul_(2)  # the loop goes on with it
    calls.suspend()
    calls.replay()
    group.ends[1](True, 500.0)
    assert tensor.tolist() == [22.0]


def test_what_is_called_during_a_recovery_follows_what_is_repeated(calls):
    group = Group()
    reduce(calls, group, torch.tensor([1.0]))
    calls.suspend()
    output, mine = torch.zeros(2), torch.tensor([3.0])
    call = torch_calls.Call("all_gather_single", (output, mine, None))
    work = calls.run(group, call, [output], joint=True)
    mine.zero_()  # what it has given is kept
    assert group.begun == ["allreduce"]
    calls.replay()
    assert group.begun == ["allreduce", "allreduce", "all_gather_single"]
    group.ends[2](True)
    assert work.is_completed()
    assert output.tolist() == [3.0, 10.0]


def test_nothing_starts_while_the_generation_is_broken(calls):
    group = Group()
    group.broken = True
    reduce(calls, group, torch.tensor([1.0]))
    calls.replay()
    assert group.begun == []
    group.broken = False
    calls.replay()
    assert group.begun == ["allreduce"]


def test_nothing_of_an_attempt_that_counts_is_repeated(calls):
    group = Group()
    reduce(calls, group, torch.tensor([1.0]))
    group.ends[0](True)
    calls.close()
    calls.replay()
    assert group.begun == ["allreduce"]


def test_the_gate_waits_for_all_and_wakes_up_when_the_generation_ends(calls):
    group = Group()
    reduce(calls, group, torch.tensor([1.0]))
    for event in (lambda: group.ends[0](True), lambda: setattr(group, "broken", True)):
        waiting = threading.Thread(target=calls.wait_ended)
        waiting.start()
        event()
        calls.wake()
        waiting.join(60)
        assert not waiting.is_alive()
        reduce(calls, group, torch.tensor([1.0]))


def test_a_receive_from_any_rank_is_refused(calls):
    with pytest.raises(loop.RuleError, match="name its source"):
        calls.run(Group(), lambda _group: None, [], joint=False)
