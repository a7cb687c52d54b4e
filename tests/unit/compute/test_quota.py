"""No host fills the broker that all share: what is beyond its share is cleared, and it is named."""

import asyncio
import configparser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.mosquitto import MEMORY_MIB, BrokerFiles, configuration
from compute.quota import AT_ONCE, MOST_NAMED, Clearing, HostQuota
from telemetry.broker.interface import NotConnectedError

ROOT = Path(__file__).resolve().parents[3]


def topic(host, name):
    return f"p/host/{host}/job/{name}"


def test_only_documents_of_jobs_are_counted():
    quota = HostQuota("p")
    assert quota.host_of("p/host/h1/job/gpt") == "h1"
    assert quota.host_of("p/host/h1/job/no name, and/more") == "h1"
    for other in ("p/host/h1/status", "p/stop", "q/host/h1/job/x", "p/hostile/h1/job/x"):
        assert quota.host_of(other) is None


def test_a_host_has_so_many_topics_and_bytes_and_another_host_its_own():
    quota = HostQuota("p", most_topics=2, most_bytes=100)
    assert quota.take("h9", topic("h9", "a"), 10)
    assert quota.take("h9", topic("h9", "b"), 10)
    assert not quota.take("h9", topic("h9", "c"), 10)
    assert quota.take("h9", topic("h9", "a"), 90), "a known one may change"
    assert not quota.take("h9", topic("h9", "a"), 91)
    assert quota.take("h1", topic("h1", "a"), 100)
    assert quota.take("h9", topic("h9", "b"), 0), "cleared"
    assert quota.take("h9", topic("h9", "c"), 100), "what was refused is none of what it has"
    quota.reset()
    assert quota.take("h9", topic("h9", "d"), 100)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 60))))
def test_what_a_host_has_is_never_beyond_its_share(messages):
    quota, held = HostQuota("p", most_topics=3, most_bytes=100), {}
    for name, size in messages:
        if quota.take("h", topic("h", name), size) and size:
            held[name] = size
        else:
            held.pop(name, None)  # by its owner, or by us
        assert len(held) <= 3
        assert sum(held.values()) <= 100


class Broker:
    def __init__(self):
        self.cleared, self.there, self.most = [], True, 0

    async def clear(self, names):
        if not self.there:
            raise NotConnectedError("no")
        self.cleared += names
        self.most = max(self.most, len(names))


@pytest.fixture
async def made():
    broker = Broker()
    clearing = Clearing("p", broker.clear, lambda: 0.0, HostQuota("p", most_topics=1))
    task = asyncio.create_task(clearing.run())
    yield clearing, broker
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def settled(clearing):
    for _ in range(1000):
        await asyncio.sleep(0)
        if not clearing._pending:
            return
    raise AssertionError("not cleared")


async def test_what_is_beyond_a_share_is_cleared_a_few_at_a_time_and_its_host_is_named(made):
    clearing, broker = made
    assert clearing.admits("p/host/h9/status", 1 << 20)
    assert clearing.admits(topic("h9", "first"), 10)
    flood = [topic("h9", f"{number} of them") for number in range(3 * AT_ONCE)]
    for one in [*flood, *flood]:
        assert not clearing.admits(one, 10)
    assert clearing.admits(topic("h1", "gpt"), 10)
    await settled(clearing)
    assert sorted(broker.cleared) == sorted(flood), "each once"
    assert broker.most <= AT_ONCE
    assert clearing.cleared == {"h9": len(flood)}


async def test_it_waits_for_the_broker_and_forgets_what_another_connection_will_bring(
    made, monkeypatch
):
    monkeypatch.setattr("compute.quota.RETRY_S", 0.0)
    clearing, broker = made
    broker.there = False
    clearing.admits(topic("h9", "first"), 10)
    clearing.admits(topic("h9", "second"), 10)
    for _ in range(100):
        await asyncio.sleep(0)
    broker.there = True
    await settled(clearing)
    assert broker.cleared == [topic("h9", "second")]
    clearing.admits(topic("h9", "third"), 10)
    clearing.reset()
    assert clearing.admits(topic("h9", "third"), 10)
    assert clearing.cleared == {"h9": 1}


async def test_names_in_metrics_are_bounded(made):
    clearing, _ = made
    for number in range(MOST_NAMED + 10):
        for name in ("a", "b"):
            clearing.admits(topic(f"h{number}", name), 10)
    await settled(clearing)
    assert len(clearing.cleared) == MOST_NAMED + 1
    assert clearing.cleared["other"] == 10


def test_the_broker_says_no_before_the_kernel_ends_it():
    files = BrokerFiles(Path("/b"))
    text = configuration(files, "::", 1, certificate=Path("/c"), key=Path("/k"))
    values = dict(line.split(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(values["memory_limit"]) == MEMORY_MIB << 20
    assert int(values["max_queued_bytes"]) < int(values["memory_limit"])
    assert int(values["message_size_limit"]) <= int(values["max_packet_size"])
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string((ROOT / "systemd/fabric-broker.service").read_text())
    most = unit["Service"]["MemoryMax"]
    assert most.endswith("G")
    assert int(most[:-1]) << 30 >= 2 * int(values["memory_limit"])
