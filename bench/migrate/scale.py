"""2,000 simulated hosts at a real mosquitto, and a real fabric-compute that decides over them.

The hosts' side of the broker is fabricd's own client: one connection, last will, documents and
observations for each host, 65 jobs of 8 to 516 hosts with 8 ranks each. Everything shares two
cores, so the simulation itself delays what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import aiomqtt

from bench.detect.cost import cpu_s, rss_mb
from bench.migrate.fleet import Place, plan
from bench.migrate.jobs import REPO
from bench.report import Row
from compute.mosquitto import QUEUED
from lab.services.mosquitto import Mosquitto, free_port

WORKERS = 4
PROGRESS_S = 30.0
"""A fabric-run says its ranks' steps so often: ``fabric_train.host.urgency``."""
BROKER = (
    "allow_anonymous true",
    "autosave_on_changes false",
    "autosave_interval 30",
    f"max_queued_messages {QUEUED}",
    "max_connections 10000",
    "set_tcp_nodelay true",
    "sys_interval 1",
)
"""As ``fabric-compute broker`` has it, without TLS."""
LONG_S = 300.0


class Fleet:
    """All simulated hosts, in a few processes."""

    def __init__(self, port: int, hosts: int) -> None:
        self.places = plan(hosts)
        self._workers = []
        for number in range(WORKERS):
            first, last = (hosts * one // WORKERS for one in (number, number + 1))
            words = map(str, (port, hosts, first, last - first, PROGRESS_S))
            self._workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "bench.migrate.fleet_worker", *words],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO, text=True,
                )
            )  # fmt: skip

    def ask(self, *words: str) -> list[dict[str, Any]]:
        """The answer of each process; all of them work at the same time."""
        for one in self._workers:
            assert one.stdin is not None
            one.stdin.write(" ".join(words) + "\n")
            one.stdin.flush()
        answers = []
        for one in self._workers:
            assert one.stdout is not None
            line = one.stdout.readline()
            if not line:
                raise RuntimeError(f"a process of the fleet has ended: {words}")
            answers.append(json.loads(line))
        return answers

    def running(self) -> dict[tuple[str, int], tuple[int, float]]:
        """(job, generation) → how many hosts run it, and since when the last one does."""
        found: dict[tuple[str, int], tuple[int, float]] = {}
        for answer in self.ask("seen"):
            if answer["wrong"]:
                raise RuntimeError(f"a simulated host: {answer['wrong']}")
            for job, number, hosts, at in answer["running"]:
                before = found.get((job, number), (0, 0.0))
                found[job, number] = (before[0] + hosts, max(before[1], at))
        return found

    def close(self) -> None:
        """End all of them."""
        for one in self._workers:
            one.terminate()
        for one in self._workers:
            one.wait()


class Compute:
    """A fabric-compute of its own directory, in mode migrate."""

    def __init__(self, directory: Path, port: int) -> None:
        self._port = free_port()
        self._config, self._log = directory / "compute.toml", directory / "compute.log"
        (directory / "state").mkdir(mode=0o750)
        (directory / "state" / "mode").write_text("migrate\n")
        self._config.write_text(
            f'name = "c0"\nstate_dir = "{directory}/state"\nstop_file = "{directory}/STOP"\n'
            f'[broker]\nhost = "127.0.0.1"\nport = {port}\n'
            f'[metrics]\nlisten = "127.0.0.1:{self._port}"\n'
            "[policy]\nbudget_percent = 50\nbudget_most = 100\n"
        )
        self.process: subprocess.Popen[Any] | None = None

    def start(self) -> float:
        """Start it. Returns the seconds until it has a complete view."""
        began = time.monotonic()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "compute", "run", "--config", str(self._config)],
                cwd=REPO, stdout=log, stderr=log,
            )  # fmt: skip
        until(lambda: self.metrics().get("fabric_compute_connected") == 1, "a complete view")
        return time.monotonic() - began

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self.process is not None
        return self.process.pid

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            self.process = None

    def metrics(self) -> dict[str, float]:
        """Sample → value; {} while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as got:
                lines = got.read().decode().splitlines()
        except OSError:
            if self.process is not None and self.process.poll() is not None:
                raise RuntimeError(self._log.read_text()[-2000:]) from None
            return {}
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}


def until(condition: Callable[[], bool], what: str, seconds: float = LONG_S) -> None:
    """Wait. Raises ``RuntimeError`` after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)


@contextlib.contextmanager
def site(hosts: int) -> Iterator[tuple[Mosquitto, Compute, Fleet]]:
    """Broker, fabric-compute that does not run yet, hosts that are not connected yet."""
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as name:
        directory = Path(name)
        broker = Mosquitto(directory / "mosquitto", options=BROKER)
        broker.start()
        compute, fleet = Compute(directory, broker.port), Fleet(broker.port, hosts)
        try:
            yield broker, compute, fleet
        finally:
            compute.stop()
            fleet.close()
            broker.stop()


def scale(*, quick: bool, hosts: int = 2000) -> list[Row]:
    """All rows."""
    with site(hosts) as (broker, compute, fleet):
        began = time.monotonic()
        fleet.ask("connect")
        connected_s = time.monotonic() - began
        settle = _settle(compute, fleet)
        steady = _steady(broker, compute, fleet, 20.0 if quick else 60.0)
        losses = _losses(fleet, 5 if quick else 10)
        burst = _burst(compute, fleet, 5.0)
        restart = _restart(compute, fleet, hosts)
    where = f"{hosts:,} connected after {connected_s:.0f} s, two cores for everything"
    return [
        Row("fabric-compute's start → complete view, first generation of all jobs runs", None,
            settle, "s", note=where),
        Row("restart of fabric-compute → complete view of all hosts", None, restart, "s",
            note="retained messages with QoS 0; none is missing"),
        *steady, *losses, *burst,
    ]  # fmt: skip


