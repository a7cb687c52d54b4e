"""The metrics endpoint's snapshot: made by the daemon's loop when asked, or the last one."""

import asyncio
import threading

import pytest

from fabricd.views.snapshot_cache import FRESH_S, SnapshotCache
from telemetry.snapshot import HostSnapshot


class World:
    """Counts what is made, and by which thread."""

    def __init__(self):
        self.now, self.makers = 100.0, []
        self.fails = False

    def make(self):
        if self.fails:
            raise ValueError("a metric that cannot be made")
        self.makers.append(threading.get_ident())
        return HostSnapshot(f"h{len(self.makers)}")

    def cache(self):
        return SnapshotCache(self.make, asyncio.get_running_loop(), lambda: self.now)


def elsewhere(cache):
    """As the endpoint asks: on a loop of another thread."""
    return asyncio.to_thread(lambda: asyncio.run(cache()))


def test_made_by_the_loop_when_asked_and_not_more_often_than_is_of_use():
    async def run():
        world = World()
        cache = world.cache()
        assert (await elsewhere(cache)).host == "h1"
        world.now += FRESH_S
        several = await asyncio.gather(*(elsewhere(cache) for _ in range(4)))
        assert {snapshot.host for snapshot in several} == {"h2"}
        assert set(world.makers) == {threading.get_ident()}

    asyncio.run(run())


def test_of_a_loop_that_does_not_answer_the_last_one_is_shown(monkeypatch):
    monkeypatch.setattr("fabricd.views.snapshot_cache.PATIENCE_S", 0.05)

    async def run():
        world = World()
        cache = world.cache()
        world.now += FRESH_S
        found = []
        asking = threading.Thread(target=lambda: found.append(asyncio.run(cache()).host))
        asking.start()
        asking.join(10)  # in the loop's own thread: it cannot answer
        assert found == ["h1"]
        return cache, world

    cache, world = asyncio.run(run())
    world.now += FRESH_S
    assert asyncio.run(cache()) is asyncio.run(cache())  # the loop is closed


def test_a_snapshot_that_cannot_be_made_is_the_askers_trouble_not_the_daemons():
    async def run():
        unhandled = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: unhandled.append(context)
        )
        world = World()
        cache = world.cache()
        world.now += FRESH_S
        world.fails = True
        with pytest.raises(ValueError, match="cannot be made"):
            await elsewhere(cache)
        world.fails = False
        assert (await elsewhere(cache)).host == "h2"
        assert unhandled == []

    asyncio.run(run())
