"""The connection of a host to the control fabric: what it tells others, and when."""

import asyncio
import contextlib
import threading

import pytest
from whole_host import LINKS, WholeHost

from fabricd.escalate.outbox import StoreThread
from fabricd.escalate.service import Escalation
from telemetry.broker.limits import PacketTooLargeError
from telemetry.messages.documents import ComputeOrder, Fence
from telemetry.messages.topics import Kind, Topic

BROKER = '[broker]\nhost = "127.0.0.1"\n'


@pytest.fixture
async def escalation(tmp_path):
    """One whose broker never answers, for nobody runs its client."""
    whole = WholeHost(tmp_path, BROKER, f'state_dir = "{tmp_path}/state"\n{LINKS}')
    (tmp_path / "state").mkdir()
    try:
        made = Escalation(whole.host, StoreThread())
        made.told = whole.told
        whole.host.events.subscribe(made._followed)
        yield made
    finally:
        whole.close()


async def until(ready, what):
    for _ in range(10_000):
        if ready():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(what)


def told(escalation, kind):
    return [row for row in escalation.told if row["kind"] == kind]


async def test_a_fence_is_told_as_applied_once_its_event_is_on_disk(escalation):
    """Else a killed fabricd would have promised what its events do not show."""
    began, may_end = threading.Event(), threading.Event()

    def stalled():
        began.set()
        assert may_end.wait(60)

    disk = asyncio.create_task(escalation.outbox._thread.call(stalled))
    assert await asyncio.to_thread(began.wait, 60)
    tasks = [asyncio.create_task(one.run()) for one in (escalation.jobs._keeper, escalation.outbox)]
    fence = Fence(id="f1", job="train", host="h9", incarnation="x", reason="lost")
    escalation.jobs.order("c0", ComputeOrder(fences=[fence]))
    await until(lambda: told(escalation, "fence"), "all appliers have applied it")
    escalation._look()
    observations = Topic(Kind.HOST_OBSERVATIONS, "h")
    assert escalation.client.states.value(observations)["fences"] == []
    assert escalation.document()["fences_applied"] == []
    may_end.set()
    await disk
    await until(lambda: escalation.document()["fences_applied"] == ["f1"], "the event is on disk")
    assert escalation.outbox.depth.messages == 1
    assert escalation.client.states.value(observations)["fences"] == ["f1"]
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)


async def test_a_state_that_the_broker_does_not_take_is_named_with_both_sizes(escalation):
    job = Topic(Kind.HOST_JOB, "h", "gpt")
    error = PacketTooLargeError(30_275, 8192, announced=True)
    escalation.client.oversize[job] = error
    escalation._not_taken(job, str(error))
    document, shot = escalation.document(), escalation.snapshot()
    assert document["not_sent"] == {"fabric/v1/host/h/job/gpt": str(error)}
    assert "30275 B" in str(error)
    assert "8192 B" in str(error)
    assert (shot.packet_limit_bytes, shot.oversize_bytes) == (8192, {"host.job": 30_275})
    assert shot.refused["broker"] == 1
    (row,) = told(escalation, "broker")
    assert row["reason"] == f"fabric/v1/host/h/job/gpt not sent: {error}"