def _settle(compute: Compute, fleet: Fleet) -> float:
    began = time.monotonic()
    compute.start()
    wanted = {place.job: len(place.mates) for place in fleet.places.values() if place.job}

    def all_run() -> bool:
        found = fleet.running()
        return all(found.get((job, 1), (0, 0.0))[0] == hosts for job, hosts in wanted.items())

    until(all_run, "all jobs run")
    return time.monotonic() - began


def _steady(broker: Mosquitto, compute: Compute, fleet: Fleet, seconds: float) -> list[Row]:
    time.sleep(10.0)  # What follows from the start is over.
    pids = {"fabric-compute": compute.pid, "mosquitto": broker.pid}
    before, began = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    published = _published(fleet)
    carried = _bytes(broker)
    time.sleep(seconds)
    spent = time.monotonic() - began
    share = {name: 100 * (cpu_s(pid) - before[name]) / spent for name, pid in pids.items()}
    rate = (_published(fleet) - published) / spent
    per_hour = (_bytes(broker) - carried) / spent * 3600 / len(fleet.places)
    return [
        Row("fabric-compute, CPU, all jobs train", 25, share["fabric-compute"], "% of a core",
            note=f"{rate:.0f} documents a second"),
        Row("fabric-compute, memory", 500, rss_mb(compute.pid), "MB"),
        Row("mosquitto, CPU", None, share["mosquitto"], "% of a core"),
        Row("mosquitto, memory", None, rss_mb(broker.pid), "MB"),
        Row("received and sent by the broker, per host and hour", None, per_hour / 1e3, "kB"),
    ]  # fmt: skip


def _bytes(broker: Mosquitto) -> int:
    """That mosquitto has received from its clients and sent to them so far."""
    names = ["$SYS/broker/bytes/received", "$SYS/broker/bytes/sent"]
    return asyncio.run(_sum_of(names, broker.port))


async def _sum_of(topics: list[str], port: int) -> int:
    """Of what the broker says first under each of these topics."""
    found: dict[str, int] = {}
    async with aiomqtt.Client("127.0.0.1", port) as client:
        for topic in topics:
            await client.subscribe(topic)
        async for message in client.messages:
            assert isinstance(message.payload, bytes)
            found[message.topic.value] = int(message.payload)
            if len(found) == len(topics):
                break
    return sum(found.values())


def _published(fleet: Fleet) -> int:
    return sum(int(answer["published"]) for answer in fleet.ask("seen"))


def _losses(fleet: Fleet, count: int) -> list[Row]:
    """Hosts of the largest jobs, frozen one after another."""
    decided, running = [], []
    jobs = sorted({place.job for place in fleet.places.values() if place.job})[:5]
    for number in range(count):
        job = jobs[number % len(jobs)]
        victim = _victim(fleet.places, job, number // len(jobs))
        voted = max(answer["voted_at"] for answer in fleet.ask("lose", victim))
        generation = 2 + number // len(jobs)
        left = len(fleet.places[victim].mates) - generation + 1

        def takes_over(key: tuple[str, int] = (job, generation), hosts: int = left) -> bool:
            return fleet.running().get(key, (0, 0.0))[0] == hosts

        until(takes_over, f"a spare of {job} takes over from {victim}")
        fenced = min(
            answer["fenced"][victim] for answer in fleet.ask("seen") if victim in answer["fenced"]
        )
        decided.append(1e3 * (fenced - voted))
        running.append(1e3 * (fleet.running()[job, generation][1] - voted))
    return [
        Row("last vote → fence at the first host, the latest", 500, max(decided), "ms",
            note=f"{count} hosts of jobs of 130 to 516 hosts", samples={"ms": decided}),
        Row("last vote → fence at the first host, median", None, median(decided), "ms"),
        Row("last vote → all hosts run the next generation, median", None, median(running), "ms",
            samples={"ms": running}),
    ]  # fmt: skip


def _victim(places: dict[str, Place], job: str, number: int) -> str:
    mates = next(place.mates for place in places.values() if place.job == job)
    return mates[3 + number]


def _burst(compute: Compute, fleet: Fleet, seconds: float) -> list[Row]:
    before = _received(compute)
    began = time.monotonic()
    published = sum(answer["published"] for answer in fleet.ask("burst", str(seconds)))
    until(lambda: _received(compute) - before >= published, "all messages are received", 120.0)
    spent = time.monotonic() - began
    return [
        Row("observations a second, of all hosts at once", None, published / spent, "1/s",
            note="as fast as the hosts, the broker and fabric-compute can on two cores"),
        Row("of these lost", 0, max(0.0, published - (_received(compute) - before)), "",
            better="equal"),
    ]  # fmt: skip


def _received(compute: Compute) -> float:
    """Messages that counted, and those that a newer one of the same topic replaced."""
    found = compute.metrics()
    kinds = sum(n for name, n in found.items() if name.startswith("fabric_compute_messages_total"))
    return kinds + found.get("fabric_compute_superseded_messages_total", 0.0)


def _restart(compute: Compute, fleet: Fleet, hosts: int) -> float:
    compute.stop()
    seconds = compute.start()
    found = compute.metrics()
    here = (
        found['fabric_compute_hosts{state="online"}'] + found['fabric_compute_hosts{state="lost"}']
    )
    jobs = len({place.job for place in fleet.places.values() if place.job})
    until(
        lambda: compute.metrics().get('fabric_compute_jobs{phase="running"}') == jobs,
        "all jobs are known again",
    )
    if here != hosts:
        raise RuntimeError(f"{here:.0f} of {hosts} hosts are known after a restart")
    return seconds
