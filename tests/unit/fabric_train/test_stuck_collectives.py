"""A collective that gloo misses when its sockets are shut down is ended by the group."""

import threading
import time

import pytest
from on_demand import on_demand

from fabric_train.messages.process import Assignment

torch = on_demand("torch")
collectives = on_demand("fabric_train.groups.collectives", needs="torch")
generation_group = on_demand("fabric_train.groups.generation_group", needs="torch")


class Work:
    """A collective that nothing ends, or that ends when told to."""

    def __init__(self):
        self.future = torch.futures.Future()

    def get_future(self):
        return self.future


def generation():
    """A generation whose collectives never end by themselves; ``stuck``: its answer to is_stuck."""

    class Generation(generation_group.GenerationGroup):
        def __init__(self):
            super().__init__(Assignment(generation=3, rank=0, world=2, store="h0"), None, 1.0)
            self.works = []
            self.stuck = False
            self.kept = False

        @property
        def group(self):
            return self

        def allreduce(self, _tensors, _opts):
            self.works.append(Work())
            return self.works[-1]

        def end(self):
            pass

        def discard(self):
            pass

        def is_stuck(self):
            return self.stuck

        def keep(self):
            self.kept = True

    return Generation()


@pytest.fixture
def started():
    group, inner = collectives.FabricGroup(0, 2), generation()
    group.adopt(inner)
    group.use = collectives.Use.ATTEMPT
    work = group.allreduce([torch.ones(1)])
    return group, inner, work


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_ends_once_the_generation_is_aborted_and_nothing_can_wake_it(started):
    group, inner, work = started
    inner.stuck = True
    group.abort(4)
    wait_for(work.is_completed)
    assert group.broken
    assert inner.kept
    assert group.wait_quiet(0.0)
    # Its own end, which its time-out brings, is of no interest any more.
    inner.works[0].future.set_result([])
    assert group.wait_quiet(0.0)


def test_one_that_may_still_write_memory_is_waited_for(started):
    group, inner, work = started
    group.abort(4)
    assert not group.wait_quiet(1.0)
    assert not work.is_completed()
    inner.works[0].future.set_result([])
    wait_for(work.is_completed)
    assert group.wait_quiet(60.0)
    assert not inner.kept


def test_nothing_is_ended_while_its_generation_goes_on(started):
    group, inner, work = started
    inner.stuck = True
    assert not group.wait_quiet(1.0)
    assert not work.is_completed()
    inner.works[0].future.set_result([])
    assert group.wait_quiet(60.0)
    assert not group.broken


gloo_group = on_demand("fabric_train.groups.gloo_group", needs="torch")


def attending(stuck):
    """A gloo generation without connections, whose messages are stuck as ``stuck`` says."""
    inner = object.__new__(gloo_group.GlooGeneration)
    inner.is_stuck = stuck
    inner.kept = False
    inner.keep = lambda: setattr(inner, "kept", True)
    return inner


def test_what_is_attended_ends_as_it_ends_by_itself():
    done = []
    attending(lambda: False).attended(lambda: done.append(1))
    assert done == [1]
    with pytest.raises(RuntimeError, match="closed"):
        attending(lambda: False).attended(fail)


def fail():
    raise RuntimeError("connection closed")


def test_what_nothing_can_wake_any_more_is_left_alone():
    never = threading.Event()
    inner = attending(lambda: True)
    with pytest.raises(RuntimeError, match="was missed"):
        inner.attended(lambda: never.wait(60) and None)
    assert inner.kept
    never.set()


def test_what_may_still_be_written_is_waited_for():
    looks = iter([True, True, True, True, False, True, True])
    inner, over = attending(lambda: next(looks, False)), threading.Event()
    timer = threading.Timer(0.9, over.set)
    timer.start()
    inner.attended(lambda: over.wait(60) and None)
    assert not inner.kept
    timer.join()
