"""All attacks of a host's local users at once, on a real daemon in the lab, and cables pulled.

Two users: one without groups (metrics port, stats directory, probe port, job socket), and one of
the group that may ask (control connections, timelines). The peer is the same host before. The
attackers yield the CPU to everybody (nice 19): a core is anybody's to burn, and it is fabricd that
is asked.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.detect.cost import rss_mb
from bench.detect.live_lab import DAMPING, HOLD, STEER, Struck, strike
from bench.detect.live_pages import PageWatch
from bench.outage import links_up
from bench.report import Row, percentile
from fabricd.cli import client
from lab.cluster import Cluster, wait_until
from lab.faults.catalog import Carrier
from lab.node import Node
from telemetry.events import Event, EventKind, LinkState
from telemetry.timeline import Timeline

ASKED_MS, ASKED_MB, ASKED_COMMAND_S = 50.0, 120.0, 1.0
PULLS, ATTACK_S, CALM_S, QUICK_S = 30, 60.0, 60.0, 20.0
PULLED = ("h0:rail0", "h0:rail1", "h0:rail2")
DRAINED = "rail4"
"""An operator takes it out and back meanwhile."""
RAILS = 5
NOBODY, NOGROUP = "65534", "65534"
READER, READ_GROUP, READ_GID = "2", "games", "60"
"""A user of the group that may ask; the group is of every Debian, and nobody's."""
PAGES, NAMES = 4096, 400_000
ROWS = 120_000
"""Of the timeline, as it has after some weeks."""
METRICS_PORT, PROBE_PORT, BROKER_PORT = 19200, 9200, 1883
COMMANDS = (("status",), ("links",), ("drain", DRAINED), ("undrain", DRAINED))
BETWEEN_S = 1.0
ASK_S = 0.1
"""Between two questions on the control socket."""
LIMIT_S = 30.0
"""A command that takes longer has failed."""


@dataclass
class Seen:
    """What a while was like."""

    struck: list[Struck] = field(default_factory=list)
    commands_s: list[tuple[str, float]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)
    """To ``status``, asked by root, without the start of a process."""
    rss_mb: list[float] = field(default_factory=list)
    alive: bool = True

    def took_ms(self) -> list[float]:
        """Of each pull: to DOWN on the page; one that the page does not say lasts for ever."""
        return [float("inf") if ms is None else ms for _, _, ms in self.struck]

    def longest_s(self) -> float:
        """Of all commands."""
        return max((seconds for _, seconds in self.commands_s), default=float("inf"))


def local(*, quick: bool) -> list[Row]:
    """All rows."""
    with Cluster("bench-local", hosts=2, rails=RAILS) as lab, ExitStack() as stack:
        node = lab.nodes[0]
        _prepare(node, stack)
        tables: dict[str, Any] = {
            "hold": HOLD, "damping": DAMPING, "steer": STEER,
            "broker": {"host": "127.0.0.1", "port": BROKER_PORT},
            "control": {"read_group": READ_GROUP},
        }  # fmt: skip
        for one in lab.nodes:
            one.start_prober(restart=False)
            one.start_daemon(restart=False, **tables)
        wait_until(lambda: links_up(lab), 30, "all links UP")
        watch = stack.enter_context(PageWatch(lab))
        calm = _watched(lab, watch, QUICK_S if quick else CALM_S)
        with _attacks(node) as counts:
            hostile = _watched(lab, watch, QUICK_S if quick else ATTACK_S)
        note = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
    return _rows(calm, hostile, note)


def _prepare(node: Node, stack: ExitStack) -> None:
    """A file system for stats pages, a timeline of some weeks, and a broker."""
    stats = node.run_dir / "stats"
    options = f"mode=1733,nr_inodes={NAMES + 10_000}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", stats], check=True)
    stack.callback(subprocess.run, ["umount", "--lazy", str(stats)], check=True)
    now = time.time_ns()
    with Timeline(node.state_dir / "timeline.db", host=node.name) as timeline:
        for first in range(0, ROWS, 10_000):
            timeline.append(
                [
                    Event(
                        EventKind.LINK_STATE, now, number + 1, link=f"rail{number % RAILS}",
                        rail=number % RAILS, from_state=LinkState.UP, to_state=LinkState.SUSPECT,
                        reason="of some weeks before",
                    )
                    for number in range(first, first + 10_000)
                ]
            )  # fmt: skip
    program = shutil.which("mosquitto")
    if program is None:
        raise RuntimeError("mosquitto is missing: lab/packages/base.txt")
    config = node.dir / "mosquitto.conf"
    config.write_text(f"listener {BROKER_PORT} 127.0.0.1\nallow_anonymous true\nuser root\n")
    broker = node.popen([program, "-c", config], stderr=subprocess.DEVNULL)
    stack.callback(broker.wait)
    stack.callback(broker.terminate)


