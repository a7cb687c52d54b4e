"""fabric-compute as a process, hosts and a mosquitto on loopback: takeovers, kill -9, stop."""

import contextlib
import json

import pytest
from compute_world import JOB, Compute, HostLink, Mosquitto, RealWorld, settings

from telemetry.broker.interface import NotConnectedError
from telemetry.messages.envelope import MAX_BYTES, Message, Sender, encode
from telemetry.messages.topics import Kind, Topic

pytestmark = pytest.mark.timeout(240)
LAG_S = 5.0
"""A busy machine: the test itself, its scrape and its ticks take time, too."""


@pytest.fixture
def broker(tmp_path):
    broker = Mosquitto(tmp_path / "mosquitto")
    broker.start()
    yield broker
    broker.stop()


@contextlib.asynccontextmanager
async def site(tmp_path, broker, *names, nodes=3, spares=1, mode="migrate", extra=""):
    computes = [Compute(tmp_path, broker, name, extra) for name in names]
    world = RealWorld(settings(broker), nodes=nodes, spares=spares)
    try:
        for one in computes:
            (one.directory / "state").mkdir(mode=0o750)
            one.call("promote", mode)
            one.start()
        yield world, *computes
        for one in computes:
            one.stop()
        assert world.violations == []
    finally:
        for one in computes:
            if one.process is not None:
                one.kill()
                print(one.log.read_text()[-5000:])
        await world.close()


async def test_a_lost_host_is_replaced_though_a_fabric_compute_dies_meanwhile(tmp_path, broker):
    async with site(tmp_path, broker, "c0", "c1") as (world, c0, c1):
        await world.until(lambda: world.step > 3, "the job trains")
        assert world.progress[0] == 1
        topic = Topic(Kind.HOST_EVENT, "h2")
        heard = 'fabric_compute_messages_total{kind="host.event"}'
        for number in range(1, 1000):  # Until c0 has a session, by which the broker keeps events.
            event = Message(topic, Sender("b", "i"), number, {"kind": "before"})
            await world.links["h2"].client.publish(topic, encode(event))
            if c0.metrics().get(heard):
                break
            await world.go(0.1)
        await world.kill("h1")
        c0.kill()
        event = Message(topic, Sender("b", "i"), 1000, {"kind": "after"})
        for _ in range(2):
            await world.links["h2"].client.publish(topic, encode(event))
        await world.until(lambda: world.takeovers == 1, "the spare has taken over")
        await world.until(lambda: _recoveries(c1) == 1, "the recovery is counted")
        c0.start()
        await world.until(c0.is_ready, "back")
        await world.go(1.0)
        assert world.takeovers == 1, "a restart repeats nothing"
        [job] = json.loads(c1.call("jobs", "--json"))
        assert job["phase"] == "running"
        assert job["generation"] >= 2
        for one in (c0, c1):
            assert json.loads(one.call("ledger", "verify", "--json"))["ok"]
        lines = c0.call("ledger", "export").splitlines()
        events = [line for line in lines if "host_event" in line and "after" in line]
        assert len(events) == 1, "the broker kept it while c0 was dead, and it counts once"
        report = json.loads(c1.call("slo", "report", "--json"))
        assert report["verdict"] == "not enough data"
        assert report["shares"][0]["no_progress_lost"] == 1


def _recoveries(compute):
    return compute.metrics().get(
        'fabric_compute_recoveries_total{class="host",outcome="recovered"}'
    )


