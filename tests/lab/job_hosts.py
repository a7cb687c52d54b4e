"""Several fabric-run on loopback, and a small double of what they talk to.

``Daemons`` plays the job socket of each host's fabricd. What fabric-compute decides for a job is
decided by its own core, which sees every document at once.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from compute.decide.decision import JobInput
from compute.decide.job import JobCore
from compute.decide.policy import Policy
from fabric_train.messages.documents import AgentDocument, JobOrder, parse, to_data
from lab.node import REPO

SCRIPT = Path(__file__).with_name("train_loop.py")


class Daemons:
    """fabricd of each of ``hosts``, and one fabric-compute."""

    def __init__(self, root, hosts):
        self.root = root
        self.hosts = list(hosts)
        self.documents = {}
        self.lost = {}
        self.drained = {}
        self.gone = set()
        self.fences = {}  # id: who has acknowledged it
        self.core = JobCore("job", Policy())
        self.phases = []
        self._writers = {}
        self._sent = {}
        self._servers = {}

    async def __aenter__(self):
        for host in self.hosts:
            (self.root / host).mkdir(parents=True)
            await self.serve(host)
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def _tick(self):
        while True:
            await asyncio.sleep(0.25)
            self.decide()

    async def __aexit__(self, *_):
        self._ticking.cancel()
        for server in self._servers.values():
            server.close()
        for writer in self._writers.values():
            writer.close()

    async def serve(self, host):
        def connect(reader, writer):
            return self._connect(host, reader, writer)

        path = self.root / host / "jobs.sock"
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(connect, path, limit=1 << 18)
        self._servers[host] = server

    async def _connect(self, host, reader, writer):
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                said = json.loads(line)
                match said["kind"]:
                    case "register":
                        self._writers[host] = writer
                        self._sent.pop(host, None)
                        self.say(host, {"kind": "welcome", "host": host, "boot_id": "b"})
                        for name in self.fences:
                            self.say_fence(host, name)
                    case "document":
                        self.documents[host] = parse(AgentDocument, said["document"])
                    case "fenced":
                        self.fences[said["id"]].add(host)
                    case "leave":
                        self.documents.pop(host)
                self.decide()
        writer.close()
        if self._writers.get(host) is writer:
            del self._writers[host]

    async def restart(self, host):
        """fabricd of ``host`` is restarted."""
        self._servers.pop(host).close()
        self._writers.pop(host).close()
        await asyncio.sleep(0.5)
        await self.serve(host)

    def ended(self, host):
        """The fabric-run of ``host`` has ended, as fabricd sees by its pidfd."""
        self.gone.add(host)
        self.decide()

    def say(self, host, message):
        if host in self._writers:
            self._writers[host].write(json.dumps(message).encode() + b"\n")

    def say_fence(self, host, name):
        fenced, _, incarnation = name.partition("/")
        message = {"kind": "fence", "id": name, "host": fenced, "incarnation": incarnation}
        self.say(host, message)

    def freeze(self, host):
        """All evidence says that ``host`` is lost."""
        self.lost[host] = "silent, says the test"
        self.decide()

    def propose(self, generation):
        """A generation that fabric-compute would not have thought of."""
        for host in self.present():
            order = JobOrder(self.documents[host].incarnation, "proposed", "", generation)
            self.say(host, {"kind": "order", "compute": "two", "order": to_data(order)})

    def present(self):
        """Hosts whose agent has not ended, and is not fenced."""
        out = self.gone | {name.partition("/")[0] for name in self.fences}
        return [host for host in self.documents if host not in out]

    def decide(self):
        """As fabric-compute does on each news."""
        documents = {host: self.documents[host] for host in self.present()}
        unconfirmed = frozenset(
            name.partition("/")[0]
            for name, who in self.fences.items()
            if not who >= documents.keys()
        )
        lost = {host: why for host, why in self.lost.items() if host in documents}
        news = JobInput(documents, lost=lost, unconfirmed=unconfirmed, drained=self.drained)
        decision = self.core.decide(news, time.monotonic())
        self.phases.append(decision.phase)
        for host, order in decision.orders.items():
            if host in self._writers and self._sent.get(host) != order:
                self._sent[host] = order
                self.say(host, {"kind": "order", "compute": "one", "order": to_data(order)})
        for host in decision.fence:
            incarnation = self.documents[host].incarnation
            name = f"{host}/{incarnation}"
            self.fences[name] = set()
            for other in self._writers:
                self.say_fence(other, name)
        if decision.fence:
            self.decide()


class Run:
    """One ``fabric-run`` of the job, in a process group of its own."""

    def __init__(self, daemons, host, process, log):
        self.process = process
        self.log = log
        self._watching = asyncio.create_task(self._watch(daemons, host))

    async def _watch(self, daemons, host):
        await self.process.wait()
        daemons.ended(host)

    def send(self, number):
        """A signal to fabric-run and all its processes."""
        os.killpg(self.process.pid, number)

    @classmethod
    async def start(cls, daemons, host, number, args, *faults, **environment):
        out = daemons.root / "out"
        out.mkdir(exist_ok=True)
        log = daemons.root / f"{host}.log"
        path = f"{REPO}:{os.environ.get('PYTHONPATH', '')}"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fabric_train.run", "--job", "job",
                "--daemon", str(daemons.root / host), "--address", f"127.0.0.{number}",
                "--records", str(daemons.root / f"{host}.json"), *args, str(out),
                stderr=file, stdout=file, start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, "FAULTS": ",".join(faults), **environment},
            )  # fmt: skip
        return cls(daemons, host, process, log)

    async def end(self):
        """Whatever is left of it."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
        await self._watching
