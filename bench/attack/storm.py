"""A host's certificate is revoked while 2,000 hosts are connected, and then all come back at once.

A real mosquitto as ``fabric-compute broker`` runs it, and a real fabric-compute in mode migrate.
The hosts are connections in two processes of the same machine, whose CPU delays what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.attack.storm_client import StormClient, name_of
from bench.detect.cost import cpu_s, rss_mb
from bench.migrate.scale import Compute, until
from bench.report import Row
from bench.tls_broker import TlsBroker
from lab.node import REPO
from telemetry.messages.topics import Kind, subscription

HOSTS, QUICK_HOSTS, DISCOVERING = 2000, 200, 500
WORKERS = 2
WATCHER = "watcher"
"""A further host, which hears all statuses."""
STAYS_S = 15.0
"""How long a revoked client that stays is watched."""
ASKED_GONE_S, ASKED_BACK_S = 5.0, 60.0
LIMIT_S = 240.0
STABLE_S = 6.0
"""A connection that lasted so long did not fail (``telemetry.broker.client``)."""


class Hosts:
    """All hosts, in a few processes."""

    def __init__(self, broker: TlsBroker, hosts: int, *, discovers: bool) -> None:
        self._workers = []
        for number in range(WORKERS):
            first, last = (hosts * one // WORKERS for one in (number, number + 1))
            words = map(str, (broker.port, first, last - first, hosts, int(discovers)))
            self._workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "bench.attack.storm_worker", str(broker.directory),
                     *words],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO, text=True,
                )
            )  # fmt: skip
        self._answers()

    def ask(self, *words: str) -> list[dict[str, Any]]:
        """The answer of each process; all of them work at the same time."""
        for one in self._workers:
            assert one.stdin is not None
            one.stdin.write(" ".join(words) + "\n")
            one.stdin.flush()
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        answers = []
        for one in self._workers:
            assert one.stdout is not None
            line = one.stdout.readline()
            if not line:
                raise RuntimeError("a process of the hosts has ended")
            answers.append(json.loads(line))
        return answers

    def back(self) -> dict[str, float]:
        """Host → when it was connected the last time; 0: it is not."""
        return {host: at for answer in self.ask("seen") for host, at in answer["back"].items()}

    def attempts(self) -> int:
        """Of all hosts to connect so far."""
        return sum(int(answer["attempts"]) for answer in self.ask("seen"))

    def close(self) -> None:
        """End all of them."""
        for one in self._workers:
            one.terminate()
        for one in self._workers:
            one.wait()


class Watcher:
    """A host in a thread of its own that hears what all hosts say of themselves."""

    def __init__(self, broker: TlsBroker) -> None:
        self.heard: list[tuple[str, bool, bool, float]] = []
        """(Host, online, intended, when)."""
        self._client = StormClient(
            broker.settings(WATCHER), WATCHER, states={},
            filters=[(subscription(Kind.HOST_STATUS), 0)], heard=self._take,
        )  # fmt: skip
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._task = self._loop.create_task(self._client.run(asyncio.Semaphore(1)))
            self._loop.run_until_complete(self._task)

    def _take(self, topic: str, payload: bytes) -> None:
        if payload:
            data = json.loads(payload)["data"]
            said = (topic.split("/")[-2], data["online"], data["intended"], time.monotonic())
            self.heard.append(said)

    @property
    def connected(self) -> bool:
        """It hears."""
        return self._client.connected

    def wills(self, since: float, until_: float, but: str = "") -> int:
        """Hosts, ``but`` for one, of which a last will came between two times."""
        return len(
            {
                host
                for host, online, intended, at in list(self.heard)
                if not online and not intended and host != but and since <= at <= until_
            }
        )

    def last(self, host: str, since: float) -> float:
        """When ``host`` was last heard to be online; ``since`` if not after that."""
        times = [at for one, online, _, at in list(self.heard) if one == host and online]
        return max([since, *times])

    def close(self) -> None:
        """End the connection."""
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10.0)


@dataclass
class Storm:
    """What was seen of one."""

    connected_s: float = 0.0
    mute_s: float = 0.0
    gone_s: float | None = None
    """None: the revoked client's connection was there until all were thrown off."""
    wills: int = 0
    restart_wills: int = 0
    back_s: list[float] = field(default_factory=list)
    attempts: int = 0
    broker_s: float = 0.0
    compute_s: float = 0.0
    broker_mb: float = 0.0
    fences: float = 0.0


