"""2,000 simulated hosts at a real mosquitto, and a real fabric-compute that decides over them.

The broker is that of ``fabric-compute broker``: TLS with a certificate for each connection, the
access list, its limits. Each job has a key, by which its agents seal what they are.

The hosts' side of the broker is fabricd's own client: one connection, last will, documents and
observations for each host, 65 jobs of 8 to 516 hosts with 8 ranks each. Everything shares two
cores, so the simulation itself delays what is measured.
"""

from __future__ import annotations

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

from bench.detect.cost import cpu_s, rss_mb
from bench.migrate.fleet import Place, plan
from bench.migrate.jobs import REPO
from bench.report import Row
from bench.tls_broker import TlsBroker
from lab.services.mosquitto import free_port

WORKERS = 4
PROGRESS_S = 30.0
"""A fabric-run says its ranks' steps so often: ``fabric_train.host.urgency``."""
LONG_S = 300.0


class Fleet:
    """All simulated hosts, in a few processes."""

    def __init__(self, broker: TlsBroker, hosts: int) -> None:
        self.places = plan(hosts)
        self._workers = []
        for number in range(WORKERS):
            first, last = (hosts * one // WORKERS for one in (number, number + 1))
            numbers = (broker.port, hosts, first, last - first, PROGRESS_S)
            words = [str(broker.directory), *map(str, numbers)]
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

    def __init__(self, directory: Path, broker: str) -> None:
        """``broker``: the lines of its ``[broker]``."""
        self._port = free_port()
        self._config, self._log = directory / "compute.toml", directory / "compute.log"
        (directory / "state").mkdir(mode=0o750)
        (directory / "state" / "mode").write_text("migrate\n")
        self._config.write_text(
            f'name = "c0"\nstate_dir = "{directory}/state"\nstop_file = "{directory}/STOP"\n'
            f"[broker]\n{broker}"
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
def site(hosts: int) -> Iterator[tuple[TlsBroker, Compute, Fleet]]:
    """Broker, fabric-compute that does not run yet, hosts that are not connected yet."""
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        broker = TlsBroker(directory / "broker")
        broker.issue(list(plan(hosts)))
        broker.start()
        compute, fleet = Compute(directory, broker.settings_lines), Fleet(broker, hosts)
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
        losses = _losses(broker, fleet, 5 if quick else 10)
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


def _steady(broker: TlsBroker, compute: Compute, fleet: Fleet, seconds: float) -> list[Row]:
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
        Row("read and written by the broker, with TLS, per host and hour", None,
            per_hour / 1e3, "kB"),
    ]  # fmt: skip


def _bytes(broker: TlsBroker) -> int:
    """That mosquitto has read and written so far, TLS and its files among them (proc_pid_io(5))."""
    fields = dict(
        line.split(": ") for line in Path(f"/proc/{broker.pid}/io").read_text().splitlines()
    )
    return int(fields["rchar"]) + int(fields["wchar"])


def _published(fleet: Fleet) -> int:
    return sum(int(answer["published"]) for answer in fleet.ask("seen"))


def _losses(broker: TlsBroker, fleet: Fleet, count: int) -> list[Row]:
    """Hosts of the largest jobs, frozen one after another."""
    decided, ordered, running, carried = [], [], [], []
    jobs = sorted({place.job for place in fleet.places.values() if place.job})[:5]
    newest = dict.fromkeys(jobs, 1)
    for number in range(count):
        job = jobs[number % len(jobs)]
        victim = _victim(fleet.places, job, number // len(jobs))
        before = _bytes(broker)
        voted = max(answer["voted_at"] for answer in fleet.ask("lose", victim))
        left = len(fleet.places[victim].mates) - 1 - number // len(jobs)
        newest[job], ran_at = _await_generation(fleet, job, newest[job], left)
        carried.append((_bytes(broker) - before) / 1e6)
        answers = fleet.ask("seen")
        fenced = min(answer["fenced"][victim] for answer in answers if victim in answer["fenced"])
        hosts = [answer["ordered"][victim] for answer in answers if victim in answer["ordered"]]
        if sum(one for one, _ in hosts) != left:
            raise RuntimeError(f"not all hosts of {job} have the fence of {victim}")
        decided.append(1e3 * (fenced - voted))
        ordered.append(1e3 * (max(at for _, at in hosts) - voted))
        running.append(1e3 * (ran_at - voted))
    sizes = fleet.ask("sizes", jobs[0])
    document, order = (max(one[kind] for one in sizes) for kind in ("document", "order"))
    where = f"{count} hosts of jobs of 130 to 516 hosts; TLS, access list, limits, job keys"
    return [
        Row("last vote → fence at the first host, the latest", 500, max(decided), "ms",
            note=where, samples={"ms": decided}),
        Row("last vote → fence at the first host, median", None, median(decided), "ms"),
        Row("last vote → fence at all hosts of the job, median", 1000, median(ordered), "ms",
            samples={"ms": ordered}),
        Row("last vote → fence at all hosts of the job, the latest", 2000, max(ordered), "ms"),
        Row("last vote → all hosts run the next generation, median", None, median(running), "ms",
            samples={"ms": running}),
        Row("last vote → all hosts run the next generation, the latest", None, max(running), "ms"),
        Row("largest document of a host, 516 hosts × 8 ranks", None, document / 1e3, "kB",
            note=f"the largest order: {order / 1e3:.0f} kB; limit 1,049 kB"),
        Row("read and written by the broker for a takeover, the most", None, max(carried), "MB",
            note=f"{min(carried):.1f} MB at least; with TLS, and all that passes meanwhile",
            samples={"MB": carried}),
    ]  # fmt: skip


def _await_generation(fleet: Fleet, job: str, after: int, hosts: int) -> tuple[int, float]:
    """The next generation that ``hosts`` hosts run, and since when they all do.

    One that is not accepted in time is followed by another: 516 hosts that check the seals of 516
    members share these cores.
    """
    found: list[tuple[int, float]] = []

    def runs() -> bool:
        found[:] = [
            (number, since)
            for (name, number), (count, since) in fleet.running().items()
            if name == job and number > after and count == hosts
        ]
        return bool(found)

    until(runs, f"{hosts} hosts of {job} run a generation after {after}")
    return max(found)


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