@pytest.mark.nightly
async def test_kill_9_resumes_and_a_stop_ends_all_action(tmp_path, broker):
    async with site(tmp_path, broker, "c0", nodes=3, spares=2) as (world, c0):
        await world.until(lambda: world.step > 3, "the job trains")
        # Stopped by the file: a host dies and nothing is done.
        c0.call("stop", "--reason", "switch work")
        await world.until(
            lambda: c0.metrics()["fabric_compute_stopped"] == 1, "stopped", 2.0 + LAG_S
        )
        await world.kill("h1")
        await world.go(3.0)
        assert world.takeovers == 0
        assert all(not order.fences for order in world.orders.values())
        # Killed while it is stopped: it does not forget that, and acts when it may again.
        c0.kill()
        c0.start()
        await world.until(c0.is_ready, "back")
        await world.go(1.0)
        assert c0.metrics()["fabric_compute_stopped"] == 1
        assert world.takeovers == 0
        c0.call("resume")
        await world.until(lambda: world.takeovers == 1, "the spare has taken over")
        fenced = {fence.id for order in world.orders.values() for fence in order.fences}
        assert len(fenced) == 1
        # Killed with a fence in force: the fence comes back from the store.
        c0.kill()
        world.orders.clear()
        c0.start()
        await world.until(c0.is_ready, "back")
        await world.kill("h0")
        await world.until(lambda: world.takeovers == 2, "the second spare has taken over")
        orders = world.orders["c0", "h2"]
        assert {fence.id for fence in orders.fences} > fenced
        assert json.loads(c0.call("ledger", "verify", "--json"))["ok"]
        head = tmp_path / "head.json"
        head.write_text(json.dumps(c0.head()))
        c0.call("ledger", "verify", "--head", str(head))


@pytest.mark.nightly
async def test_a_stop_message_stops_all_of_them_and_observe_mode_only_says(tmp_path, broker):
    async with site(tmp_path, broker, "c0", "c1", mode="observe") as (world, c0, c1):
        await world.until(lambda: world.step > 3, "the job trains")
        c0.call("stop", "--everywhere", "--reason", "all")
        for one in (c0, c1):
            await world.until(lambda one=one: one.metrics()["fabric_compute_stopped"] == 1,
                              "stopped", 2.0 + LAG_S)  # fmt: skip
        c0.call("resume", "--everywhere")
        for one in (c0, c1):
            await world.until(lambda one=one: one.metrics()["fabric_compute_stopped"] == 0,
                              "goes on")  # fmt: skip
        await world.kill("h1")
        await world.until(lambda: "would" in c0.call("jobs", "--json"), "it says what it would do")
        await world.go(1.0)
        assert world.takeovers == 0
        assert all(not order.fences for order in world.orders.values())


async def test_what_is_no_message_changes_nothing_and_is_counted(tmp_path, broker):
    async with site(tmp_path, broker, "c0") as (world, c0):
        await world.until(lambda: world.step > 3, "the job trains")
        world.links["h9"] = HostLink(world, "h9")
        forger = world.links["h9"].client
        await world.until(lambda: forger.connected, "connected")
        good = Message(Topic(Kind.HOST_STATUS, "h9"), Sender("b", "i"), 7, {"online": True})
        h1 = Topic(Kind.HOST_JOB, "h1", JOB)
        other = {"job": JOB, "incarnation": "z", "uid": 0}
        will = encode(
            Message(Topic(Kind.HOST_STATUS, "h1"), Sender("b", "x"), 1, {"online": False})
        )
        counted = 0
        for topic, payload in (
            (good.topic, b"\xff\x00 no JSON"),
            (good.topic, b"[]"),
            (good.topic, encode(good).replace(b'"1.0"', b'"2.0"')),
            (Topic(Kind.HOST_STATUS, "h1"), will.replace(b"/host/h1", b"/host/h9")),
            (good.topic, encode(good)[:-1] + b" " * 10_000_000 + b"}"),
            (h1, encode(Message(h1, Sender("b", "x"), 1, other))),
            (h1, b"{}"),
        ):
            # At 10 MB the broker closes, which the next message may be the first to notice.
            large = len(payload) > MAX_BYTES
            for _ in range(1 if large else 10):
                await world.until(lambda: forger.connected, "connected")
                with contextlib.suppress(NotConnectedError):
                    await forger.publish(topic, payload)
                    break
            counted += not large
            # Of one topic only the newest message waits: the next one would take its place.
            await world.until(lambda least=counted: _refused_in_all(c0) >= least, f"{counted}")
        await world.until(lambda: _refused(c0, "envelope") >= 5, "counted")
        await world.until(lambda: _refused(c0, "data") >= 1, "counted")
        step = world.step
        await world.until(lambda: world.step > step + 3, "the job trains on")
        assert world.progress[0] == 1
        assert world.takeovers == 0
        assert all(not order.fences for order in world.orders.values())


def _refused_in_all(compute):
    return sum(_refused(compute, reason) for reason in ("envelope", "data"))


def _refused(compute, reason):
    return compute.metrics()[f'fabric_compute_refused_messages_total{{reason="{reason}"}}']
