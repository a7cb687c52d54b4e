"""Several fabric-run on loopback, and small doubles of what they talk to.

``Daemons`` plays the job socket of each host's fabricd and, by ``decide``, a fabric-compute that
sees every document at once.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

from fabric_train.documents import (
    AgentDocument,
    JobGeneration,
    JobOrder,
    Member,
    parse,
    to_data,
)
from lab.node import REPO

SCRIPT = Path(__file__).with_name("train_loop.py")


class Daemons:
    """fabricd of each of ``hosts``, and one fabric-compute."""

    def __init__(self, root, hosts):
        self.root = root
        self.hosts = list(hosts)
        self.documents = {}
        self.gone = set()
        self.fences = {}  # id: who has acknowledged it
        self.generation = None
        self.phase = "waiting"
        self._writers = {}
        self._sent = {}
        self._servers = []

    async def __aenter__(self):
        for host in self.hosts:
            (self.root / host).mkdir(parents=True)
            await self.serve(host)
        return self

    async def __aexit__(self, *_):
        for server in self._servers:
            server.close()
        for writer in self._writers.values():
            writer.close()

    async def serve(self, host):
        def connect(reader, writer):
            return self._connect(host, reader, writer)

        path = self.root / host / "jobs.sock"
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(connect, path, limit=1 << 18)
        self._servers.append(server)

    async def _connect(self, host, reader, writer):
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                said = json.loads(line)
                match said["kind"]:
                    case "register":
                        self._writers[host] = writer
                        self._sent.pop(host, None)
                        self._say(host, {"kind": "welcome", "host": host, "boot_id": "b"})
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
            self.gone.add(host)
            self.decide()

    def _say(self, host, message):
        if host in self._writers:
            self._writers[host].write(json.dumps(message).encode() + b"\n")

    def order(self, host, phase, generation=None, compute="one"):
        document = self.documents[host]
        order = JobOrder(document.incarnation, phase, "", generation)
        if self._sent.get(host) != order:
            self._sent[host] = order
            self._say(host, {"kind": "order", "compute": compute, "order": to_data(order)})

    def present(self):
        return [host for host in self.hosts if host in self.documents and host not in self.gone]

    def decide(self):
        """Form the job, then give each lost rank to a warm process, if all agree."""
        present = self.present()
        documents = [self.documents[host] for host in present]
        if self.generation is None:
            self._form(documents)
            return
        finished = [
            one.finished is not None
            for document in documents
            for one in document.processes
            if one.process in self.generation.slots
        ]
        if self.phase == "ended" or (len(finished) == len(self.generation.slots) and all(finished)):
            self.phase = "ended"
        elif self.phase == "proposed":
            proposal = self.generation.proposal
            if all(one.accepted and one.accepted.proposal == proposal for one in documents):
                self.phase = "running"
        else:
            self._replace(documents)
        for host in present:
            self.order(host, self.phase, self.generation)

    def _form(self, documents):
        if len(documents) < len(self.hosts):
            return
        nodes = documents[0].nodes
        main = [[one for one in doc.processes if not one.standby] for doc in documents]
        if any(one.state != "joined" for processes in main for one in processes):
            return
        slots = [one.process for processes in main[:nodes] for one in processes]
        hosts = [doc.host for doc in documents[:nodes] for _ in range(doc.nproc)]
        self._propose(JobGeneration(1, 0, slots, hosts, [], [], "", formed=False), documents)

    def _replace(self, documents):
        alive = {
            one.process: doc.host for doc in documents for one in doc.processes
            if one.state == "warm"
        }  # fmt: skip
        gen = self.generation
        fences = {f"fence-{host}": host for host in set(gen.hosts) & self.gone}
        for name, host in fences.items():
            if name not in self.fences:
                self.fences[name] = set()
                incarnation = self.documents[host].incarnation
                for other in self.present():
                    self._say(other, {"kind": "fence", "id": name, "host": host,
                                      "incarnation": incarnation})  # fmt: skip
        if any(self.fences[name] < set(self.present()) for name in fences):
            return
        known = {one.process for doc in documents for one in doc.processes if one.state != "ended"}
        lost = [rank for rank, process in enumerate(gen.slots) if process not in known]
        spares = [process for process in alive if process not in gen.slots]
        slots, hosts = list(gen.slots), list(gen.hosts)
        for rank in lost:
            here = [one for one in spares if alive[one] == hosts[rank]]
            if not spares:
                return
            slots[rank] = (here or spares)[0]
            spares.remove(slots[rank])
            hosts[rank] = alive[slots[rank]]
        if lost:
            more = dataclasses.replace(
                gen, number=gen.number + 1, base=gen.number, slots=slots, hosts=hosts, formed=True,
                lost=lost,
            )  # fmt: skip
            self._propose(more, documents)

    def _propose(self, generation, documents):
        members = [
            Member(doc.host, doc.incarnation, doc.address, doc.store, doc.token)
            for doc in documents
        ]
        self.generation = dataclasses.replace(
            generation, members=members, electorate=[doc.host for doc in documents],
            store=documents[-1].store,
        )  # fmt: skip
        self.phase = "proposed"
        for host in self.present():
            self.order(host, "proposed", self.generation)


class Run:
    """One ``fabric-run`` of the job, in a process group of its own."""

    def __init__(self, process, log):
        self.process = process
        self.log = log

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
        return cls(process, log)

    async def end(self):
        """Whatever is left of it."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()
