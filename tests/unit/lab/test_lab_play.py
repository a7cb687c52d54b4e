"""Schedules: what begins and ends when, and what happens when something fails."""

import time

import pytest

from lab.faults.flapper import instants
from lab.faults.schedule import Play, Step


class Recorder:
    """Stands where a fault stands; notes when it was called."""

    def __init__(self, log, name, *, fails=False):
        self.log, self.name, self.fails = log, name, fails
        self.ended = False

    def arm(self, site):
        self.log.append((self.name, "arm", time.monotonic()))

    def start(self):
        self.log.append((self.name, "start", time.monotonic()))
        if self.fails:
            raise OSError("no such device")

    def end(self):
        if not self.ended:
            self.ended = True
            self.log.append((self.name, "end", time.monotonic()))

    def wait(self):
        pass

    def close(self):
        self.log.append((self.name, "close", time.monotonic()))


def test_steps_overlap_and_keep_time():
    log = []
    play = Play(
        None,
        [
            Step(0.10, Recorder(log, "b"), 0.2),
            Step(0.05, Recorder(log, "a"), 0.1),
        ],
    )
    assert [what for _, what, _ in log] == ["arm", "arm"]
    play.start()
    play.wait(60)
    events = [(n, w) for n, w, _ in log if w in {"start", "end"}]
    assert events == [("a", "start"), ("b", "start"), ("a", "end"), ("b", "end")]
    began = play.started_ns / 1e9
    for name, what, due in (("a", "start", 0.05), ("a", "end", 0.15), ("b", "end", 0.30)):
        when = next(t for n, w, t in log if (n, w) == (name, what))
        assert when - began >= due  # how late it may be is the machine's doing


def test_stop_ends_what_is_in_force():
    log = []
    play = Play(None, [Step(0, Recorder(log, "a"), 60), Step(30, Recorder(log, "b"), 1)])
    play.start()
    while ("a", "start") not in [(n, w) for n, w, _ in log]:
        time.sleep(0.005)
    play.stop()
    assert ("a", "end") in [(n, w) for n, w, _ in log]
    assert ("b", "start") not in [(n, w) for n, w, _ in log]
    assert {n for n, w, _ in log if w == "close"} == {"a", "b"}


def test_a_failing_step_ends_the_others_and_is_reported():
    log = []
    play = Play(
        None, [Step(0, Recorder(log, "a"), 9), Step(0.05, Recorder(log, "b", fails=True), 9)]
    )
    play.start()
    with pytest.raises(OSError, match="no such device"):
        play.wait(60)
    assert ("a", "end") in [(n, w) for n, w, _ in log]


def test_flap_instants_do_not_drift():
    got = list(instants(1000, 20, 5, 3))
    assert got == [
        (1000, False),
        (1005, True),
        (1020, False),
        (1025, True),
        (1040, False),
        (1045, True),
    ]


def test_one_that_cannot_end_does_not_keep_the_others():
    log = []

    class Stuck(Recorder):
        def end(self):
            raise OSError("busy")

    play = Play(None, [Step(0, Recorder(log, "a"), 9), Step(0.02, Stuck(log, "b"), 0.02)])
    play.start()
    with pytest.raises(OSError, match="busy"):
        play.wait(60)
    assert ("a", "end") in [(n, w) for n, w, _ in log]
    assert {n for n, w, _ in log if w == "close"} == {"a", "b"}


def test_a_step_that_cannot_be_armed_closes_those_before():
    log = []

    class Bad(Recorder):
        def arm(self, site):
            raise ValueError("no such rail")

    with pytest.raises(ValueError, match="no such rail"):
        Play(None, [Step(0, Recorder(log, "a"), 1), Step(0, Bad(log, "b"), 1)])
    assert [(n, w) for n, w, _ in log] == [("a", "arm"), ("a", "close")]
