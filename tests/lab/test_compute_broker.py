"""`fabric-compute broker`: a real mosquitto, TLS, and who may say and hear what."""

import asyncio
import contextlib
import dataclasses
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import aiomqtt
import pytest
from broker_lab import until

from compute import broker_files, identity
from compute.certificates import Authority
from compute.mosquitto import BrokerFiles
from compute.quota import MOST_TOPICS
from lab.services.mosquitto import Mosquitto, free_port
from telemetry.broker.once import publish_once
from telemetry.broker.settings import BrokerSettings
from telemetry.broker.tls import tls_context
from telemetry.messages.envelope import Message, Sender, encode
from telemetry.messages.topics import Kind, Topic

REPO = Path(__file__).resolve().parents[2]
LONG_S = 60.0
PREFIX = "fabric/v1"


class SiteBroker:
    """What an operator does: make it, issue certificates, run it."""

    def __init__(self, directory):
        self.directory, self.port = directory, free_port()
        self.process = None

    def command(self, *arguments):
        place = ("--dir", str(self.directory), "--authority", str(self.directory / "authority"))
        return [sys.executable, "-m", "compute", *arguments, *place]

    def issue(self, *names, role="host"):
        arguments = ("certificates", "issue", *names, "--role", role,
                     "--out", str(self.directory / "clients"))  # fmt: skip
        subprocess.run(self.command(*arguments), cwd=REPO, check=True, timeout=LONG_S)

    def revoke(self, name):
        command = self.command("certificates", "revoke", name)
        subprocess.run(command, cwd=REPO, check=True, timeout=LONG_S)

    def start(self):
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command("broker", "--listen", f"127.0.0.1:{self.port}", "--name", "localhost",
                             "--name", "127.0.0.1"),
                cwd=REPO, stdout=log, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + LONG_S
        while True:
            assert self.process.poll() is None, self.log()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)

    def log(self):
        return (self.directory / "log").read_text()

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(LONG_S)

    def settings(self, name):
        clients = self.directory / "clients"
        return BrokerSettings(
            "127.0.0.1", self.port, ca_file=self.directory / "ca.pem",
            cert_file=clients / f"{name}.pem", key_file=clients / f"{name}.key",
        )  # fmt: skip


