"""One host says a million job names in a day, and floods events; the ledger's disk is full.

Virtual time; the intake, the decisions and the store are fabric-compute's own. Then another host
is lost, and an operator stops and resumes everything, beside the same in a world without the flood.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.attack.virtual_site import VirtualSite
from bench.detect.cost import rss_mb
from bench.migrate.fleet import Place
from bench.report import Row
from fabric_train.messages.documents import AgentDocument, ProcessState, to_data
from telemetry.broker.guard import MOST_NAMES
from telemetry.broker.interface import MessageFactory
from telemetry.messages.documents import HostEvent, HostJob
from telemetry.messages.envelope import Sender
from telemetry.messages.topics import Kind, Topic

NAMES, QUICK_NAMES = 1_000_000, 100_000
DAY_S, STEP_S, QUICK_STEP_S = 86_400.0, 30.0, 120.0
"""While nothing happens to a host, one cycle has all that was said in so long."""
CYCLE_S = 0.05
"""Between two cycles while a host is in question."""
MOST_CYCLES = 1000
FULL_AT = 0.25
"""The part of the day after which somebody else has filled the disk."""
WARM = 0.05
"""The part of the names after which memory is taken for the first time."""
DISK_BYTES = 64 << 20
JOB, NODES, SPARES, OTHERS = "gpt", 8, 4, 4
FLOODER = "gpu-9999"
HELD = MOST_NAMES - 100
"""Names that it has at a time: below its share, so that no name is refused for that."""
EVENT_BYTES = 7000
TRAINS_S = 10.0
"""So long the job trains before a host of it is lost."""


def places() -> list[Place]:
    """The job's hosts, others, and the one that floods: each probes all others."""
    names = [f"gpu-{number:04}" for number in range(NODES + SPARES + OTHERS)] + [FLOODER]
    mates = tuple(names[: NODES + SPARES])

    def peers(name: str) -> tuple[str, ...]:
        return tuple(other for other in names if other != name)

    return [
        Place(name, JOB, NODES, SPARES, mates, peers(name)) if name in mates
        else Place(name, "", peers=peers(name))
        for name in names
    ]  # fmt: skip


class Flood:
    """What root of one host says: jobs of ever new names and users, and events."""

    def __init__(self, site: VirtualSite) -> None:
        self.said = self.counted = self.events = 0
        self._site = site
        self._factory = MessageFactory(Sender("boot", "flood"))
        self._held: deque[Topic] = deque()

    def names(self, count: int) -> None:
        """``count`` new names; the oldest are cleared, so that there are ``HELD`` at a time."""
        for _ in range(count):
            self.said += 1
            topic = Topic(Kind.HOST_JOB, FLOODER, f"name-{self.said}")
            self.counted += self._site.say(self._factory.make(topic, self._job(topic.name)))
            self._held.append(topic)
            if len(self._held) > HELD:
                self._site.intake.clear(self._held.popleft(), self._site.now)

    def _job(self, name: str) -> dict[str, object]:
        """A job of one host that forms, one that waits for more hosts, or one that has failed."""
        process = ProcessState(f"{FLOODER}/life/{name}", "joined", layout="L")
        document = AgentDocument(
            name, FLOODER, "life", 1 + self.said % 2, 0, 1, "10.9.9.9:1", "10.9.9.9:2", "t",
            [process], failed="x" * 400 if self.said % 3 == 0 else "",
        )  # fmt: skip
        news = HostJob(job=name, incarnation="life", uid=self.said, document=to_data(document))
        return news.model_dump(mode="json")

    def event(self) -> None:
        """One large event."""
        self.events += 1
        event = HostEvent(kind="located", text="x" * 200, fields={"x": "y" * EVENT_BYTES})
        self._site.say(
            self._factory.make(Topic(Kind.HOST_EVENT, FLOODER), event.model_dump(mode="json"))
        )


@dataclass
class Moves:
    """What happened to the ranks of lost hosts."""

    cycles: list[float] = field(default_factory=list)
    """From the last vote until all hosts run the next generation, of each loss."""
    wall_ms: list[float] = field(default_factory=list)
    """Of each of these cycles."""
    stopped_fences: int = 0
    """Fences that were issued while an operator's STOP stood."""
    cycles_to_stop: int = 0


@contextlib.contextmanager
def disk() -> Iterator[Path]:
    """A file system of 64 MB in memory."""
    with tempfile.TemporaryDirectory(prefix="bench-names-") as name:
        size = f"size={DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", name], check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


