"""Hosts of `job_world` in real time at a real broker, and real fabric-compute processes."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from lab.services.mosquitto import Mosquitto, free_port
from telemetry.broker.client import BrokerClient
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.documents import ComputeOrder, HostJob, parse
from telemetry.messages.envelope import Sender
from telemetry.messages.topics import Kind, Topic, subscription

REPO = Path(__file__).resolve().parents[2]
sys.path.append(str(REPO / "tests" / "unit" / "compute"))

from job_world import JOB, TICK_S, World, to_data  # noqa: E402

LONG_S = 60.0


class HostLink:
    """fabricd's connection of one host: publishes its documents, receives its orders."""

    def __init__(self, world, host):
        self.world, self.host = world, host
        self.client = BrokerClient(
            world.settings,
            client_id=f"fabricd.{host}",
            factory=MessageFactory(Sender("boot", f"{host}-{time.monotonic_ns()}")),
            status=Topic(Kind.HOST_STATUS, host),
            subscriptions=[(subscription(Kind.COMPUTE_ORDER, name=host), 1)],
            receiver=self,
        )
        self.task = asyncio.create_task(self.client.run())

    def received(self, message, *, retained):
        order = parse(ComputeOrder, message.data)
        self.world.order_times[message.topic.owner, self.host] = time.monotonic()
        self.world.orders[message.topic.owner, self.host] = order

    def cleared(self, topic):
        self.world.orders.pop((topic.owner, self.host), None)

    def refused(self, topic, reason):
        self.world.violations.append(f"{self.host} refuses {topic}: {reason}")

    def connection_changed(self, *, connected, reason):
        pass

    def publish(self, document, observations):
        job = HostJob(job=JOB, incarnation=document.incarnation, uid=0, document=to_data(document))
        topics = {
            Topic(Kind.HOST_JOB, self.host, JOB): job,
            Topic(Kind.HOST_OBSERVATIONS, self.host): observations,
        }
        for topic, data in topics.items():
            self.client.set_state(topic, data.model_dump(mode="json"))

    async def die(self):
        """The process is gone without a goodbye: the broker sends its last will."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class RealWorld(World):
    """`World` whose messages are real. Its own time goes by in ticks of at least 50 ms."""

    def __init__(self, settings, **arguments):
        super().__init__(1, computes=0, **arguments)
        self.settings = settings
        self.order_times = {}
        self.deciders = dict.fromkeys(("c0", "c1"))
        self.links = {name: HostLink(self, name) for name in self.hosts}

    def _publish(self, host, to):
        self.links[host.name].publish(host.document(self.now), host.observations(self.now))

    def _deliver(self):
        pass

    def _decide(self, name, decider):
        pass

    def _send_will(self, host):
        pass  # The broker does.

    async def until(self, condition, what, seconds=LONG_S):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {what}; {self.progress}"
            await self.go()

    async def go(self, seconds=0.0):
        end = time.monotonic() + seconds
        while True:
            self.tick()
            await asyncio.sleep(TICK_S)
            if time.monotonic() >= end:
                return

    async def kill(self, name):
        self.hosts[name].up = False
        await self.links[name].die()

    async def close(self):
        for link in self.links.values():
            await link.die()


class Compute:
    """A real fabric-compute process with a directory of its own."""

    def __init__(self, directory: Path, broker: Mosquitto, name: str, extra: str = ""):
        self.directory, self.name = directory / name, name
        self.directory.mkdir()
        self.port = free_port()
        self.config = self.directory / "compute.toml"
        self.log = self.directory / "log"
        self.stop_file = self.directory / "STOP"
        self.config.write_text(
            f'name = "{name}"\nstate_dir = "{self.directory}/state"\n'
            f'stop_file = "{self.stop_file}"\n'
            f'[broker]\nhost = "127.0.0.1"\nport = {broker.port}\n'
            f'[metrics]\nlisten = "127.0.0.1:{self.port}"\n'
            f"[policy]\nformation_wait_s = 1.0\nbudget_least = 100\nbudget_most = 100\n"
            f"[ledger]\nhead_s = 1\n{extra}"
        )
        self.process = None

    def command(self, *arguments):
        return [sys.executable, "-m", "compute", *arguments, "--config", str(self.config)]

    def call(self, *arguments, code=0):
        done = subprocess.run(
            self.command(*arguments), cwd=REPO, capture_output=True, text=True, timeout=LONG_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command("run"), cwd=REPO, stdout=log, stderr=log)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self):
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(LONG_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert status == 0, self.log.read_text()[-3000:]
        assert "Traceback" not in self.log.read_text()
        self.process = None

    def metrics(self):
        """Sample → value; {} while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as got:
                lines = got.read().decode().splitlines()
        except OSError:
            return {}
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def is_ready(self):
        return self.metrics().get("fabric_compute_connected") == 1

    def head(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ledger/head", timeout=5) as got:
            return json.loads(got.read())


def settings(broker):
    return BrokerSettings("127.0.0.1", broker.port)


__all__ = ["JOB", "Compute", "HostLink", "Mosquitto", "RealWorld", "settings"]
