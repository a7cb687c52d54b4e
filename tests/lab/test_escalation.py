"""fabricd, mosquitto, a scripted fabric-compute and scripted fabric-runs, all real processes."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from broker_lab import Compute, Daemon, FabricRun, Mosquitto, until

from fabricd.steer.page import decode, fence_number
from telemetry.broker.client import BrokerClient
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.envelope import Message, Sender, encode
from telemetry.messages.topics import Kind, Topic, subscription

pytestmark = pytest.mark.timeout(400)

FENCE = {"id": "f1", "job": "train", "host": "h9", "incarnation": "x", "reason": "lost"}


@pytest.fixture
async def fabric(tmp_path):
    """A broker, a started fabricd and a connected fabric-compute; what a test adds ends with it."""
    async with contextlib.AsyncExitStack() as stack:
        broker = Mosquitto(tmp_path / "broker")
        stack.callback(broker.stop)
        broker.start()
        made = Fabric(tmp_path, broker, stack)
        made.compute = await made.add(Compute(broker))
        made.daemon = await made.host()
        yield made
    log = made.daemon.log.read_text()
    assert "Traceback" not in log, log[-5000:]


class Fabric:
    compute: Compute
    daemon: Daemon

    def __init__(self, directory, broker, stack):
        self.directory, self.broker, self.stack = directory, broker, stack

    async def add(self, compute):
        self.stack.push_async_callback(compute.stop)
        await compute.start()
        return compute

    async def host(self, name="h0", **options):
        daemon = Daemon(self.directory / name, self.broker, name, **options)
        self.stack.callback(daemon.stop)
        daemon.start()
        await until(daemon.answers, f"{name} answers")
        return daemon

    async def run(self, job="train", daemon=None, incarnation=None, register=True):
        run = FabricRun(daemon or self.daemon, job, incarnation)
        self.stack.push_async_callback(run.kill)
        return await run.start(register)


async def test_a_host_says_who_it_is_and_a_kill_is_told_by_its_will(fabric):
    seen = fabric.compute
    await until(lambda: seen.data(Kind.HOST_OBSERVATIONS), "observations")
    document = seen.data(Kind.HOST_DOCUMENT)
    assert document["name"] == "h0"
    assert document["links"][0] | {"state": ""} == {
        "netdev": "lo", "rail": 0, "addresses": ["127.0.0.1"], "leaf": "rail0", "state": "",
    }  # fmt: skip
    assert seen.data(Kind.HOST_OBSERVATIONS)["abstains"], "no prober: no evidence"
    fabric.daemon.kill()
    lost = await until(
        lambda: (seen.data(Kind.HOST_STATUS) or {}).get("online") is False, "the last will"
    )
    assert lost
    assert seen.data(Kind.HOST_STATUS)["intended"] is False


async def test_a_stop_is_an_intended_goodbye(fabric):
    await until(lambda: fabric.compute.data(Kind.HOST_STATUS), "birth")
    fabric.daemon.stop()
    await until(lambda: not fabric.compute.data(Kind.HOST_STATUS)["online"], "goodbye")
    said = fabric.compute.data(Kind.HOST_STATUS)
    assert said == {"online": False, "intended": True}, fabric.daemon.log.read_text()[-3000:]


async def test_a_goodbye_while_the_broker_sends_is_no_loss(fabric):
    names = [f"late{n}" for n in range(20)]
    said = {"online": False, "intended": True}

    def standing():
        return [fabric.compute.data(Kind.HOST_STATUS, name) for name in names]

    for name in names:
        client = BrokerClient(
            BrokerSettings("127.0.0.1", fabric.broker.port),
            client_id=name, factory=MessageFactory(Sender("b", name)),
            status=Topic(Kind.HOST_STATUS, name),
            subscriptions=[(subscription(Kind.HOST_DOCUMENT), 0)], receiver=(told := Told()),
        )  # fmt: skip
        for n in range(50):  # it gets each one back, and what the broker says of it
            client.set_state(Topic(Kind.HOST_DOCUMENT, f"{name}-{n}"), {"rest": "." * 5000})
        running = asyncio.create_task(client.run())
        await told.connected.wait()
        await client.goodbye()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await until(lambda: not any(one is None or one["online"] for one in standing()), "goodbyes")
    await asyncio.sleep(0.3)  # a last will would have come by now
    assert standing() == [said] * len(names)


class Told:
    """Of a connection alone."""

    def __init__(self):
        self.connected = asyncio.Event()

    def received(self, message, *, retained): ...
    def cleared(self, topic): ...
    def refused(self, topic, reason): ...

    def connection_changed(self, *, connected, reason):
        self.connected.set()


async def test_a_late_will_of_an_earlier_life_does_not_stand(fabric):
    await until(lambda: fabric.compute.data(Kind.HOST_STATUS), "birth")
    topic = Topic(Kind.HOST_STATUS, "h0")
    late = Message(topic, Sender("b", "earlier"), 9, {"online": False, "intended": False})
    await fabric.compute.client.publish(topic, encode(late))
    await until(lambda: not fabric.compute.data(Kind.HOST_STATUS)["online"], "it comes")
    await until(lambda: fabric.compute.data(Kind.HOST_STATUS)["online"], "fabricd contradicts")


async def test_documents_go_up_and_orders_down(fabric):
    run = await fabric.run()
    run.send("document", document={"step": 1})
    run.send("document", document={"step": 2})
    await until(
        lambda: (
            (fabric.compute.data(Kind.HOST_JOB, name="train") or {}).get("document") == {"step": 2}
        ),
        "the newest document",
    )
    fabric.compute.order(jobs={"train": {"incarnation": run.incarnation, "phase": "waiting"}})
    await run.get("order", compute="c0", order={"incarnation": run.incarnation, "phase": "waiting"})
    fabric.compute.order(jobs={"train": {"incarnation": "another", "phase": "running"}})
    fabric.compute.order(jobs={"train": {"incarnation": run.incarnation, "phase": "held"}})
    await run.get("order", order={"incarnation": run.incarnation, "phase": "held"})
    assert not [x for x in run.lines if x.get("order", {}).get("phase") == "running"]
    fabric.compute.client.set_state(Topic(Kind.STOP), {"stopped": True, "reason": "upgrade"})
    await until(lambda: fabric.daemon.answers()["broker"]["stopped"] == "upgrade", "stopped")
    order = {"incarnation": run.incarnation, "phase": "ended"}
    fabric.compute.order(jobs={"train": order}, fences=[FENCE | {"job": "other"}])
    await until(lambda: fabric.compute.client.states.settled, "the order is at the broker")
    run.send("document", document={"step": 3})
    await until(
        lambda: fabric.compute.data(Kind.HOST_JOB, name="train")["document"] == {"step": 3},
        "what hosts say goes on",
    )
    assert not [x for x in run.lines if x.get("order") == order]
    assert fabric.compute.fences() == []
    fabric.compute.client.set_state(Topic(Kind.STOP), None)
    await run.get("order", order=order)
    await until(lambda: fabric.compute.fences() == ["f1"], "what was ordered meanwhile holds")
    run.send("leave")
    await until(lambda: not fabric.compute.data(Kind.HOST_JOB, name="train"), "cleared")
    await run.end()


async def test_a_killed_fabric_run_is_gone(fabric):
    run = await fabric.run()
    run.send("document", document={"a": 1})
    await until(lambda: fabric.compute.data(Kind.HOST_JOB, name="train"), "its document")
    await run.kill()
    await until(lambda: fabric.compute.data(Kind.HOST_JOB, name="train")["gone"], "gone")
    assert fabric.compute.data(Kind.HOST_JOB, name="train")["incarnation"] == run.incarnation


async def test_a_fence_is_acknowledged_after_the_job_here_has_applied_it(fabric):
    run = await fabric.run()
    fabric.compute.order(fences=[FENCE])
    await run.get("fence", id="f1", host="h9", incarnation="x")
    other = FENCE | {"id": "f2", "job": "elsewhere"}
    fabric.compute.order(fences=[FENCE, other])
    await until(lambda: fabric.compute.fences() == ["f2"], "no job of that name is here")
    page = decode((fabric.daemon.run_dir / "steer").read_bytes())
    assert page.fences == (fence_number("x"),), "both fences are of one incarnation"
    run.send("fenced", id="f1")
    await until(lambda: set(fabric.compute.fences()) == {"f1", "f2"}, "both hold")


async def test_the_fenced_host_stops_its_own_fabric_run(fabric):
    run = await fabric.run()
    fence = FENCE | {"host": "h0", "incarnation": run.incarnation}
    fabric.compute.order(fences=[fence])
    assert (await run.get("stop"))["reason"] == "lost"
    assert fabric.compute.fences() == []
    await run.kill()
    await until(lambda: fabric.compute.fences() == ["f1"], "no process of it is left")


def jobs_seen(compute):
    return [(m.data["kind"], m.data["text"]) for m in compute.events if m.data["kind"] == "job"]


def waiting(daemon):
    """Events of a fabricd that wait for the broker, and for the disk; (0, -1): it is starting."""
    said = (daemon.answers() or {"broker": {}})["broker"]
    return said.get("outbox", 0), said.get("outbox_unstored", -1)


# In the broker's file a subscription is the client's id and the filter, one behind the other.
SESSION = b"compute-c1" + subscription(Kind.HOST_EVENT).encode()


async def test_events_outlive_a_broker_that_is_gone_and_a_killed_daemon(fabric):
    """Each event arrives, with one id, though broker and fabricd are killed with some to send."""
    # The broker keeps what comes for a persistent session while its owner is away.
    consumer = await fabric.add(Compute(fabric.broker, "c1", persistent=True))
    run = await fabric.run("first")
    await until(lambda: jobs_seen(consumer), "an event")
    await until(lambda: fabric.broker.has_stored(SESSION), "the broker's file has its session")
    fabric.broker.kill()
    await until(lambda: not fabric.daemon.answers()["broker"]["connected"], "it is noticed")
    for number in range(20):
        other = await fabric.run(f"job{number}")
        other.send("leave")
        await other.end()
    wanted = {("job", f"{what}: job{n}") for n in range(20) for what in ("registered", "left")}
    await until(lambda: wanted <= set(fabric.daemon.stored_events()), "the events are on disk")
    stored = len(fabric.daemon.stored_events())
    await until(lambda: waiting(fabric.daemon)[0] >= stored, "status says so")
    fabric.daemon.kill()
    fabric.daemon.start()
    await until(lambda: waiting(fabric.daemon)[0] >= stored, "fabricd again has what was on disk")
    fabric.broker.start()
    await until(lambda: wanted <= set(jobs_seen(consumer)), "all of them")
    await until(lambda: waiting(fabric.daemon) == (0, 0), "all acknowledged")
    by_id = {message.id: message.data for message in consumer.events}
    texts = [data["text"] for data in by_id.values() if data["text"].startswith("registered: job")]
    assert sorted(texts) == sorted(set(texts)), "the same event under two ids"
    assert len(texts) == 20
    await run.kill()


def refused(daemon):
    return daemon.answers()["broker"]["refused"]


def raw(topic, **changes):
    """A CloudEvent on ``topic``, with some attributes changed; None leaves one out."""
    event = json.loads(encode(Message(topic, Sender("b", "life"), 7, {"fences": [], "jobs": {}})))
    event |= changes
    return json.dumps({key: value for key, value in event.items() if value is not None}).encode()


ORDER = Topic(Kind.COMPUTE_ORDER, "c0", "h0")
BAD = {
    "no JSON": b"\xff\x00{",
    "no CloudEvent": b'{"a": 1}',
    "another version": raw(ORDER, specversion="2.0"),
    "another type": raw(ORDER, type="io.fabricd.compute.order.v2"),
    "another's source": raw(ORDER, source="/compute/c1"),
    "another's id": raw(ORDER, id="/compute/c0/life/8"),
    "nested": b"[" * 100_000,
}
TOO_LARGE = raw(ORDER, data={"fences": [], "jobs": {"j": {"x": "y" * 2_000_000}}})
BAD_DATA = {
    "unknown key": {"fences": [], "jobs": {}, "more": 1},
    "no fence": {"fences": [{"id": "f"}]},
    "a host's name that is none": {"fences": [FENCE | {"host": "../x"}]},
}


async def test_bad_messages_change_nothing_and_are_counted(fabric):
    run = await fabric.run()
    order = {"incarnation": run.incarnation, "phase": "waiting"}
    fabric.compute.order(jobs={"train": order})
    await run.get("order", order=order)
    for number, (what, payload) in enumerate(BAD.items(), start=1):
        await fabric.compute.client.publish(ORDER, payload)
        await until(lambda n=number: refused(fabric.daemon).get("envelope") == n, what)
    for number, (what, data) in enumerate(BAD_DATA.items(), start=1):
        await fabric.compute.client.publish(
            ORDER, encode(Message(ORDER, Sender("b", f"life{number}"), 1, data))
        )
        await until(lambda n=number: refused(fabric.daemon).get("data") == n, what)
    newest = Message(ORDER, Sender("b", "last"), 5, {"jobs": {"train": order | {"phase": "held"}}})
    await fabric.compute.client.publish(ORDER, encode(newest))
    await run.get("order", order=order | {"phase": "held"})
    ended = fabric.compute.factory.sender.incarnation
    for count, (sender, number) in enumerate((("last", 4), (ended, 99)), start=1):
        late = Message(ORDER, Sender("b", sender), number, {"jobs": {"train": order}})
        await fabric.compute.client.publish(ORDER, encode(late))
        await until(lambda n=count: refused(fabric.daemon).get("replayed") == n, "a replay")
    fence = FENCE | {"job": "other"}
    data = newest.data | {"fences": [fence]}
    await fabric.compute.client.publish(ORDER, encode(Message(ORDER, newest.sender, 6, data)))
    await until(lambda: fabric.compute.fences() == ["f1"], "a fence")
    data = newest.data | {"fences": [fence | {"host": "h0"}]}
    await fabric.compute.client.publish(ORDER, encode(Message(ORDER, newest.sender, 7, data)))
    await until(lambda: refused(fabric.daemon).get("order") == 1, "a fence's id again")
    phases = [line["order"]["phase"] for line in run.lines if line["kind"] == "order"]
    assert phases == ["waiting", "held"]
    assert fabric.compute.fences() == ["f1"]


async def test_mqtt_3_1_1(fabric):
    name = "h3"
    daemon = await fabric.host(name, broker_extra='protocol = "3.1.1"\n')
    run = await fabric.run("train", daemon)
    run.send("document", document={"a": 1})
    await until(lambda: fabric.compute.data(Kind.HOST_JOB, name, "train"), "its document")
    order = {"incarnation": run.incarnation, "phase": "waiting"}
    fabric.compute.order(name, jobs={"train": order})
    await run.get("order", order=order)
    # With MQTT 5 the broker does not send what is over the client's limit.
    await fabric.compute.client.publish(Topic(Kind.COMPUTE_ORDER, "c0", name), TOO_LARGE)
    await until(lambda: refused(daemon).get("envelope") == 1, "2 MB")
    fabric.compute.order(name, jobs={"train": order | {"phase": "held"}})
    await run.get("order", order=order | {"phase": "held"})


async def test_a_frozen_broker_delays_only_what_is_for_it(fabric):
    run = await fabric.run()
    run.send("document", document={"step": 0})
    await until(lambda: fabric.compute.data(Kind.HOST_JOB, name="train"), "its document")
    fabric.broker.signal(signal.SIGSTOP)
    for step in range(1, 50):
        run.send("document", document={"step": step})
    await until(
        lambda: not fabric.daemon.answers()["broker"]["connected"], "fabricd sees it by its pings"
    )
    other = await fabric.run("another")
    fabric.broker.signal(signal.SIGCONT)
    await until(
        lambda: fabric.compute.data(Kind.HOST_JOB, name="train")["document"] == {"step": 49},
        "the newest document",
    )
    assert other.process.returncode is None


async def test_one_fabric_run_per_job(fabric):
    first = await fabric.run()
    second = await fabric.run(register=False)
    second.send("register", version=1, job="train", incarnation="other")
    reason = (await second.get("refused"))["reason"]
    assert f"process {first.process.pid}" in reason
    await second.end()
    assert refused(fabric.daemon) == {"registration": 1}
    first.send("document", document={"still": "here"})
    await until(lambda: fabric.compute.data(Kind.HOST_JOB, name="train"), "the first goes on")
    await first.kill()
    await until(lambda: fabric.compute.data(Kind.HOST_JOB, name="train")["gone"], "it is gone")
    third = await fabric.run(incarnation="third")
    third.send("document", document={"is": "new"})
    await until(
        lambda: (
            fabric.compute.data(Kind.HOST_JOB, name="train")
            == {
                "job": "train",
                "incarnation": "third",
                "uid": 0,
                "gone": False,
                "document": {"is": "new"},
            }
        ),
        "another life follows",
    )


async def test_jobs_and_fences_outlive_fabricd(fabric):
    """A killed fabricd knows who ran, and what was fenced, also without a broker."""
    stays, dies = await fabric.run("stays"), await fabric.run("dies")
    for run in (stays, dies):
        run.send("document", document={"a": 1})
        await until(lambda r=run: fabric.compute.data(Kind.HOST_JOB, name=r.job), "published")
    fabric.compute.order(fences=[FENCE])
    await until(lambda: fabric.compute.fences() == ["f1"], "a fence holds")
    jobs = fabric.daemon.state_dir / "jobs.json"
    await until(lambda: jobs.exists() and "dies" in jobs.read_text(), "stored")
    fabric.daemon.kill()
    await dies.kill()
    await fabric.compute.stop()
    fabric.daemon.start()
    await until(fabric.daemon.answers, "fabricd is there again")
    await until(
        lambda: fabric.daemon.answers()["broker"]["fences_applied"] == ["f1"], "it still holds"
    )
    assert fabric.daemon.answers()["broker"]["jobs"] == {"stays": "away", "dies": "ended"}
    await fabric.compute.start()
    await until(lambda: (fabric.compute.data(Kind.HOST_JOB, name="dies") or {}).get("gone"), "gone")
    assert fabric.compute.data(Kind.HOST_JOB, name="stays")["document"] == {"a": 1}


HOSTILE = """
import os, socket, sys, time
path, lines = sys.argv[1], sys.argv[2] == "lines"
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(5)
    s.connect(path)
    return s
