"""The outbox's file and its sender: nothing is lost, nothing is sent under two ids."""

import asyncio
import contextlib
import random
import sqlite3
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricd.escalate.outbox import MOST_UNSTORED, Outbox, StoreThread
from fabricd.escalate.outbox_store import Depth, OutboxStore, Waiting
from telemetry.broker.interface import NotConnectedError
from telemetry.broker.limits import PacketTooLargeError
from telemetry.timeline_schema import TimelineError


def waiting(number, importance=1, size=10):
    return Waiting(f"id{number}", importance, b"%0*d" % (size, number))


def payloads(store):
    return [int(payload) for _, payload in store.oldest(0, 10**6)]


def test_messages_come_out_in_order_until_they_are_removed(tmp_path):
    store = OutboxStore(tmp_path / "o.db")
    store.add([waiting(1), waiting(2)])
    store.add([waiting(2), waiting(3)])
    assert payloads(store) == [1, 2, 3]
    assert store.depth == Depth(3, 30, 0)
    first = store.oldest(0, 1)[0][0]
    store.remove([first, first])
    store.close()
    again = OutboxStore(tmp_path / "o.db")
    assert payloads(again) == [2, 3]
    assert again.depth == Depth(2, 20, 0)
    again.close()


@settings(max_examples=30)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=6)))
def test_over_its_limits_the_oldest_of_the_least_important_goes(tmp_path_factory, batches):
    store = OutboxStore(tmp_path_factory.mktemp("o") / "o.db", most_messages=5, most_bytes=100)
    model, number, dropped = [], 0, 0
    for batch in batches:
        made = []
        for importance, size in batch:
            number += 1
            made.append(waiting(number, importance, max(size, len(str(number)))))
        store.add(made)
        model += made
        while len(model) > 5 or sum(len(one.payload) for one in model) > 100:
            model.remove(min(model, key=lambda one: (one.importance, int(one.payload))))
            dropped += 1
        assert payloads(store) == [int(one.payload) for one in model]
        assert store.depth == Depth(len(model), sum(len(x.payload) for x in model), dropped)
    store.close()


@pytest.mark.parametrize("content", [b"no database" * 1000, b"", "foreign"])
def test_an_unusable_file_is_set_aside_whole(tmp_path, content):
    path = tmp_path / "o.db"
    if content == "foreign":
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE x (y)")
        db.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    store = OutboxStore(path)
    store.add([waiting(1)])
    assert payloads(store) == [1]
    assert [aside.read_bytes() for aside in store.set_aside] == ([before] if content else [])
    store.close()


def test_a_directory_that_cannot_be_made_is_an_error_to_try_again(tmp_path):
    (tmp_path / "file").write_text("")
    store = OutboxStore(tmp_path / "file" / "o.db")
    with pytest.raises(TimelineError) as caught:
        store.add([waiting(1)])
    assert caught.value.retryable


@contextlib.contextmanager
def another_reader(path):
    reader = OutboxStore(path)
    yield reader
    reader.close()


class Broker:
    """Acknowledges when told to."""

    def __init__(self):
        self.got, self.lost, self.limit = [], 0, 1 << 20

    async def publish(self, payload):
        await asyncio.sleep(0)
        if len(payload) > self.limit:
            raise PacketTooLargeError(len(payload), self.limit, announced=True)
        if self.lost:
            self.lost -= 1
            raise NotConnectedError("gone")
        self.got.append(int(payload))


async def settled(outbox, depth=0):
    for _ in range(10_000):
        if (outbox.depth.messages, outbox.unstored) == (depth, 0):
            return
        await asyncio.sleep(0.001)
    raise AssertionError(outbox.depth)


