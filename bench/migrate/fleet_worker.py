"""``python -m bench.migrate.fleet_worker DIRECTORY PORT HOSTS FIRST COUNT PROGRESS_S``: some hosts.

``DIRECTORY`` is the broker's: with the certificate of each host.

Commands come on stdin, one a line; each is answered by one JSON line.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.migrate.fleet import Happened, SimulatedHost, plan
from bench.tls_broker import settings_of

CONNECTING = 16
"""Connection attempts at a time."""


class Worker:
    """The hosts of this process."""

    def __init__(
        self,
        directory: Path,
        port: int,
        hosts: int,
        first: int,
        count: int,
        progress_s: float,
    ) -> None:
        places = list(plan(hosts).values())
        self.happened = Happened(time.monotonic)
        # 500 hosts in one process: a busy machine delays all of them, which real hosts do not know.
        self.hosts = {
            place.host: SimulatedHost(
                settings_of(directory, port, place.host, keepalive_s=60), place, self.happened
            )
            for place in places[first : first + count]
        }
        self._progress_s = progress_s
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> dict[str, Any]:
        """Connect all hosts; their documents are published as each is connected."""
        for number, host in enumerate(self.hosts.values()):
            host.publish()
            self._tasks.append(asyncio.create_task(host.client.run()))
            await _until(functools.partial(self._may_begin, number))
        await _until(lambda: all(one.client.connected for one in self.hosts.values()))
        self._tasks.append(asyncio.create_task(self._progress()))
        return {"connected": len(self.hosts)}

    def _may_begin(self, number: int) -> bool:
        """Few enough of the first ``number`` hosts are still connecting."""
        begun = list(self.hosts.values())[: number + 1]
        return sum(not one.client.connected for one in begun) < CONNECTING

    async def _progress(self) -> None:
        """Each host's steps go forward, evenly spread over the time between two documents."""
        names = list(self.hosts)
        began, done = time.monotonic(), 0
        while True:
            await asyncio.sleep(0.02)
            due = int((time.monotonic() - began) / self._progress_s * len(names))
            for number in range(done, due):
                host = self.hosts[names[number % len(names)]]
                host.step += 100
                host.publish_agent()
            done = due

    async def lose(self, name: str) -> dict[str, Any]:
        """All hosts but ``name`` hear it no more. Returns when the last one has said so."""
        if name in self.hosts:
            self.hosts[name].freeze()
        votes = sum([host.lose(name) for host in self.hosts.values()])
        return {"votes": votes, "voted_at": time.monotonic() if votes else 0.0}

    async def burst(self, seconds: str) -> dict[str, Any]:
        """Publish observations as fast as the broker acknowledges them."""
        before = self._published()
        end, turn = time.monotonic() + float(seconds), 0
        while time.monotonic() < end:
            turn += 1
            for host in self.hosts.values():
                if host.client.states.settled:
                    host.publish_observations(gap_ms=float(turn))
            await asyncio.sleep(0.005)
        await _until(lambda: all(host.client.states.settled for host in self.hosts.values()))
        return {"published": self._published() - before}

    async def seen(self) -> dict[str, Any]:
        """What has happened so far."""
        return {
            "fenced": self.happened.fenced,
            "ordered": {
                victim: [len(hosts), max(hosts.values())]
                for victim, hosts in self.happened.ordered.items()
            },
            "running": [
                [job, number, len(hosts), max(hosts.values())]
                for (job, number), hosts in self.happened.running.items()
            ],
            "published": self._published(),
            "wrong": self.happened.wrong[:5],
            "connections": sum(host.client.connections for host in self.hosts.values()),
        }

    async def sizes(self, job: str) -> dict[str, Any]:
        """Bytes of the largest document that a host of ``job`` has said, and of an order."""
        mates = [host for host in self.hosts.values() if host.place.job == job]
        documents = [host.largest_document() for host in mates if not host.frozen]
        return {"document": max(documents, default=0), "order": self.happened.largest_order}

    def _published(self) -> int:
        return sum(host.published for host in self.hosts.values())

    async def end(self) -> None:
        """Close all connections at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of many clients; nobody sets an event
        await asyncio.sleep(0.01)


async def _serve(worker: Worker) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    commands = {
        "connect": worker.connect, "lose": worker.lose, "burst": worker.burst, "seen": worker.seen,
        "sizes": worker.sizes,
    }  # fmt: skip
    try:
        while words := (await reader.readline()).decode().split():
            answer = await commands[words[0]](*words[1:])  # type: ignore[operator]
            print(json.dumps(answer), flush=True)
    finally:
        await worker.end()


if __name__ == "__main__":
    port, hosts, first, count = (int(one) for one in sys.argv[2:6])
    pace = float(sys.argv[6])
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(Worker(Path(sys.argv[1]), port, hosts, first, count, pace)))
