"""CPU time of a task: its own steps and its work in threads, and nobody else's."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fabricd.process.cpu_meter import Metered, charged

WORK_S = 0.05


def spin():
    end = time.thread_time() + WORK_S
    while time.thread_time() < end:
        pass
    return "done"


async def metered(work):
    """What is charged for ``work``, and what it raised."""
    charges = []

    async def task():
        await Metered(work, charges.append)

    error = None
    try:
        await asyncio.create_task(task())
    except Exception as raised:
        error = raised
    await asyncio.sleep(0)  # What a thread has charged is taken by the loop.
    return sum(charges), error


async def test_own_steps_count_and_those_of_others_between_them_do_not():
    turn = asyncio.Event()

    async def work():
        spin()
        turn.set()
        await asyncio.sleep(0)
        spin()

    async def other():
        await turn.wait()
        for _ in range(20):
            spin()

    between = asyncio.create_task(other())
    spent, _ = await metered(work())
    await between
    assert 2 * WORK_S <= spent < 10 * WORK_S


async def test_work_in_a_thread_counts():
    async def work():
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(executor, charged(spin)) == "done"

    with ThreadPoolExecutor(1) as executor:
        spent, _ = await metered(work())
        assert WORK_S <= spent < 10 * WORK_S
        assert charged(spin) is spin, "nobody counts here"


async def test_what_it_raises_and_that_it_is_cancelled_pass_through():
    async def fails():
        await asyncio.sleep(0)
        raise KeyError("x")

    assert isinstance((await metered(fails()))[1], KeyError)
    seen = []

    async def waits():
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("late")
        await asyncio.Event().wait()

    async def task():
        await Metered(waits(), seen.append)

    running = asyncio.create_task(task())
    async with asyncio.timeout(60):
        while "late" not in seen:  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