@contextlib.contextmanager
def site(hosts: int) -> Iterator[tuple[TlsBroker, Compute]]:
    """Certificates, a broker that runs, and a fabric-compute with a complete view."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="bench-storm-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        broker = TlsBroker(directory / "broker")
        broker.issue([*(name_of(number) for number in range(hosts)), WATCHER])
        broker.start()
        compute = Compute(directory, broker.settings_lines)
        try:
            compute.start()
            yield broker, compute
        finally:
            compute.stop()
            broker.stop()


def storm(*, quick: bool) -> list[Row]:
    """All rows: peers from a list, and peers that the broker announces."""
    hosts = QUICK_HOSTS if quick else HOSTS
    found = _storm(hosts, discovers=False)
    rows = _rows(found, hosts, revoked=True)
    fewer = QUICK_HOSTS if quick else DISCOVERING
    return rows + _rows(_storm(fewer, discovers=True), fewer, revoked=False)


def _storm(count: int, *, discovers: bool) -> Storm:
    storm, victim = Storm(), name_of(7)
    with site(count) as (broker, compute):
        hosts, watcher = Hosts(broker, count, discovers=discovers), Watcher(broker)
        try:
            began = time.monotonic()
            hosts.ask("connect")
            until(lambda: all(hosts.back().values()) and watcher.connected, "all are connected")
            storm.connected_s = time.monotonic() - began
            until(lambda: _online(compute) >= count, "fabric-compute knows all")
            time.sleep(STABLE_S)
            _revoke(storm, broker, hosts, watcher, victim)
            _throw_off(storm, broker, compute, hosts, watcher, count - 1)
        finally:
            watcher.close()
            hosts.close()
    return storm


def _online(compute: Compute) -> float:
    return compute.metrics().get('fabric_compute_hosts{state="online"}', 0.0)


def _revoke(storm: Storm, broker: TlsBroker, hosts: Hosts, watcher: Watcher, victim: str) -> None:
    """While the victim goes on to speak on the connection that it has."""
    talking: list[dict[str, Any]] = []

    def talk() -> None:
        talking.extend(hosts.ask("talk", victim, str(STAYS_S)))

    thread = threading.Thread(target=talk)
    thread.start()
    time.sleep(1.0)
    began = time.monotonic()
    broker.revoke(victim)
    thread.join()
    lost = next((one["lost_at"] for one in talking if one.get("lost_at")), None)
    storm.gone_s = None if lost is None else lost - began
    storm.mute_s = watcher.last(victim, began) - began
    storm.wills = watcher.wills(began, time.monotonic(), but=victim)


def _throw_off(
    storm: Storm, broker: TlsBroker, compute: Compute, hosts: Hosts, watcher: Watcher, count: int
) -> None:
    """Restart the broker. ``count``: hosts that come back."""
    attempts, spent = hosts.attempts(), cpu_s(compute.pid)
    broker.stop()
    thrown = time.monotonic()
    broker.start()
    end = thrown + LIMIT_S
    while True:
        back = [at - thrown for at in hosts.back().values() if at > thrown]
        if len(back) >= count or time.monotonic() > end:
            break
        time.sleep(0.25)
    passed = time.monotonic() - thrown
    storm.back_s = sorted(back) + [LIMIT_S] * (count - len(back))
    storm.attempts = hosts.attempts() - attempts
    storm.broker_s = cpu_s(broker.pid) / passed
    until(lambda: _online(compute) >= count, "fabric-compute knows all again")
    storm.compute_s = (cpu_s(compute.pid) - spent) / (time.monotonic() - thrown)
    storm.broker_mb = rss_mb(broker.pid)
    storm.restart_wills = watcher.wills(thrown - 1.0, time.monotonic())
    storm.fences = compute.metrics().get("fabric_compute_fences_total", 0.0)


def _rows(storm: Storm, hosts: int, *, revoked: bool) -> list[Row]:
    who = f"{hosts:,} hosts" if revoked else f"{hosts:,} hosts that discover peers"
    rows = []
    if revoked:
        gone = "" if storm.gone_s is not None else f"still connected after {STAYS_S:g} s"
        rows = [
            Row("revoked client that stays → nobody hears it", ASKED_GONE_S, storm.mute_s, "s"),
            Row("revoked client that stays → its connection has ended", ASKED_GONE_S,
                STAYS_S if storm.gone_s is None else storm.gone_s, "s", note=gone),
            Row("last wills of others after the revocation", 0, storm.wills, "", better="equal",
                note=f"{hosts:,} hosts, within {STAYS_S:g} s"),
        ]  # fmt: skip
    asked = ASKED_BACK_S if revoked else None
    note = f"{storm.attempts} attempts; all connected at first after {storm.connected_s:.0f} s"
    rows += [
        Row(f"broker restarted → {who} are back, the latest", asked, storm.back_s[-1], "s",
            note=note, samples={"s": storm.back_s[:: max(1, len(storm.back_s) // 100)]}),
        Row(f"broker restarted → {who} are back, median", None, median(storm.back_s), "s"),
        Row(f"CPU of broker and fabric-compute meanwhile, {who}", 100 if revoked else None,
            100 * (storm.broker_s + storm.compute_s), "% of a core",
            note=f"mosquitto {100 * storm.broker_s:.0f} %, fabric-compute "
            f"{100 * storm.compute_s:.0f} %; mosquitto {storm.broker_mb:.0f} MB"),
        Row(f"last wills by the restart of the broker, {who}", None, storm.restart_wills, "",
            note=f"{storm.fences:.0f} fences"),
    ]  # fmt: skip
    return rows
