"""A real mosquitto, a real fabricd on loopback, and scripted ends of the control fabric."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from pathlib import Path

from fabricd.cli import client
from lab.services.mosquitto import Mosquitto
from telemetry.broker.client import BrokerClient
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.envelope import Message, Sender
from telemetry.messages.topics import Kind, Topic, subscription

SLOW_S = 150.0
"""For a machine that is busy with something else."""


async def until(ready, what, timeout_s=SLOW_S):
    """Wait for something to hold; returns it."""
    end = time.monotonic() + timeout_s
    while not (found := ready()):
        assert time.monotonic() < end, f"timed out: {what}"
        await asyncio.sleep(0.01)
    return found


class Daemon:
    """fabricd with one link, loopback; no prober."""

    def __init__(self, directory: Path, broker: Mosquitto, name="h0", extra="", broker_extra=""):
        self.directory, self.name = directory, name
        self.run_dir, self.state_dir = directory / "run", directory / "state"
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "fabricd.toml"
        self.write(broker, extra, broker_extra)
        self.log = directory / "fabricd.log"
        self.process = None

    def write(self, broker, extra="", broker_extra=""):
        table = ""
        if broker is not None:
            table = (
                f'[broker]\nhost = "127.0.0.1"\nport = {broker.port}\nkeepalive_s = 2\n'
                f"{broker_extra}"
            )
        self.file.write_text(
            f'[host]\nname = "{self.name}"\nrealtime = false\n'
            f'[paths]\nrun_dir = "{self.run_dir}"\nstate_dir = "{self.state_dir}"\n'
            f'stop_file = "{self.directory}/STOP"\n'
            '[[links]]\nnetdev = "lo"\nrail = 0\naddress = "127.0.0.1"\n'
            f'[metrics]\nlisten = ""\n{table}{extra}'
        )

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fabricd.daemon", "--config", str(self.file),
                 "--log-format", "json"],
                stdout=log, stderr=log,
            )  # fmt: skip

    def ask(self, op, **request):
        return client.request(self.run_dir / "ctl.sock", {"op": op, **request})

    def answers(self):
        try:
            return self.ask("status")
        except client.DaemonError:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            return None

    def stored_events(self):
        """(kind, text) of the events in the outbox's file. They survive a kill of fabricd."""
        file = self.state_dir / "outbox.db"
        if not file.exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
            try:
                rows = db.execute("SELECT payload FROM messages ORDER BY n").fetchall()
            except sqlite3.OperationalError:  # fabricd is making its tables
                return []
        events = [json.loads(payload)["data"] for (payload,) in rows]
        return [(event["kind"], event["text"]) for event in events]

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
                raise


class Compute:
    """A scripted fabric-compute: sees all that hosts say, and gives orders."""

    def __init__(self, broker: Mosquitto, name="c0", persistent=False):
        self.name = name
        self.seen: dict[Topic, Message] = {}
        self.events: list[Message] = []
        self.refusals: list[tuple[str, str]] = []
        self.cleared_topics: set[Topic] = set()
        self.factory = MessageFactory(Sender("test", uuid.uuid4().hex))
        kinds = [kind for kind in Kind if kind.value.startswith("host.")]
        self.client = BrokerClient(
            BrokerSettings("127.0.0.1", broker.port, keepalive_s=2),
            client_id=f"compute-{name}", factory=self.factory,
            status=Topic(Kind.COMPUTE_STATUS, name),
            subscriptions=[(subscription(kind), 1) for kind in kinds],
            receiver=self, persistent=persistent,
        )  # fmt: skip
        self.task = None

    def received(self, message, *, retained):
        if message.topic.kind is Kind.HOST_EVENT:
            self.events.append(message)
        else:
            self.seen[message.topic] = message
            self.cleared_topics.discard(message.topic)

    def cleared(self, topic):
        self.cleared_topics.add(topic)
        self.seen.pop(topic, None)

    def refused(self, topic, reason):
        self.refusals.append((topic, reason))

    def connection_changed(self, *, connected, reason):
        pass

    async def start(self):
        self.task = asyncio.create_task(self.client.run())
        await until(lambda: self.client.connected, "the test's fabric-compute is connected")

    async def stop(self):
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def data(self, kind, host="h0", name=""):
        message = self.seen.get(Topic(kind, host, name))
        return None if message is None else message.data

    def order(self, host="h0", **order):
        """Give an order; it stands until the next one."""
        self.client.set_state(Topic(Kind.COMPUTE_ORDER, self.name, host), order)

    def fences(self, host="h0"):
        data = self.data(Kind.HOST_OBSERVATIONS, host)
        return data["fences"] if data else []


class FabricRun:
    """A scripted fabric-run: a process of its own, driven line by line over its pipes."""

    numbers = itertools.count()

    def __init__(self, daemon: Daemon, job="train", incarnation=None):
        self.job, self.incarnation = job, incarnation or f"i{next(self.numbers)}"
        self.path = daemon.run_dir / "jobs.sock"
        self.lines: list[dict] = []
        self.process = None
        self.reading = None

    async def start(self, register=True):
        program = (
            "import os, select, socket, sys\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            "s.connect(sys.argv[1])\n"
            "ends = [0, s]\n"
            "while 0 in ends:\n"
            "    for one in select.select(ends, [], [])[0]:\n"
            "        data = os.read(0, 65536) if one == 0 else s.recv(65536)\n"
            "        if not data:\n"
            "            ends.remove(one)\n"
            "        elif one == 0:\n"
            "            s.sendall(data)\n"
            "        else:\n"
            "            os.write(1, data)\n"
        )
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(self.path),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 20,
        )  # fmt: skip
        self.reading = asyncio.create_task(self._read())
        if register:
            self.send("register", version=1, job=self.job, incarnation=self.incarnation)
            await self.get("welcome")
        return self

    async def _read(self):
        while line := await self.process.stdout.readline():
            self.lines.append(json.loads(line))

    def send(self, kind, **fields):
        self.process.stdin.write(json.dumps({"kind": kind, **fields}).encode() + b"\n")

    async def get(self, kind, **fields):
        """Wait for a line with these fields."""

        def found():
            return next(
                (x for x in self.lines if x["kind"] == kind and x.items() >= fields.items()), None
            )

        return await until(found, f"{self.job} is sent {kind} {fields}; has {self.lines}")

    async def kill(self):
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        await self.end()

    async def end(self):
        if self.process is not None:
            self.process.stdin.close()
            await self.process.wait()
        if self.reading is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self.reading
