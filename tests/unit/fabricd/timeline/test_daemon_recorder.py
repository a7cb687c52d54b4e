"""The recorder: disks stall, fill and come back; order is kept, flaps stay exact."""

import threading
import time

import pytest

from fabricd.timeline.recorder import Recorder
from telemetry.events import Event, EventKind
from telemetry.timeline import Retention, Timeline, TimelineError


def event(kind=EventKind.DAEMON, link="", count=1, **data):
    return Event(kind, 1, 1, link=link, count=count, data=data)


def flap(link, count, down_count):
    return event(EventKind.FLAP, link, count, down_count=down_count)


class Disk:
    """A store that fails or stalls when told."""

    def __init__(self):
        self.log = []
        self.failing = False
        self.retryable = True
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False

    def append(self, events):
        self.gate.wait(20)
        if self.failing:
            raise TimelineError("disk full", retryable=self.retryable)
        self.log += [(e.kind.value, e.link, e.count) for e in events]
        return events

    def set_state(self, key, document):
        self.gate.wait(20)
        if self.failing:
            raise TimelineError("disk full", retryable=True)
        self.log.append(("state", key, document))

    def prune(self, _now, retention=None):
        self.retention = retention

    def size_bytes(self):
        return 0

    def close(self):
        self.closed = True


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture(autouse=True)
def soon_tried_again(monkeypatch):
    monkeypatch.setattr("fabricd.timeline.recorder._RETRY_S", (0.02, 0.1))


def started(disk, **kwargs):
    recorder = Recorder(lambda: disk, **kwargs)
    recorder.start(disk)
    return recorder


def test_order_of_events_and_states_is_kept(disk):
    disk.gate.clear()
    recorder = started(disk)
    recorder.put([flap("a", 1, 1)])
    recorder.put_state("k", 1)
    recorder.put([flap("b", 1, 1)])
    recorder.put_state("k", 2)
    recorder.put_state("k", 3)
    disk.gate.set()
    assert recorder.stop(60)
    assert disk.log == [
        ("flap", "a", 1), ("state", "k", 1), ("flap", "b", 1), ("state", "k", 3)
    ]  # fmt: skip
    assert disk.closed


def test_full_disk_is_tried_again_and_nothing_is_lost(disk):
    disk.failing = True
    recorder = started(disk)
    recorder.put([flap("a", 1, 1), flap("a", 2, 3)])
    recorder.put_state("k", "after")
    until(lambda: recorder.failures >= 2)
    assert recorder.waiting >= 2
    assert disk.log == []
    disk.failing = False
    until(lambda: recorder.stored == 2)
    assert recorder.stop(60)
    assert disk.log == [("flap", "a", 1), ("flap", "a", 2), ("state", "k", "after")]


def test_stalled_disk_does_not_stop_the_caller_and_memory_is_bounded(disk):
    disk.gate.clear()
    recorder = started(disk, max_events=100)
    for i in range(5000):  # returns although the disk does not: the gate opens only below
        recorder.put([event(), flap(f"rail{i % 2}", 1, i)])
    assert disk.log == []
    assert recorder.waiting <= 100 + 2 + 512
    recorder.put_state("k", "must wait for the merged rows")
    disk.gate.set()
    assert recorder.stop(60)
    flaps = sum(count for kind, _, count in disk.log if kind == "flap")
    assert flaps == 5000, "merged, not lost"
    assert recorder.dropped > 0
    assert recorder.stored == len([x for x in disk.log if x[0] != "state"])
    assert not [x for x in disk.log if x[0] == "state"]


def test_rows_of_pages_leave_room_in_the_queue_for_states(disk):
    disk.gate.clear()
    recorder = started(disk, max_events=100)
    recorder.put([event()])
    until(lambda: not recorder._queue)  # What comes from now on waits in the queue.
    for number in range(500):
        recorder.put([event(EventKind.PLUGIN)])
        if number % 10 == 9:
            recorder.put([event(EventKind.LINK_STATE, link=f"rail{number // 10}")])
    assert recorder.dropped == 475, "of the page's rows alone"
    disk.gate.set()
    until(lambda: recorder.idle)
    recorder.put([event(EventKind.PLUGIN)] * 20)
    assert recorder.stop(60)
    kinds = [kind for kind, _, _ in disk.log]
    assert (kinds.count("link_state"), kinds.count("plugin")) == (50, 45)


