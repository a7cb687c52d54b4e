"""Root of one host, by its own certificate, while no fabric-compute is there to count its share.

A real mosquitto, as ``fabric-compute broker`` sets it up, and a real fabric-compute.
"""

import asyncio
import contextlib
import json
import tempfile
import time
import uuid
from pathlib import Path

import aiomqtt
import pytest
from compute_world import Compute
from test_compute_broker import SiteBroker, client

from compute.store import Store
from telemetry.messages.topics import Kind, Topic

pytestmark = [pytest.mark.lab, pytest.mark.filterwarnings("default::ResourceWarning")]
LONG_S, ENOUGH_S = 60.0, 15.0
LEAST_MIB = 16
MIB = 1 << 20


class SmallBroker(SiteBroker):
    """With as little memory as there may be, so that little fills it."""

    memory_mib = LEAST_MIB

    def command(self, *arguments):
        more = ("--memory", str(self.memory_mib)) if arguments[0] == "broker" else ()
        return [*super().command(*arguments), *more]


@contextlib.contextmanager
def site(memory_mib):
    with tempfile.TemporaryDirectory(prefix="fabric-broker-") as name:
        Path(name).chmod(0o755)
        made = SmallBroker(Path(name))
        made.memory_mib = memory_mib
        made.issue("h1", "h2")
        made.issue("c0", role="compute")
        made.start()
        try:
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def compute_of(broker, directory):
    one = Compute(directory, broker, "c0")
    where = broker.settings("c0")
    files = (
        ("ca_file", where.ca_file),
        ("cert_file", where.cert_file),
        ("key_file", where.key_file),
    )
    port = f"port = {broker.port}\n"
    lines = "".join(f'{name} = "{file}"\n' for name, file in files)
    one.config.write_text(one.config.read_text().replace(port, port + lines))
    (one.directory / "state").mkdir(mode=0o750)
    one.call("promote", "migrate")
    try:
        yield one
    finally:
        if one.process is not None:
            one.kill()


async def holds(one, condition, seconds):
    """Whether that comes true; the process lives all the while."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(condition):
                assert one.process.poll() is None, one.log.read_text()[-3000:]
                await asyncio.sleep(0.1)
            return True
    return False


async def fill(broker, topics, size):
    """Publish until the broker takes no more, or for a while. Returns how many it took."""
    taken, end = 0, time.monotonic() + ENOUGH_S
    with contextlib.suppress(aiomqtt.MqttError, TimeoutError):
        async with client(broker, "h1") as his:
            for topic in topics:
                if time.monotonic() > end:
                    break
                async with asyncio.timeout(2):
                    await his.publish(topic, b"x" * size, qos=1, retain="/job/" in topic)
                taken += 1
    return taken


@pytest.mark.nightly
async def test_what_one_host_has_left_at_the_broker_keeps_no_fabric_compute_away(tmp_path):
    with site(LEAST_MIB) as broker, compute_of(broker, tmp_path) as one:
        names = (f"fabric/v1/host/h1/job/j{number}" for number in range(10_000))
        for size in (MIB - 1000, 100_000, 10_000):
            await fill(broker, names, size)
        one.start()
        assert await holds(one, one.is_ready, ENOUGH_S), broker.log()[-2000:]


@pytest.mark.nightly
@pytest.mark.xfail(
    strict=True,
    reason="the queue of an absent fabric-compute is one for all hosts (QUEUED, QUEUED_BYTES): one "
    "host fills it, and the broker acknowledges what it drops. A host has to keep an event until a "
    "fabric-compute has said that it has it",
)
async def test_events_of_one_host_displace_no_other_hosts_while_nobody_reads(tmp_path):
    with site(1024) as broker, compute_of(broker, tmp_path) as one:
        one.start()
        assert await holds(one, one.is_ready, LONG_S)
        await asyncio.sleep(1)
        one.stop()
        await fill(broker, ["fabric/v1/host/h1/event"] * 140, MIB - 1000)
        mark = uuid.uuid4().hex
        async with client(broker, "h2") as hers:
            await hers.publish("fabric/v1/host/h2/event", event("h2", mark), qos=1)
        one.start()
        with contextlib.closing(Store(one.directory / "state/compute.db", read_only=True)) as store:
            assert await holds(one, lambda: bool(store.mentions(mark, 1)), ENOUGH_S)


def event(host, mark):
    life = uuid.uuid4().hex
    return json.dumps(
        {
            "specversion": "1.0", "id": f"/host/{host}/{life}/1", "source": f"/host/{host}",
            "type": Topic(Kind.HOST_EVENT, host).kind.message_type, "bootid": "b",
            "time": "2026-01-01T00:00:00+00:00", "incarnation": life, "sequence": 1,
            "data": {"kind": "x", "text": mark},
        }
    ).encode()  # fmt: skip
