"""What a process has prepared for a planned move: when it may change over, and to what."""

import threading

import pytest
from on_demand import on_demand

from fabric_train.messages.process import Assignment, Suspect

collectives = on_demand("fabric_train.groups.collectives", needs="torch")
generation_group = on_demand("fabric_train.groups.generation_group", needs="torch")
preparation = on_demand("fabric_train.rank.preparation", needs="torch")


def generation(assignment):
    """The group of a generation; it notes that it was discarded."""

    class Group(generation_group.GenerationGroup):
        def __init__(self, assignment):
            super().__init__(assignment, None, 1.0)
            self.discarded = False

        @property
        def group(self):
            return None

        def end(self):
            pass

        def discard(self):
            self.discarded = True

    return Group(assignment)


class Link:
    """Its ``wait`` waits until a connection has ended."""

    def __init__(self):
        self.sent, self.newest = [], 0
        self.changed = threading.Condition()

    def send(self, message):
        self.sent.append(message)

    def notify(self):
        with self.changed:
            self.changed.notify_all()

    def wait(self, until):
        with self.changed:
            return self.changed.wait_for(until, 60)

    def newer_than(self, generation):
        return self.newest > generation


@pytest.fixture
def world(monkeypatch):
    """A link, the preparation of its process, and what lets a connection end."""
    link, allowed = Link(), {}

    def start(link, assignment, _timeout_s, _groups):
        allowed[assignment.generation] = event, result = threading.Event(), []

        def make():
            assert event.wait(60)
            if result:
                raise result[0]
            return generation(assignment)

        return collectives.Connecting(make, link.notify)

    monkeypatch.setattr(preparation, "start_connecting", start)
    made = preparation.Preparation(link, 60, dict)

    def end(generation, error=None):
        event, result = allowed[generation]
        result.extend([error] if error else [])
        connecting = made._now[1]
        event.set()
        link.wait(lambda: connecting.ended)

    yield link, made, end
    for event, _ in allowed.values():
        event.set()


def planned(number, rank):
    return Assignment(number, rank, 4, "127.0.0.1:1", follows=number - 1)


def test_a_rank_can_change_over_once_it_is_connected(world):
    link, made, end = world
    assert made.ready_for() == 0
    made.begin(planned(2, 1))
    assert (made.ready_for(), made.leaves) == (0, False)
    end(2)
    assert made.ready_for() == 2
    group = made.connect(planned(2, 1))
    assert (group.generation, group.discarded) == (2, False)
    assert made.ready_for() == 0, "once"
    assert link.sent == []


def test_who_loses_its_rank_can_leave_at_once(world):
    _, made, _ = world
    made.begin(planned(2, None))
    assert (made.ready_for(), made.leaves) == (2, True)


def test_what_was_prepared_for_another_generation_is_dropped(world):
    link, made, end = world
    made.begin(planned(2, 1))
    end(2)
    old = made._now[1]
    link.newest = 4  # it is not waited for in this test
    assert made.connect(Assignment(3, 1, 4, "127.0.0.1:1")) is None
    assert old.result(link.wait, lambda: False).discarded


def test_a_connection_that_fails_is_said_once_and_made_anew(world):
    link, made, end = world
    made.begin(planned(2, 1))
    end(2, RuntimeError("refused"))
    assert made.ready_for() == made.ready_for() == 0
    assert link.sent == [Suspect(2, "refused")]
    link.newest = 3
    assert made.connect(planned(2, 1)) is None, "a new attempt, which nobody lets end"