@contextmanager
def _attacks(node: Node) -> Iterator[dict[str, int]]:
    """All of them, from when each is at work. What they did is there behind the block."""
    addresses = [node.address(rail) for rail in range(RAILS)]
    nobody, reader = (NOBODY, NOGROUP), (READER, READ_GID)
    words = [
        ("pages", *nobody, str(node.run_dir / "stats"), str(PAGES), str(NAMES)),
        ("metrics", *nobody, str(METRICS_PORT)),
        ("squat", *nobody, str(PROBE_PORT), *addresses),
        ("jobs", *nobody, str(node.run_dir / "jobs.sock")),
        ("control", *reader, str(node.run_dir / "ctl.sock")),
        ("timelines", *reader, str(node.run_dir / "ctl.sock")),
    ]
    counts: dict[str, int] = {}
    with ExitStack() as stack:
        processes = []
        for one in words:
            process = node.popen(
                ["nice", "-n", "19", sys.executable, "-m", "bench.attack.local_attackers", *one],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        for (name, *_), process in zip(words, processes, strict=True):
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"an attack has not begun: {name}")
        yield counts
        for process in processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            counts |= json.loads(process.stdout.readline())


def _watched(lab: Cluster, watch: PageWatch, seconds: float) -> Seen:
    """Cables are pulled for ``seconds``, ``PULLS`` times at least; root gives its commands."""
    node, seen, over = lab.nodes[0], Seen(), threading.Event()
    assert node.daemon is not None
    pid = node.daemon.pid
    assert pid is not None
    threads = [
        threading.Thread(target=work, args=(node, pid, seen, over))
        for work in (_memory, _commands, _answers)
    ]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(seen.struck) < PULLS:
            number = len(seen.struck)
            seen.struck += strike(lab, watch, PULLED, Carrier, 3, lasts_s=0.1, seed=number)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    seen.alive = node.daemon.pid == pid and _is_there(node)
    return seen


def _memory(node: Node, pid: int, seen: Seen, over: threading.Event) -> None:  # noqa: ARG001
    while not over.wait(0.1):
        try:
            seen.rss_mb.append(rss_mb(pid))
        except FileNotFoundError:
            return


def _commands(node: Node, pid: int, seen: Seen, over: threading.Event) -> None:  # noqa: ARG001
    turn = 0
    while not over.wait(BETWEEN_S):
        words = COMMANDS[turn % len(COMMANDS)]
        turn += 1
        began = time.monotonic()
        try:
            command = [sys.executable, "-m", "fabricd.cli", *words]
            command += ["--socket", str(node.run_dir / "ctl.sock")]
            done = node.run(command, check=False, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            seen.failed.append(f"{words[0]}: over {LIMIT_S:g} s")
        else:
            if done.returncode:
                seen.failed.append(f"{words[0]}: {done.stderr.strip()[-80:]}")
        seen.commands_s.append((words[0], time.monotonic() - began))


def _answers(node: Node, pid: int, seen: Seen, over: threading.Event) -> None:  # noqa: ARG001
    while not over.wait(ASK_S):
        began = time.monotonic()
        if not _is_there(node):
            seen.failed.append("status: no answer")
        seen.answers_s.append(time.monotonic() - began)


def _is_there(node: Node) -> bool:
    try:
        return bool(client.request(node.run_dir / "ctl.sock", {"op": "status"}, limit_s=LIMIT_S))
    except (client.DaemonError, OSError):
        return False


def _rows(calm: Seen, hostile: Seen, note: str) -> list[Row]:
    def both(of: Callable[[Seen], float]) -> tuple[float, float]:
        return of(hostile), of(calm)

    p99, calm_p99 = both(lambda seen: percentile(seen.took_ms(), 0.99))
    memory, calm_memory = both(lambda seen: max(seen.rss_mb))
    longest, calm_longest = both(Seen.longest_s)
    answer, calm_answer = both(lambda seen: max(seen.answers_s))
    missed = sum(ms is None for _, _, ms in hostile.struck)
    failed = "; ".join(sorted(set(hostile.failed))[:3])
    if calm.failed:
        failed += "; calm: " + "; ".join(sorted(set(calm.failed))[:3])
    return [
        Row("all local attacks: carrier down → steer page, p99", ASKED_MS, p99, "ms",
            peer=calm_p99, note=f"{len(hostile.struck)} pulls, {missed} not seen; {note}",
            samples={"ms": [ms for _, _, ms in hostile.struck if ms is not None]}),
        Row("all local attacks: the daemon lives", 1, float(hostile.alive), "", better="equal",
            peer=float(calm.alive)),
        Row("all local attacks: memory of the daemon, the most", ASKED_MB, memory, "MB",
            peer=calm_memory),
        Row("all local attacks: root's commands, the longest", ASKED_COMMAND_S, longest, "s",
            peer=calm_longest, note=f"{len(hostile.commands_s)} of status, links, drain, undrain, "
            "a process each",
            samples={"s": [seconds for _, seconds in hostile.commands_s]}),
        Row("all local attacks: status on the control socket, the longest", ASKED_COMMAND_S, answer,
            "s", peer=calm_answer, note=f"{len(hostile.answers_s)} times, without a process"),
        Row("all local attacks: root's commands that failed", 0, len(hostile.failed), "",
            better="equal", peer=len(calm.failed), note=failed),
    ]  # fmt: skip