@pytest.fixture(scope="module")
def site():
    # Not pytest's directory, which is closed to others: mosquitto leaves root behind.
    with tempfile.TemporaryDirectory(prefix="fabric-broker-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        site = SiteBroker(directory)
        site.issue("h1", "h2")
        site.issue("c0", role="compute")
        site.issue("ann", role="operator")
        site.start()
        yield site
        site.stop()


@contextlib.asynccontextmanager
async def client(site, name, identifier="", will=None):
    settings = site.settings(name)
    async with aiomqtt.Client(
        settings.host, settings.port, identifier=identifier or f"test.{name}.{time.monotonic_ns()}",
        tls_context=tls_context(settings), protocol=aiomqtt.ProtocolVersion.V5, will=will,
    ) as made:  # fmt: skip
        yield made


TOPICS = [
    "host/h1/status", "host/h1/document", "host/h1/observations", "host/h1/job/gpt",
    "host/h1/event", "host/h2/status", "host/h2/document", "host/h2/observations",
    "host/h2/job/gpt", "host/h2/event", "host/c0/status", "host/ann/status",
    "compute/c0/status", "compute/c0/order/h1", "compute/c0/order/h2", "compute/c0/job/gpt",
    "compute/c9/order/h1", "compute/h1/order/h2", "compute/c0/view/h1", "compute/c0/view/h2",
    "host/c0.events/event", "host/c0.probe/status", "compute/c0.events/status",
    "stop", "other", "host/h1/any", "host/h1/status/more", "host/h1/job/gpt/more",
]  # fmt: skip


def below(*starts):
    return {topic for topic in TOPICS if topic.startswith(starts)}


OTHERS = {"host/h1/any", "host/h1/status/more", "host/h1/job/gpt/more"}
"""No topics of the control fabric."""
JOBS = {"host/h1/job/gpt", "host/h2/job/gpt"}
"""A fabric-compute may clear them."""
MAY_WRITE = {
    "h1": below("host/h1/") - OTHERS, "c0": below("compute/c0/"), "ann": {"stop"},
    "c0.events": set(), "c0.probe": set(),
}  # fmt: skip
PUBLIC = {"host/h1/status", "host/h1/document", "host/h2/status", "host/h2/document",
          "compute/c0/status", "stop"}  # fmt: skip
MAY_READ = {
    "c0.events": PUBLIC | {"host/h1/event", "host/h2/event"},
    "c0.probe": PUBLIC,
    "h1": PUBLIC | {"compute/c0/order/h1", "compute/c9/order/h1", "compute/c0/view/h1"},
    "c0": (below("host/h1/", "host/h2/", "compute/c0/") | {"stop"}) - OTHERS,
    "ann": PUBLIC | {"compute/c0/job/gpt"},
}  # fmt: skip


async def publish(site, writer, topics, payload, *, retain=False):
    async with client(site, writer) as mouth:
        for topic in topics:
            # MQTT 5: the broker says "not authorized"; aiomqtt leaves that out.
            await mouth.publish(f"{PREFIX}/{topic}", payload, qos=1, retain=retain)


async def retained_for(site, reader):
    """Topic → payload of what a new client gets; a marker ends the retained messages."""
    mark, of = ("host/h1/status", "h1") if reader == "ann" else ("stop", "ann")
    found = {}
    async with client(site, reader) as ear:
        for pattern in ("#", f"{PREFIX}/#"):
            await ear.subscribe(pattern, qos=1)
        await publish(site, of, [mark], b"end")
        async with asyncio.timeout(LONG_S):
            async for message in ear.messages:
                if message.payload == b"end":
                    return found
                found[message.topic.value.removeprefix(f"{PREFIX}/")] = message.payload
    raise AssertionError("the connection ended")


async def test_a_host_writes_and_reads_only_what_is_its_own(site):
    """All write everything; then all that may read a topic say who wrote it last."""
    owners = {topic: name for name in MAY_WRITE for topic in MAY_WRITE[name]}
    owners |= dict.fromkeys(below("host/h2/"), "h2")
    for owner in ("h1", "h2", "c0", "ann"):
        mine = [topic for topic, name in owners.items() if name == owner and topic != "stop"]
        await publish(site, owner, mine, owner.encode(), retain=True)
    await publish(site, "ann", ["stop"], b"ann", retain=True)
    for writer in MAY_WRITE:
        may = JOBS if writer == "c0" else set()
        others = [t for t in TOPICS if owners.get(t) != writer and t not in may]
        await publish(site, writer, others, b"forged by " + writer.encode(), retain=True)
    for reader, may in MAY_READ.items():
        found = await retained_for(site, reader)
        written = {topic: owners[topic].encode() for topic in may if topic in owners}
        assert found == written, reader


async def test_a_host_reads_neither_documents_of_anothers_jobs_nor_its_orders(site):
    of_h2 = {"host/h2/job/gpt", "host/h2/observations"}
    of_c0 = {"compute/c0/order/h2", "compute/c0/view/h2", "compute/c0/job/gpt"}
    for owner, topics in (("h2", of_h2), ("c0", of_c0)):
        await publish(site, owner, sorted(topics), owner.encode(), retain=True)
    found = await retained_for(site, "h1")
    secret = of_h2 | of_c0
    assert secret & found.keys() == set()
    assert secret <= (await retained_for(site, "c0")).keys(), "they are there to be read"


async def test_without_a_certificate_of_the_site_nobody_gets_in(site, tmp_path):
    plain = BrokerSettings("127.0.0.1", site.port)
    stranger = dataclasses.replace(site.settings("h1"), cert_file=None, key_file=None)
    other = SiteBroker(tmp_path)
    other.issue("h1")
    foreign = dataclasses.replace(
        other.settings("h1"), port=site.port, ca_file=site.directory / "ca.pem"
    )
    for settings in (plain, stranger, foreign):
        with pytest.raises(OSError):  # noqa: PT011
            await publish_once(settings, "x", Topic(Kind.STOP), b"x", 5.0)


async def test_a_client_does_not_trust_another_broker(site, tmp_path):
    other = SiteBroker(tmp_path)
    other.issue("x")
    settings = dataclasses.replace(site.settings("h1"), ca_file=tmp_path / "ca.pem")
    with pytest.raises(OSError, match="certificate"):
        await publish_once(settings, "x", Topic(Kind.STOP), b"x", LONG_S)


async def test_only_an_operator_stops_and_the_command_says_when_it_is_refused(site):
    message = Message(Topic(Kind.STOP), Sender("b", "i"), 1, {"stopped": True})
    for name in ("h1", "c0"):
        with pytest.raises(OSError, match="Not authorized"):
            await publish_once(
                site.settings(name), f"x.{name}", message.topic, encode(message), LONG_S
            )
    await publish_once(site.settings("ann"), "x.ann", message.topic, encode(message), LONG_S)


async def test_a_revoked_host_that_stays_connected_says_and_hears_nothing(site):
    """Attack S7."""
    site.issue("h4")
    said, heard = [], []

    async def listen(ear, into):
        async for message in ear.messages:
            into.append((str(message.topic).removeprefix(f"{PREFIX}/"), message.payload))

    async with client(site, "h4") as stays, client(site, "c0") as compute:
        await stays.subscribe(f"{PREFIX}/host/+/status", qos=1)
        await compute.subscribe(f"{PREFIX}/host/+/status", qos=1)
        listening = [asyncio.create_task(listen(stays, heard)),
                     asyncio.create_task(listen(compute, said))]  # fmt: skip
        topic, number = "host/h4/status", 0

        async def say():
            nonlocal number
            number += 1
            with contextlib.suppress(aiomqtt.MqttError):
                await stays.publish(f"{PREFIX}/{topic}", f"h4 {number}".encode(), qos=1)
            await publish(site, "h1", ["host/h1/status"], f"h1 {number}".encode())
            mark = ("host/h1/status", f"h1 {number}".encode())
            await until(lambda: mark in said, "what h1 says is heard", LONG_S)
            return (topic, f"h4 {number}".encode()) in said

        assert await say(), "what it says comes before what h1 says after it"
        authority, files = Authority(site.directory / "authority"), BrokerFiles(site.directory)
        authority.revoke("h4")  # As by the command, where that cannot throw it out.
        broker_files.publish(authority, files)
        broker_files.reload(files)
        revoked = time.monotonic()
        while await say():
            assert time.monotonic() - revoked < LONG_S, site.log()
        print(f"mute {time.monotonic() - revoked:.2f} s after its certificate was revoked")
        before = len(heard)
        assert not await say()
        assert not await say()
        assert heard[before:] == []
        for one in listening:
            one.cancel()
    site.issue("h4")
    await publish(site, "h4", ["host/h4/status"], b"it has a new certificate")


async def messages_of(one):
    async with asyncio.timeout(LONG_S):
        return [message async for message in one.messages]


async def test_a_revoked_host_is_thrown_out_and_others_stay(site):
    """Its own last will may be said, if it is thrown out before the broker has read its list."""
    site.issue("h5", "h6")
    wills = []
    will = aiomqtt.Will(f"{PREFIX}/host/h5/status", b"will", qos=1)
    async with client(site, "h6") as other, client(site, "c0") as compute:
        await compute.subscribe(f"{PREFIX}/host/+/status", qos=1)
        held = client(site, "h5", will=will)
        stays = await held.__aenter__()
        revoking = asyncio.create_task(asyncio.to_thread(site.revoke, "h5"))
        with pytest.raises(aiomqtt.MqttError):
            await messages_of(stays)
        await revoking
        with contextlib.suppress(aiomqtt.MqttError):
            await held.__aexit__(None, None, None)
        with pytest.raises(aiomqtt.MqttError):
            await client(site, "h5").__aenter__()
        await other.publish(f"{PREFIX}/host/h6/status", b"here", qos=1)
        async for message in compute.messages:
            if message.retain:
                continue  # what other tests have left
            wills.append(message.payload)
            if message.payload == b"here":
                break
    assert wills[-1] == b"here"
    assert set(wills) <= {b"will", b"here"}


class SiteCompute:
    """A fabric-compute of the site, as an operator runs it."""

    def __init__(self, site, name, directory):
        settings, self.port = site.settings(name), free_port()
        config = directory / "compute.toml"
        config.write_text(
            f'name = "{name}"\nstate_dir = "{directory}/state"\n'
            f'stop_file = "{directory}/STOP"\n[broker]\nhost = "127.0.0.1"\nport = {site.port}\n'
            f'ca_file = "{settings.ca_file}"\ncert_file = "{settings.cert_file}"\n'
            f'key_file = "{settings.key_file}"\n[metrics]\nlisten = "127.0.0.1:{self.port}"\n'
        )
        (directory / "state").mkdir(mode=0o750)
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "compute", "run", "--config", str(config)],
                cwd=REPO, stdout=log, stderr=log,
            )  # fmt: skip

    async def metric(self, sample):
        def fetch():
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{self.port}/metrics"
                return urllib.request.urlopen(url, timeout=10).read().decode()
            return ""

        lines = (await asyncio.to_thread(fetch)).splitlines()
        found = [line for line in lines if line.startswith(f"{sample} ")]
        return float(found[0].rpartition(" ")[2]) if found else None

    async def until(self, sample, wanted):
        end = time.monotonic() + LONG_S
        while not wanted(value := await self.metric(sample)):
            assert time.monotonic() < end, f"{sample} is {value}\n{self.log.read_text()[-3000:]}"
            await asyncio.sleep(0.1)
        return value

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(LONG_S) == 0, self.log.read_text()[-3000:]


