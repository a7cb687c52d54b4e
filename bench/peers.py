"""What a site's list of peers costs: ``config check``, start, reload, and who waits meanwhile.

CPU is counted, not time: the machine may be busy. The cost of 2,048 peers stands beside the cost of
256. Each figure of a process is less what the same process takes with the lab's own peer alone.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import Row
from fabricd.cli import client
from fabricd.steer.page import PageError, decode
from lab.cluster import Cluster, wait_until
from lab.inputs.peer_list import peer_list, peer_table
from lab.node import REPO, Node

HOSTS, FEW, RAILS = 2048, 256, 8
ASKED_CPU_S = 1.0
ASKED_LATE_MS = 200.0
ASKED_ANSWER_S = 1.0
PERIOD_MS = 500.0
"""Of the heartbeat: `fabricd.daemon.TICK_S`."""
READY_S = 60.0
IDLE_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Reload(NamedTuple):
    """One reload as others saw it."""

    cpu_s: float
    late_ms: float
    answer_s: float


def run(*, quick: bool) -> list[Row]:
    """All rows; five reloads each, three with ``quick``."""
    rounds = 3 if quick else 5
    with Cluster("bench-peers", hosts=2, rails=RAILS) as lab:
        lab.start_daemons()
        node = lab.nodes[0]
        wait_until(lambda: _answers(node), READY_S, "the daemon answers")
        base = node.config_path.read_text()
        check = {n: _check(node, base + peer_list(n), rounds) for n in (0, FEW, HOSTS)}
        start = {n: _start(node, base + peer_list(n), rounds) for n in (0, FEW, HOSTS)}
        few = _reloads(node, base, FEW, rounds)
        many = _reloads(node, base, HOSTS, rounds)
        watched = _watched(node, base, rounds)
        toml_s = _cpu(lambda: tomllib.loads(base + peer_list(HOSTS)))
    every = [*many, *watched]
    note = f"{HOSTS} peers with {RAILS} addresses; {rounds} rounds"
    return [
        _cpu_row("config check", check[HOSTS], check[0], check[FEW], note),
        _cpu_row("start", start[HOSTS], start[0], start[FEW], note),
        _cpu_row("reload", _cpus(many), [0.0], _cpus(few), note),
        _cpu_row("reload of a changed peers_file", _cpus(watched), [0.0], _cpus(few), note),
        Row(
            "reload: heartbeat of the steer page late by at most", ASKED_LATE_MS,
            max(x.late_ms for x in every), "ms", peer=max(x.late_ms for x in few),
            note=f"over its period of {PERIOD_MS:g} ms",
            samples={"late_ms": [round(x.late_ms, 1) for x in every]},
        ),
        Row(
            "reload: longest answer of the control socket", ASKED_ANSWER_S,
            max(x.answer_s for x in every), "s", peer=max(x.answer_s for x in few),
            note="status, asked every 20 ms",
            samples={"answer_s": [round(x.answer_s, 3) for x in every]},
        ),
        Row("tomllib alone, CPU", None, toml_s, "s", note="part of each of them"),
    ]  # fmt: skip


def _cpu_row(name: str, many: list[float], base: list[float], few: list[float], note: str) -> Row:
    """The median over the least of the ``base``; the peer is the same with few hosts."""
    less = min(base)
    if less:
        note += f"; {less:.2f} s for the program itself are left out"
    return Row(
        f"{name}: CPU", ASKED_CPU_S, max(0.0, statistics.median(many) - less), "s",
        peer=max(0.001, statistics.median(few) - less), note=f"{note}; beside {FEW} peers",
        samples={"cpu_s": [round(each, 3) for each in many]},
    )  # fmt: skip


def _cpus(reloads: list[Reload]) -> list[float]:
    return [x.cpu_s for x in reloads]


def _cpu(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def _check(node: Node, text: str, rounds: int) -> list[float]:
    """CPU of ``fabricctl config check``, a process each."""
    file = node.dir / "check.toml"
    file.write_text(text)
    out = []
    for _ in range(rounds):
        command = [sys.executable, "-m", "fabricd.cli", "config", "check", str(file)]
        process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"config check ended with {process.returncode}")
        out.append(used.ru_utime + used.ru_stime)
    return out


def _start(node: Node, text: str, rounds: int) -> list[float]:
    """CPU of the daemon from its beginning to its first answer."""
    out = []
    for _ in range(rounds):
        node.config_path.write_text(text)
        pid = node.restart_daemon()
        wait_until(lambda: _answers(node), READY_S, "the daemon answers")
        out.append(_used_s(pid))
    return out


def _reloads(node: Node, base: str, hosts: int, rounds: int) -> list[Reload]:
    """Reloads with one host changed each time; the first adds all of them."""
    node.config_path.write_text(base)
    _ask(node, "reload")
    out = []
    for number in range(rounds):
        text = base + peer_list(hosts - 1, first=1) + peer_table(0, shift=number * 2 * HOSTS)
        out.append(_measure(node, lambda t=text: node.config_path.write_text(t), reload=True))  # type: ignore[misc]
    return out


def _watched(node: Node, base: str, rounds: int) -> list[Reload]:
    """Reloads that nobody asked for: the file is replaced."""
    shared = node.dir / "peers.toml"
    shared.write_text(peer_list(HOSTS))
    named = base.replace("[paths]\n", f'[paths]\npeers_file = "{shared}"\n', 1)
    node.config_path.write_text(named)
    _ask(node, "reload")
    out = []
    for number in range(rounds):
        text = peer_list(HOSTS - 1, first=1) + peer_table(0, shift=(number + 1) * 2 * HOSTS)
        out.append(_measure(node, lambda t=text: _replace(shared, t), reload=False))  # type: ignore[misc]
    return out


def _replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def _measure(node: Node, change: Callable[[], object], *, reload: bool) -> Reload:
    """Change the files and wait for the reload, with a witness of page and socket."""
    pid = node.daemon.pid if node.daemon is not None else None
    if pid is None:
        raise RuntimeError("the daemon does not run")
    before = _ask(node, "status")["config"]["reloads"]
    with _Witness(node) as witness:
        idle = _rate(pid, IDLE_S)
        change()
        began, used = time.monotonic(), _used_s(pid)
        if reload:
            _ask(node, "reload")
        wait_until(lambda: witness.reloads > before, READY_S, "the reload")
        time.sleep(1.0)  # what follows it
        cpu = _used_s(pid) - used - idle * (time.monotonic() - began)
    return Reload(cpu, max(0.0, witness.longest_ms - PERIOD_MS), witness.answer_s)


def _rate(pid: int, seconds: float) -> float:
    """CPU seconds a second, with the witness beside it."""
    began, used = time.monotonic(), _used_s(pid)
    time.sleep(seconds)
    return (_used_s(pid) - used) / (time.monotonic() - began)


def _used_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _ask(node: Node, op: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.request(node.run_dir / "ctl.sock", {"op": op}, limit_s=60)
    return answer


def _answers(node: Node) -> bool:
    try:
        return bool(_ask(node, "status"))
    except (client.DaemonError, OSError):
        return False


class _Witness:
    """Reads the steer page every 2 ms and asks for the status every 20 ms, in threads.

    Attributes:
        longest_ms: between two heartbeats, by the times that they have themselves.
        answer_s: the longest time that an answer took.
        reloads: as the daemon counts them.
    """

    def __init__(self, node: Node) -> None:
        self.longest_ms = self.answer_s = 0.0
        self.reloads = 0
        self._node = node
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._page, self._socket)]

    def __enter__(self) -> _Witness:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _page(self) -> None:
        last = 0
        while not self._stop.wait(0.002):
            try:
                beat = decode((self._node.run_dir / "steer").read_bytes()).heartbeat_ns
            except PageError:
                continue  # It is being written.
            if last and beat != last:
                self.longest_ms = max(self.longest_ms, (beat - last) / 1e6)
            last = beat

    def _socket(self) -> None:
        while not self._stop.wait(0.02):
            began = time.monotonic()
            answer = client.request(self._node.run_dir / "ctl.sock", {"op": "status"}, limit_s=60)
            self.answer_s = max(self.answer_s, time.monotonic() - began)
            self.reloads = answer["config"]["reloads"]
