"""``python -m bench.attack.storm_worker DIRECTORY PORT FIRST COUNT HOSTS DISCOVERS``: some hosts.

Commands come on stdin, one a line; each is answered by one JSON line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.attack.storm_client import StormClient, filters_of, name_of
from bench.tls_broker import settings_of
from telemetry.messages.documents import HostDocument, HostObservations
from telemetry.messages.topics import Kind, Topic

CONNECTING = 32
"""That connect for the first time at a time."""
RAILS, PEERS = 8, 20
SAYS_S = 0.1
"""Between two births of a host that was revoked."""


def states_of(number: int, hosts: int) -> dict[Topic, dict[str, object]]:
    """What a host publishes after each connection: who it is, and what its probes say."""
    host = name_of(number)
    links = [
        {"netdev": f"eth{rail}", "rail": rail, "addresses": [f"10.{rail}.{number:04}"]}
        for rail in range(RAILS)
    ]
    document = HostDocument.model_validate({"name": host, "links": links, "probe_port": 7011})
    heard = [name_of((number + step) % hosts) for step in range(1, PEERS + 1)]
    observations = HostObservations.model_validate({"silent": [], "heard": heard, "fences": []})
    return {
        Topic(Kind.HOST_DOCUMENT, host): document.model_dump(mode="json"),
        Topic(Kind.HOST_OBSERVATIONS, host): observations.model_dump(mode="json"),
    }


class Worker:
    """The hosts of this process."""

    def __init__(
        self, directory: Path, port: int, first: int, count: int, hosts: int, *, discovers: bool
    ) -> None:
        self.clients: dict[str, StormClient] = {}
        for number in range(first, first + count):
            host = name_of(number)
            self.clients[host] = StormClient(
                settings_of(directory, port, host), host, states=states_of(number, hosts),
                filters=filters_of(host, discovers=discovers),
            )  # fmt: skip
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> dict[str, Any]:
        """Connect all for the first time."""
        gate = asyncio.Semaphore(CONNECTING)
        self._tasks = [asyncio.create_task(one.run(gate)) for one in self.clients.values()]
        return {}

    async def talk(self, host: str, seconds: str) -> dict[str, Any]:
        """``host`` goes on to say that it is there, until its connection ends or time is over."""
        one = self.clients.get(host)
        if one is None:
            return {}
        end, connections = time.monotonic() + float(seconds), one.connections
        while one.connected and one.connections == connections and time.monotonic() < end:
            one.publish_birth()
            await asyncio.sleep(SAYS_S)
        ended = not one.connected or one.connections != connections
        return {"lost_at": one.lost_at if ended else None}

    async def seen(self) -> dict[str, Any]:
        """Host → when it was connected last, 0: it is not; attempts of all."""
        return {
            "back": {
                host: one.back_at if one.connected else 0.0 for host, one in self.clients.items()
            },
            "attempts": sum(one.attempts for one in self.clients.values()),
            "connections": {host: one.connections for host, one in self.clients.items()},
        }

    async def end(self) -> None:
        """Close all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _serve(worker: Worker) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    commands = {"connect": worker.connect, "talk": worker.talk, "seen": worker.seen}
    print(json.dumps({"ready": True}), flush=True)
    try:
        while words := (await reader.readline()).decode().split():
            answer = await commands[words[0]](*words[1:])  # type: ignore[operator]
            print(json.dumps(answer), flush=True)
    finally:
        await worker.end()


async def _main() -> None:
    numbers = [int(one) for one in sys.argv[2:6]]
    worker = Worker(Path(sys.argv[1]), *numbers, discovers=sys.argv[6] == "1")
    await _serve(worker)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())