FLOOD = 4000
CLEARED = 'fabric_compute_cleared_documents_total{host="h9"}'


async def test_a_host_that_floods_the_broker_is_named_and_displaces_nobody(site, tmp_path):
    """Attack S5: retained documents of any name; while it lasts all others are heard as ever."""
    site.issue("h9")
    site.issue("c1", role="compute")
    compute = SiteCompute(site, "c0", tmp_path)
    heard = []
    try:
        await compute.until("fabric_compute_connected", lambda value: value == 1)

        async def listen(ear):
            async for message in ear.messages:
                heard.append(str(message.topic).removeprefix(f"{PREFIX}/"))  # noqa: PERF401

        async with client(site, "h9") as liar, client(site, "h1") as host:
            await host.subscribe(f"{PREFIX}/compute/+/order/h1", qos=1)
            listening = asyncio.create_task(listen(host))

            async def flood():
                for number in range(FLOOD):
                    # Every other one is no name of a job; a few are large.
                    name = f"n{number}" if number % 2 else f"{number} !"
                    payload = b"x" * (300_000 if number % 200 == 0 else 500)
                    await liar.publish(f"{PREFIX}/host/h9/job/{name}", payload, 0, retain=True)

            flooding = asyncio.create_task(flood())
            accepted = 'fabric_compute_messages_total{kind="host.status"}'
            before = await compute.metric(accepted) or 0
            online = Message(Topic(Kind.HOST_STATUS, "h1"), Sender("b", "i"), 1, {"online": True})
            await host.publish(f"{PREFIX}/host/h1/status", encode(online), 1, retain=True)
            await compute.until(accepted, lambda value: (value or 0) > before)
            await publish(site, "c1", ["compute/c1/order/h1"], b"order")
            await until(lambda: "compute/c1/order/h1" in heard, "an order", LONG_S)
            stop = Message(Topic(Kind.STOP), Sender("b", "i"), 1, {"stopped": True})
            await publish_once(site.settings("ann"), "x", stop.topic, encode(stop), LONG_S)
            await compute.until("fabric_compute_stopped", lambda value: value == 1)
            print(f"stopped while the flood was {'over' if flooding.done() else 'on'}")
            await flooding
            await liar.publish(f"{PREFIX}/host/h9/status", b"the last", 1)  # all before it is there
            listening.cancel()
        cleared = await compute.until(CLEARED, lambda value: (value or 0) >= FLOOD - MOST_TOPICS)
        end = time.monotonic() + LONG_S
        while True:
            left = [t for t in await retained_for(site, "c1") if t.startswith("host/h9/job/")]
            if len(left) <= MOST_TOPICS:
                break
            assert time.monotonic() < end, f"{len(left)} are left"
        print(f"{cleared:.0f} of {FLOOD} documents cleared, {len(left)} are left")
        assert compute.log.read_text().count("has filled its share") == 1
        assert "h9" in compute.log.read_text()
    finally:
        compute.stop()
        await publish(site, "ann", ["stop"], b"", retain=True)