def test_hopeless_batch_is_dropped_and_counted(disk):
    disk.failing, disk.retryable = True, False
    recorder = started(disk)
    recorder.put([event()])
    until(lambda: recorder.dropped == 1)
    disk.failing = False
    recorder.put([flap("a", 1, 1)])
    assert recorder.stop(60)
    assert disk.log == [("flap", "a", 1)]


def test_what_no_store_takes_costs_neither_the_thread_nor_its_neighbours(tmp_path):
    recorder = Recorder(lambda: Timeline(tmp_path / "t.db", host="h"))
    recorder.put([flap("a", 1, 1), event(count=2**64), event(reason="\ud800"), flap("a", 2, 3)])
    recorder.put_state("k", object())
    recorder.put_state("l", 1)
    recorder.put([event(count=2**64)])
    recorder.put([flap("b", 1, 1)])
    recorder.start(None)
    until(lambda: recorder.idle)
    assert (recorder.stored, recorder.dropped, recorder.waiting) == (4, 2, 0)
    assert recorder.stop(60)
    with Timeline(tmp_path / "t.db", read_only=True, host="h") as timeline:
        assert timeline.flap_totals() == {"a": 3, "b": 1}
        assert timeline.states() == {"l": 1}


def test_a_batch_in_parts_is_stored_once_when_the_disk_fails_in_between(disk):
    appended = disk.append

    def append(events):
        if len(events) > 1:
            raise OverflowError("too wide")
        if events[0].link == "c" and recorder.failures < 6:
            raise TimelineError("disk full", retryable=True)
        return appended(events)

    disk.append = append
    recorder = Recorder(lambda: disk)
    recorder.put([flap(link, 1, 1) for link in "abcd"])
    recorder.start(disk)
    until(lambda: recorder.idle)
    assert recorder.stop(60)
    assert [link for _, link, _ in disk.log] == ["a", "b", "c", "d"]


def test_another_retention_goes_to_the_store(disk):
    recorder = Recorder(lambda: disk)
    recorder._store = disk
    recorder._prune()
    assert disk.retention is None
    recorder.retention = Retention(days=1)
    recorder._prune()
    assert disk.retention == Retention(days=1)


def test_stop_gives_up_on_a_dead_disk(disk):
    disk.failing = True
    recorder = started(disk)
    recorder.put([event()])
    until(lambda: recorder.failures >= 1)
    assert not recorder.stop(2)


def test_store_is_opened_later_when_it_could_not_be_at_the_start(tmp_path):
    tries = []

    def opener():
        tries.append(1)
        if len(tries) < 3:
            raise TimelineError("not yet", retryable=True)
        return Timeline(tmp_path / "t.db", host="h")

    recorder = Recorder(opener)
    recorder.start(None)
    recorder.put([flap("a", 7, 7)])
    until(lambda: recorder.stored == 1)
    assert recorder.stop(60)
    with Timeline(tmp_path / "t.db", read_only=True, host="h") as timeline:
        assert timeline.flap_total("a") == 7


def test_idle_only_when_documents_are_stored_too(disk):
    recorder = started(disk)
    assert recorder.idle
    disk.gate.clear()
    recorder.put_state("daemon", {"x": 1})
    time.sleep(0.2)
    assert recorder.waiting == 0, "no event waits"
    assert not recorder.idle
    disk.gate.set()
    until(lambda: recorder.idle)
    assert disk.log == [("state", "daemon", {"x": 1})]
    disk.failing = True
    recorder.put([event()])
    until(lambda: recorder.failures)
    assert not recorder.idle
    disk.failing = False
    until(lambda: recorder.idle)
    assert recorder.stop()
