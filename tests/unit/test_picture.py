"""The metrics endpoint's picture: made by the loop when a thread asks, or the last one."""

import asyncio
import threading

from fabricd.picture import FRESH_S, Picture
from telemetry.snapshot import HostSnapshot


class World:
    """Counts what is made, and by which thread."""

    def __init__(self):
        self.now, self.makers = 100.0, []

    def make(self):
        self.makers.append(threading.get_ident())
        return HostSnapshot(f"h{len(self.makers)}")

    def picture(self):
        return Picture(self.make, asyncio.get_running_loop(), lambda: self.now)


def test_made_by_the_loop_when_asked_and_not_more_often_than_is_of_use():
    async def run():
        world = World()
        picture = world.picture()
        assert (await asyncio.to_thread(picture)).host == "h1"
        world.now += FRESH_S
        several = await asyncio.gather(*(asyncio.to_thread(picture) for _ in range(4)))
        assert {snapshot.host for snapshot in several} == {"h2"}
        assert set(world.makers) == {threading.get_ident()}

    asyncio.run(run())


def test_of_a_loop_that_does_not_answer_the_last_one_is_shown(monkeypatch):
    monkeypatch.setattr("fabricd.picture.PATIENCE_S", 0.05)

    async def run():
        world = World()
        picture = world.picture()
        world.now += FRESH_S
        found = []
        asking = threading.Thread(target=lambda: found.append(picture().host))
        asking.start()
        asking.join(10)  # in the loop's own thread: it cannot answer
        assert found == ["h1"]
        return picture, world

    picture, world = asyncio.run(run())
    world.now += FRESH_S
    assert picture() is picture()  # the loop is closed
