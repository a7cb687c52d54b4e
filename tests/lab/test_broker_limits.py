"""Brokers with limits: what fits arrives over one connection, and what does not is named."""

import asyncio
import contextlib

import pytest
from broker_lab import SLOW_S, Compute, Daemon, FabricRun, Mosquitto, until

from telemetry.broker.client import BrokerClient
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.envelope import Sender
from telemetry.messages.topics import Kind, Topic

pytestmark = pytest.mark.timeout(300)
LIMIT, DOCUMENT = 8192, 30_000
FENCE = {"id": "f1", "job": "elsewhere", "host": "h9", "incarnation": "x", "reason": "lost"}
ANNOUNCED, SILENT = "5", "3.1.1"


class Host:
    """One end of the control fabric, without a daemon."""

    def __init__(self, broker, protocol="5", **options):
        self.reasons, self.not_taken = [], []
        self.client = BrokerClient(
            BrokerSettings("127.0.0.1", broker.port, protocol=protocol), client_id="fabricd-h0",
            factory=MessageFactory(Sender("boot", "life")), status=Topic(Kind.HOST_STATUS, "h0"),
            subscriptions=[], receiver=self,
            not_taken=lambda topic, why: self.not_taken.append((topic, why)), **options,
        )  # fmt: skip

    def connection_changed(self, *, connected, reason):
        if not connected:
            self.reasons.append(reason)

    def received(self, message, *, retained):
        pass

    def refused(self, topic, reason):
        raise AssertionError(f"{topic}: {reason}")

    @contextlib.asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.client.run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def brokers(tmp_path):
    """Makes a broker with some options."""
    with contextlib.ExitStack() as stack:

        def make(*options):
            broker = Mosquitto(tmp_path / "broker", options=("allow_anonymous true", *options))
            stack.callback(broker.stop)
            broker.start()
            return broker

        yield make


@pytest.mark.parametrize(("protocol", "most"), [(ANNOUNCED, 1), (SILENT, 5)])
async def test_one_large_job_document_keeps_nothing_else_from_the_broker(
    tmp_path, brokers, protocol, most
):
    """Observations and fences arrive, also where the broker does not announce its limit."""
    async with contextlib.AsyncExitStack() as stack:
        broker = brokers(f"max_packet_size {LIMIT}")
        daemon = Daemon(tmp_path / "h0", broker, broker_extra=f'protocol = "{protocol}"\n')
        stack.callback(daemon.stop)
        daemon.start()
        await until(daemon.answers, "fabricd answers")
        run = FabricRun(daemon, "gpt")
        stack.push_async_callback(run.kill)
        await run.start()
        run.send("document", document={"x": "y" * DOCUMENT})
        await until(lambda: daemon.answers()["broker"]["not_sent"], "the document is refused here")
        compute = Compute(broker)
        stack.push_async_callback(compute.stop)
        await compute.start()
        compute.order(fences=[FENCE])
        await until(lambda: compute.fences() == ["f1"], "the fence and its acknowledgement")
        run.send("document", document={"step": 1})
        await until(
            lambda: (compute.data(Kind.HOST_JOB, name="gpt") or {}).get("document") == {"step": 1},
            "a document that fits",
        )
        run.send("document", document={"x": "z" * DOCUMENT})
        said = await until(
            lambda: (found := daemon.answers()["broker"])["not_sent"] and found, "refused again"
        )
        (topic, why) = next(iter(said["not_sent"].items()))
        assert topic == "fabric/v1/host/h0/job/gpt"
        assert str(LIMIT) in why or protocol == SILENT, why
        assert any(30_000 < int(word) < 31_000 for word in why.split() if word.isdigit()), why
        assert said["connections"] <= most, daemon.log.read_text()[-3000:]
        assert said["connected"]
        rows = [row for row in daemon.ask("timeline") if row["kind"] == "broker"]
        assert [row for row in rows if f"{topic} not sent: 30" in row["reason"]], rows
        log = daemon.log.read_text()
        assert "the broker does not take it" in log
        assert "Traceback" not in log, log[-3000:]


@pytest.mark.parametrize(
    ("option", "word"),
    [("retain_available false", "Retain Available 0"), ("max_qos 0", "Maximum QoS 0")],
)
async def test_a_broker_that_cannot_carry_it_is_named(brokers, option, word):
    host = Host(brokers(option))
    async with host.running():
        await until(lambda: host.reasons, "a reason")
        assert word in host.reasons[0]
        assert host.client.connections == 0


async def test_what_a_broker_refuses_by_a_reason_code_is_named_once(tmp_path, brokers):
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite fabric/v1/host/h0/status\n")
    host = Host(brokers(f"acl_file {rules}"))
    topic = Topic(Kind.HOST_OBSERVATIONS, "h0")
    async with host.running():
        for number in range(3):
            host.client.set_state(topic, {"number": number})
            await until(lambda n=number: host.client.rejected == n + 1, "refused", SLOW_S)
        assert host.not_taken == [(topic, "the broker refuses it: Not authorized")]