NAMES = ("h1", "h2", "c0", "c0.events", "c0.probe", "ann")


def ids_of(name):
    """All client ids by which a program of ours has ever come to the broker."""
    return {name, f"fabricd-{name}", f"fabric-compute.{name}", f"fabric-compute.{name}.events"}


async def test_no_certificate_takes_the_connection_of_another(site):
    """Attack S2: each client id with a foreign certificate; nobody is off, no last will comes."""
    wills = []

    async def listen(ear):
        async for message in ear.messages:
            wills.append(message.payload)  # noqa: PERF401 - looked at meanwhile

    async with contextlib.AsyncExitStack() as stack:
        watch = await stack.enter_async_context(client(site, "ann"))
        await watch.subscribe(f"{PREFIX}/+/+/status", qos=1)
        listening = asyncio.create_task(listen(watch))
        there = {}
        for name in ("h1", "h2", "c0"):
            kind = "compute" if name == "c0" else "host"
            will = aiomqtt.Will(f"{PREFIX}/{kind}/{name}/status", f"will of {name}".encode(), 1)
            there[name] = await stack.enter_async_context(
                client(site, name, f"fabricd-{name}", will=will)
            )
        there["c0.events"] = await stack.enter_async_context(client(site, "c0.events"))
        site.issue("h9")
        for name in NAMES:
            for claimed in sorted(ids_of(name)):
                async with client(site, "h9", claimed):
                    pass
        for one in there.values():
            await one.publish(f"{PREFIX}/alive", b"", qos=1)  # nobody reads it: it is answered
        for name in ("h1", "h2"):
            await there[name].publish(f"{PREFIX}/host/{name}/status", b"last", qos=1)
        await until(lambda: wills.count(b"last") == 2, "what they say at the end", LONG_S)
        assert not [one for one in wills if one.startswith(b"will")]
        # A new connection of the same client ends its old one, as after a cut.
        async with client(site, "h1", "anything"):
            await until(lambda: b"will of h1" in wills, "the last will of the old one", LONG_S)
        listening.cancel()


