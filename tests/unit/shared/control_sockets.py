"""A control socket in a thread, and turns of a loop that is busy, for whatever tests them."""

import asyncio
import contextlib
import threading

from fabricd.control.server import ControlServer


@contextlib.contextmanager
def served(path, handlers, large=frozenset()):
    """Serve ``handlers`` on ``path`` until left; yields the path. ``large``: of `ControlServer`."""
    ready, stop = threading.Event(), threading.Event()

    async def serve():
        server = ControlServer(path, large=large)
        await server.start(handlers)
        ready.set()
        await asyncio.to_thread(stop.wait)
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(60)
    try:
        yield path
    finally:
        stop.set()
        thread.join(60)


class Turns:
    """Counts the turns that a loop gives to others; ``async with Turns() as turns``."""

    def __init__(self):
        self.count = 0

    async def _run(self):
        while True:
            self.count += 1
            await asyncio.sleep(0)

    async def __aenter__(self):
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