if lines:
    s = connect()
    s.sendall(b'{"kind":"register","version":1,"job":"evil","incarnation":"e"}\\n')
    s.settimeout(None)
    while True:
        s.sendall(b'{"kind":"document","document":{"n":%d}}\\n' % time.monotonic_ns() * 100)
while not lines:
    held = []
    for payload in (b"", b"x" * (1 << 20), b"{}\\n", b"\\xff\\n", b"[" * 200_000 + b"\\n") * 20:
        try:
            held.append(connect())
            held[-1].sendall(payload)
        except OSError:
            pass
"""


@pytest.fixture
def open_directory():
    """A directory that other users may look into."""
    directory = Path(tempfile.mkdtemp(dir="/run"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.nightly
async def test_hostile_users_of_the_job_socket_delay_nobody(open_directory, fabric):
    """Floods, huge lines, silence and too many connections of one user, who never reads."""
    fabric.directory = open_directory
    daemon = await fabric.host("open")
    path = str(daemon.run_dir / "jobs.sock")
    evil = [hostile(path, what) for what in ("lines", "connections")]
    for one in evil:
        fabric.stack.callback(one.wait)
        fabric.stack.callback(one.kill)
    await until(lambda: refused(daemon).get("connections", 0) > 10, "too many connections")
    await until(lambda: refused(daemon).get("line", 0) > 10, "lines that are none")
    run = await fabric.run("honest", daemon)
    run.send("document", document={"all": "well"})
    await until(lambda: fabric.compute.data(Kind.HOST_JOB, "open", "honest"), "an honest job")
    began, used = time.monotonic(), cpu_s(daemon.process.pid)
    await asyncio.sleep(2)
    spent = (cpu_s(daemon.process.pid) - used) / (time.monotonic() - began)
    print(f"fabricd takes {spent:.2f} of a core")
    assert all(one.poll() is None for one in evil), "they are still at it"
    assert spent < 0.9, "the flood takes a whole core"
    other = await fabric.run(register=False, daemon=daemon)
    other.send("register", version=1, job="evil", incarnation="mine")
    assert "belongs to uid 65534" in (await other.get("refused"))["reason"]


def hostile(path, what):
    return subprocess.Popen(
        ["/usr/bin/python3", "-c", HOSTILE, path, what],
        user=65534, group=65534, extra_groups=[], cwd="/",
    )  # fmt: skip


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