async def test_a_fabric_compute_finds_out_whether_ids_are_bound(site, tmp_path):
    settings = site.settings("c0")
    probe, events = identity.beside(settings, "probe"), identity.beside(settings, "events")
    assert probe.cert_file.name == "c0.probe.pem"
    assert events.key_file.name == "c0.events.key"
    assert await identity.ids_are_bound(probe) is True
    lines = (site.directory / "mosquitto.conf").read_text().splitlines()
    tls = (
        "cafile",
        "crlfile",
        "certfile",
        "keyfile",
        "require",
        "use_identity",
        "allow",
        "acl_file",
    )
    free = Mosquitto(tmp_path / "free", options=[one for one in lines if one.startswith(tls)])
    await asyncio.to_thread(free.start)
    other = dataclasses.replace(probe, port=free.port)
    try:
        assert await identity.ids_are_bound(other) is False
    finally:
        await asyncio.to_thread(free.kill)
    assert await identity.ids_are_bound(other) is None, "nobody is there"


@pytest.mark.nightly
async def test_a_revoked_host_is_out_without_a_restart(site):
    site.issue("h3")
    await publish(site, "h3", ["host/h3/status"], b"here", retain=True)
    site.revoke("h3")
    end = time.monotonic() + LONG_S
    while True:  # The broker reads its files again on SIGHUP.
        try:
            await publish(site, "h3", ["host/h3/status"], b"still here")
        except aiomqtt.MqttError:
            break
        assert time.monotonic() < end, site.log()
        await asyncio.sleep(0.1)
    await publish(site, "h1", ["host/h1/status"], b"others stay")
