"""What a collective leaves that has failed: no integers that a model could take for sizes."""

import pytest
from on_demand import on_demand

from fabric_train.messages.process import Assignment

torch = on_demand("torch")
collectives = on_demand("fabric_train.groups.collectives", needs="torch")
generation_group = on_demand("fabric_train.groups.generation_group", needs="torch")
WILD = 1 << 40


class Work:
    def __init__(self):
        self.future = torch.futures.Future()

    def get_future(self):
        return self.future


def generation(*, refuses):
    """Its collectives end when a test says so; ``refuses``: each fails at its start."""

    class Generation(generation_group.GenerationGroup):
        def __init__(self):
            super().__init__(Assignment(generation=3, rank=0, world=2, store="h0"), None, 1.0)
            self.works = []

        @property
        def group(self):
            return self

        def start(self, *_):
            if refuses:
                raise RuntimeError("connection closed")
            self.works.append(Work())
            return self.works[-1]

        all_to_all_single = allreduce = allgather = _allgather_base = alltoall_base = start

        def end(self):
            pass

        def discard(self):
            pass

    return Generation()


def joined(*, refuses=False):
    group, inner = collectives.FabricGroup(0, 2), generation(refuses=refuses)
    group.adopt(inner)
    group.use = collectives.Use.ATTEMPT
    return group, inner


def exchange(group, kind):
    result = torch.full((4,), 7, dtype=kind) * WILD
    return result, group.all_to_all_single(result, torch.ones(4, dtype=kind), [], [])


def fail_now(group, inner):
    inner.works[0].future.set_exception(RuntimeError("connection closed"))


@pytest.mark.parametrize("when", ["before", "at its start", "later"])
def test_integers_that_were_to_be_filled_are_zeros(when):
    group, inner = joined(refuses=when == "at its start")
    group.broken = when == "before"
    result, work = exchange(group, torch.int64)
    if when == "later":
        assert result.tolist() == [7 * WILD] * 4
        fail_now(group, inner)
    work.wait()
    assert group.broken
    assert result.tolist() == [0] * 4


def test_numbers_and_what_had_a_value_stay_as_they_are():
    group, _ = joined()
    group.broken = True
    result, _ = exchange(group, torch.float32)
    assert result.tolist() == [7.0 * WILD] * 4
    counts = torch.full((2,), 5)
    group.allreduce([counts])
    assert counts.tolist() == [5, 5]
    parts = [torch.full((2,), WILD), torch.full((2,), WILD)]
    group.allgather([parts], [counts])
    assert [one.tolist() for one in parts] == [[0, 0], [0, 0]]


def test_what_has_ended_well_is_untouched():
    group, inner = joined()
    result, work = exchange(group, torch.int64)
    inner.works[0].future.set_result([])
    work.wait()
    assert result.tolist() == [7 * WILD] * 4