def fill(directory: Path) -> None:
    """Somebody else's file takes what is left."""
    with contextlib.suppress(OSError), (directory / "others").open("ab", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def names(*, quick: bool) -> list[Row]:
    """All rows."""
    count = QUICK_NAMES if quick else NAMES
    with disk() as directory:
        calm = VirtualSite(directory, places())
        _form(calm)
        usual = _losses(calm, None)
        calm.store.close()
    with disk() as directory:
        site = VirtualSite(directory, places())
        _form(site)
        flood = Flood(site)
        rss = _day(site, flood, count, QUICK_STEP_S if quick else STEP_S, directory)
        free = os.statvfs(directory)
        moves = _losses(site, flood)
        site.store.close()
    return _rows(site, flood, usual, moves, rss, free.f_bavail * free.f_frsize)


def _form(site: VirtualSite) -> None:
    for _ in range(MOST_CYCLES):
        site.now += CYCLE_S
        site.cycle()
        if site.runs(JOB, 1) == NODES + SPARES:
            break
    else:
        raise RuntimeError("the job does not form")
    _train(site, None, Moves())


def _train(site: VirtualSite, flood: Flood | None, moves: Moves) -> None:
    """All hosts say newer steps, once a second."""
    for cycle in range(round(TRAINS_S / CYCLE_S)):
        if cycle % round(1 / CYCLE_S) == 0:
            _step(site)
        _cycle(site, flood, moves)


def _step(site: VirtualSite) -> None:
    for host in site.hosts.values():
        host.step += 100
        host.publish_agent()


def _day(
    site: VirtualSite, flood: Flood, count: int, step_s: float, directory: Path
) -> tuple[float, float]:
    """All names, evenly over a day, and an event a second.

    Returns the memory of this process after ``WARM`` of the names and at the end, in MB.
    """
    began, warm, full = site.now, 0.0, False
    while (passed := site.now - began) < DAY_S:
        site.now += step_s
        flood.names(round(count * (passed + step_s) / DAY_S) - flood.said)
        for _ in range(round(step_s)):
            flood.event()
        _step(site)
        site.cycle()
        if not full and passed >= FULL_AT * DAY_S:
            fill(directory)
            full = True
        if not warm and flood.said >= WARM * count:
            warm = rss_mb(os.getpid())
    return warm, rss_mb(os.getpid())


def _losses(site: VirtualSite, flood: Flood | None) -> Moves:
    """A host is lost; an operator stops everything, and another one is lost; it goes on."""
    moves = Moves()
    _train(site, flood, moves)
    _lose(site, "gpu-0002")
    _move(site, flood, moves, 2)
    _train(site, flood, moves)
    operator = MessageFactory(Sender("boot", "operator"))

    def stop(stopped: bool) -> None:
        said = {"stopped": stopped, "reason": "bench"}
        if not site.say(operator.make(Topic(Kind.STOP), said)):
            raise RuntimeError("the operator's message is refused")
        # As `compute.service` does at the beginning of each cycle.
        site.core.stop(site.intake.stop.stopped, site.intake.stop.reason, site.now)

    stop(True)
    before = len(site.fences)
    _lose(site, "gpu-0003")
    for _ in range(200):
        _cycle(site, flood, moves)
    moves.stopped_fences = len(site.fences) - before
    stop(False)
    _move(site, flood, moves, 3)
    return moves


def _lose(site: VirtualSite, victim: str) -> None:
    site.hosts[victim].freeze()
    for host in site.hosts.values():
        host.lose(victim)


def _move(site: VirtualSite, flood: Flood | None, moves: Moves, generation: int) -> None:
    left = NODES + SPARES - generation + 1
    cycles = 0
    while cycles < MOST_CYCLES and site.runs(JOB, generation) < left:
        _cycle(site, flood, moves)
        cycles += 1
    moves.cycles.append(cycles)


def _cycle(site: VirtualSite, flood: Flood | None, moves: Moves) -> None:
    site.now += CYCLE_S
    if flood is not None:
        flood.names(20)
        flood.event()
    began = time.perf_counter()
    site.cycle()
    moves.wall_ms.append(1e3 * (time.perf_counter() - began))


def _rows(
    site: VirtualSite, flood: Flood, usual: Moves, moves: Moves, rss: tuple[float, float], free: int
) -> list[Row]:
    where = (
        f"{flood.said:,} names said, {flood.counted:,} counted; {flood.events:,} events of "
        f"{EVENT_BYTES} B, {site.not_kept:,} not taken; {free / 1e6:.1f} MB free on the disk"
    )
    return [
        Row("a host is lost → its ranks run on a spare, cycles", usual.cycles[0], moves.cycles[0],
            "cycles", peer=usual.cycles[0], note=where),
        Row("another, when STOP is taken back, cycles", usual.cycles[1], moves.cycles[1], "cycles",
            peer=usual.cycles[1]),
        Row("fences while an operator's STOP stands", 0, moves.stopped_fences, "",
            better="equal", peer=usual.stopped_fences,
            note="a host is lost meanwhile, for 200 cycles"),
        Row("transactions that the disk did not take", 0, site.not_stored, "", better="equal"),
        Row("slowest of these cycles", None, max(moves.wall_ms), "ms", peer=max(usual.wall_ms),
            samples={"ms": sorted(moves.wall_ms)[-20:]}),
        Row("memory after the day, part of that after 5 % of the names", 1.1, rss[1] / rss[0], "",
            note=f"{rss[0]:.1f} MB, then {rss[1]:.1f} MB"),
    ]  # fmt: skip