async def end(task, store, thread):
    """The thread may be in the file: it alone closes it."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await thread.call(store.close)


async def test_each_message_is_sent_until_it_is_acknowledged(tmp_path):
    broker, store, thread = Broker(), OutboxStore(tmp_path / "o.db"), StoreThread()
    outbox = Outbox(store, thread, broker.publish)
    task = asyncio.create_task(outbox.run())
    for number in range(30):
        outbox.offer(waiting(number))
    await settled(outbox, 30)
    assert broker.got == [], "there is no connection"
    broker.lost = 5
    outbox.connection_changed(connected=True)
    await settled(outbox)
    assert sorted(set(broker.got)) == list(range(30))
    outbox.offer(waiting(30))
    await settled(outbox)
    assert broker.got[-1] == 30
    await end(task, store, thread)


async def test_what_waits_for_the_disk_is_bounded_and_counted(tmp_path):
    outbox = Outbox(OutboxStore(tmp_path / "o.db"), StoreThread(), Broker().publish)
    for number in range(MOST_UNSTORED + 5):
        outbox.offer(waiting(number, size=6))
    assert outbox.depth == Depth(0, 0, 5)
    assert outbox.unstored == MOST_UNSTORED


async def test_an_event_waits_once_it_is_on_disk_and_not_before(tmp_path, held):
    """What `depth` counts survives kill -9: another process reads it from the file."""
    path = tmp_path / "o.db"
    store, thread = OutboxStore(path), StoreThread()
    outbox = Outbox(store, thread, Broker().publish)
    blocked = asyncio.create_task(thread.call(held[0]))
    assert await asyncio.to_thread(held[1].wait, 60)
    outbox.offer(waiting(1))
    task = asyncio.create_task(outbox.run())
    await asyncio.sleep(0.01)
    assert (outbox.depth.messages, outbox.unstored) == (0, 1)
    assert not path.exists()
    held[2].set()
    await blocked
    await settled(outbox, 1)
    reader = OutboxStore(path)
    assert payloads(reader) == [1]
    reader.close()
    await end(task, store, thread)


async def test_who_promises_by_an_event_is_called_back_once_it_is_on_disk(tmp_path, held):
    """A fence is acknowledged then: a killed fabricd has lost no event of what others were told."""
    path = tmp_path / "o.db"
    store, thread = OutboxStore(path), StoreThread()
    outbox = Outbox(store, thread, Broker().publish)
    called = []

    def call(name):
        called.append(name)
        with another_reader(path) as reader:
            called.append(payloads(reader))

    outbox.when_stored(lambda: called.append("nothing waits"))
    assert called.pop() == "nothing waits"
    blocked = asyncio.create_task(thread.call(held[0]))
    assert await asyncio.to_thread(held[1].wait, 60)
    outbox.offer(waiting(1))
    outbox.when_stored(lambda: call("first"))
    outbox.offer(waiting(2))
    outbox.when_stored(lambda: call("second"))
    task = asyncio.create_task(outbox.run())
    await asyncio.sleep(0.01)
    assert called == []
    held[2].set()
    await blocked
    await settled(outbox, 2)
    assert called == ["first", [1, 2], "second", [1, 2]]
    await end(task, store, thread)


async def test_an_event_that_the_broker_never_takes_is_given_up_and_counted(tmp_path):
    broker, store, thread = Broker(), OutboxStore(tmp_path / "o.db"), StoreThread()
    broker.limit = 5
    outbox = Outbox(store, thread, broker.publish)
    for number in range(20):
        outbox.offer(waiting(number, size=6 if number % 4 == 0 else 2))
    outbox.connection_changed(connected=True)
    task = asyncio.create_task(outbox.run())
    await settled(outbox)
    assert broker.got == [number for number in range(20) if number % 4]
    assert outbox.depth == Depth(0, 0, 5)
    await end(task, store, thread)
    with another_reader(tmp_path / "o.db") as again:
        assert payloads(again) == []
        assert again.depth.dropped == 5, "kept over a restart"


async def test_before_the_end_what_waits_is_stored(tmp_path):
    store = OutboxStore(tmp_path / "o.db")
    outbox = Outbox(store, StoreThread(), Broker().publish)
    outbox.offer(waiting(1))
    await outbox.flush()
    assert payloads(store) == [1]
    store.close()


HOUR = 7_200
"""Events of an hour, two a second: a host whose links flap all the time."""


class Leaving:
    """A broker whose connection ends again and again. What is under way then may have come, too."""

    def __init__(self, seed):
        self.random, self.got, self.left = random.Random(seed), [], 0

    async def publish(self, payload):
        await asyncio.sleep(0)
        if not self.left:
            raise NotConnectedError("gone")
        self.left -= 1
        self.got.append(int(payload))
        if not self.left and self.random.random() < 0.5:
            raise NotConnectedError("it has it, and the acknowledgement is lost")


async def on_disk(store, messages):
    for _ in range(100_000):
        if store.depth.messages == messages:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(store.depth)


async def test_what_an_hour_without_a_broker_makes_arrives_in_order_and_once_by_id(tmp_path):
    broker, lives = Leaving(1), 4
    for life in range(lives):  # kill -9 between them: nobody flushes.
        store, thread = OutboxStore(tmp_path / "o.db"), StoreThread()
        outbox = Outbox(store, thread, broker.publish)
        task = asyncio.create_task(outbox.run())
        for number in range(life * HOUR // lives, (life + 1) * HOUR // lives):
            outbox.offer(waiting(number, size=300))
        await on_disk(store, (life + 1) * HOUR // lives)
        if life < lives - 1:
            await end(task, store, thread)
    assert store.depth == Depth(HOUR, 300 * HOUR, 0)
    assert broker.got == []
    outbox.connection_changed(connected=True)
    while outbox.depth.messages:
        broker.left = broker.left or broker.random.randrange(1, 2000)
        await asyncio.sleep(0.001)
    first_seen = list(dict.fromkeys(broker.got))
    assert first_seen == list(range(HOUR)), "each of them, in order"
    assert len(broker.got) < HOUR + 8 * 100, "few come twice"
    await end(task, store, thread)


@pytest.fixture
def held():
    """Work that stays in the thread until the event is set."""
    began, may_end = threading.Event(), threading.Event()

    def work():
        began.set()
        assert may_end.wait(60)

    yield work, began, may_end
    may_end.set()


async def cancelled_within(thread, held):
    """A call that was cancelled while its work is in the thread."""
    work, began, _ = held
    first = asyncio.create_task(thread.call(work))
    assert await asyncio.to_thread(began.wait, 60)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_call_after_a_cancelled_one_waits_for_the_thread_and_is_done(held):
    thread = StoreThread()
    await cancelled_within(thread, held)
    second = asyncio.create_task(thread.call(lambda: 7))
    await asyncio.sleep(0)
    assert not second.done()
    held[2].set()
    assert await asyncio.wait_for(second, 60) == 7


async def test_an_outbox_made_anew_while_the_disk_stalls_sends_on(tmp_path, held):
    """A new configuration: the next outbox has the same thread, in which a store still is."""
    thread, broker = StoreThread(), Broker()
    await cancelled_within(thread, held)
    store = OutboxStore(tmp_path / "o.db")
    outbox = Outbox(store, thread, broker.publish)
    outbox.connection_changed(connected=True)
    outbox.offer(waiting(1))
    task = asyncio.create_task(outbox.run())
    await asyncio.sleep(0.01)
    held[2].set()
    await settled(outbox)
    assert broker.got == [1]
    await end(task, store, thread)


async def test_late_work_that_fails_says_so_to_who_waits(held):
    thread = StoreThread()
    thread._blocking.limit_s = 0.01

    def fails():
        held[0]()
        raise ValueError("of work")

    call = asyncio.create_task(thread.call(fails))
    await asyncio.sleep(0.1)
    held[2].set()
    with pytest.raises(ValueError, match="of work"):
        await asyncio.wait_for(call, 60)
