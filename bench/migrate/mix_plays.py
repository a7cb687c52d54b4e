"""How each failure of `failure_table` is played in a job over the lab's hosts.

A play strikes and returns at once. ``heal`` is what a site does later: a cable is replaced, a host
is repaired and returns as a spare.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from bench.migrate.hosts import LabJob
from bench.migrate.jobs import RANKS, Job, JobError, cpu_ticks
from bench.migrate.planned import operate
from bench.outage import links_up
from bench.training.trace import Deed, Phase
from lab.cluster import wait_until
from lab.faults.base import Fault
from lab.faults.catalog import BlackHole, Carrier, Flap, LeafDown, NodeFreeze, NodeKill
from lab.node import Node

_LONG_S = 120.0
_STEP_EVERY_S = 0.5
_IDLE_S = 0.2
_IN_A_STEP = [one for one in Phase if one >= Phase.FORWARD]


class MixJob(LabJob):
    """A job whose hosts may all be harmed."""

    def ranks(self) -> dict[int, int]:
        """Pid of each rank."""
        return Job.ranks(self)

    @property
    def has_ended(self) -> bool:
        """Whether no fabric-run is left."""
        return not self.training.running

    def wait_end(self, timeout_s: float) -> None:
        """Wait until the job has ended well on all hosts."""
        try:
            statuses = self.training.wait(timeout_s)
        except TimeoutError as error:
            raise JobError(f"{error}\n{self.log()[-2000:]}") from None
        if set(statuses.values()) != {0}:
            raise JobError(f"fabric-run ended with {statuses}\n{self.log()[-2000:]}")

    @property
    def step(self) -> int:
        """Steps that the rank that is furthest has applied."""
        return max((page.step for page in self.pages().values()), default=0)

    @property
    def generation(self) -> int:
        """The newest one in which a step was applied."""
        return max((page.committed for page in self.pages().values()), default=0)

    def has_reached(self, step: int) -> bool:
        """Whether all ranks have applied ``step`` steps."""
        at = [page.step for page in self.ranked().values()]
        return len(at) >= RANKS and min(at) >= step

    def rest(self, condition: Callable[[], bool], what: str) -> None:
        """Let the job make a step now and then until ``condition`` holds.

        It never stands still: that would look like a rank that is stuck.
        """
        next_at = 0.0

        def slowly() -> bool:
            nonlocal next_at
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + _STEP_EVERY_S
                self.control.allow(self.step + 1)
            return condition()

        self.wait_until(slowly, what, _LONG_S)

    def is_ready(self) -> bool:
        """All rails are up, every host takes part, and a spare is warm and idle."""
        ranked = set(self.ranked())
        spares = [pid for pid in self.pages() if pid not in ranked and self._is_spare(pid)]
        before = {pid: cpu_ticks(pid) for pid in spares}
        time.sleep(_IDLE_S)
        return (
            len(self.training.running) == len(self.training.hosts)
            and len(ranked) == RANKS
            and bool(spares)
            and all(cpu_ticks(pid) == ticks for pid, ticks in before.items())
            and links_up(self.cluster)
        )

    def _is_spare(self, pid: int) -> bool:
        # A process that left its rank by plan is a spare, and has the phase in which it left.
        page = self.pages().get(pid)
        return page is not None and (page.phase is Phase.WARM or pid in self.left)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.left: set[int] = set()
        """Processes whose rank was moved by plan."""


def nothing() -> None:
    """There is nothing to do."""


@dataclass
class Struck:
    """What was done. ``moves``: only another generation resolves it."""

    at_ns: int
    target: str
    moves: bool = True
    heal: Callable[[], None] = nothing
    by_hand: str = ""
    """What a person has to do where nothing happens in time."""
    relieve: Callable[[], None] = field(default=nothing)


Play = Callable[[MixJob, random.Random], Struck]


def _victim(job: MixJob, randoms: random.Random) -> tuple[str, int, Node]:
    """A rank in words, its pid, and its host."""
    ranks = job.ranks()
    rank = randoms.choice(sorted(ranks))
    node = job.node_of(ranks[rank])
    return f"rank {rank} on {node.name}", ranks[rank], node


def _signal(number: int, job: MixJob, randoms: random.Random) -> Struck:
    target, pid, _ = _victim(job, randoms)
    at_ns = time.monotonic_ns()
    os.kill(pid, number)
    return Struck(at_ns, target, relieve=partial(_kill, pid), by_hand="it had to be killed by hand")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _deed(deed: Deed, phase: Phase | None, job: MixJob, randoms: random.Random) -> Struck:
    target, pid, _ = _victim(job, randoms)
    where = phase or randoms.choice(_IN_A_STEP)
    events = job.directory / f"events.{pid}"
    if deed is Deed.RAISE_ALWAYS:
        job.control.crash_rank(int(target.split()[1]), where)
    else:
        job.control.crash(pid, where, deed)
    job.wait_until(lambda: "crash" in events.read_text(), f"{deed.name} of {target}", _LONG_S)
    at_ns = min(one.at_ns for one in job.events().crashes if one.pid == pid)
    return Struck(
        at_ns, f"{target} in {where.name.lower()}", moves=deed is not Deed.CORRUPT,
        relieve=partial(_kill, pid), by_hand="it had to be killed by hand",
    )  # fmt: skip


def _inject(job: MixJob, fault: Fault) -> Callable[[], None]:
    job.cluster.arm(fault)
    fault.start()
    return partial(job.cluster.disarm, fault)


def _rail(make: Callable[[str], Fault], job: MixJob, randoms: random.Random) -> Struck:
    _, _, node = _victim(job, randoms)
    target = f"{node.name}:rail{randoms.randrange(job.cluster.topology.rails)}"
    at_ns = time.monotonic_ns()
    return Struck(at_ns, target, moves=False, heal=_inject(job, make(target)))


def _leaf(job: MixJob, randoms: random.Random) -> Struck:
    target = f"leaf{randoms.randrange(job.cluster.topology.rails)}"
    at_ns = time.monotonic_ns()
    return Struck(at_ns, target, moves=False, heal=_inject(job, LeafDown(target)))


def _host(make: Callable[[str], Fault], job: MixJob, randoms: random.Random) -> Struck:
    """A host, or its whole network, is gone; later it is repaired and is a spare."""
    _, _, node = _victim(job, randoms)
    at_ns = time.monotonic_ns()
    end = _inject(job, make(node.name))

    def heal() -> None:
        end()
        _join(job, node)

    return Struck(at_ns, node.name, heal=heal)


def _join(job: MixJob, node: Node) -> None:
    """Start fabric-run on a host anew, once the old one has ended."""
    wait_until(lambda: node.name not in job.training.running, _LONG_S, f"{node.name} ends its run")
    wait_until(lambda: node.daemon is not None and node.daemon.running, _LONG_S, "fabricd")
    job.training.start_on(node)


def _run_killed(job: MixJob, randoms: random.Random) -> Struck:
    _, _, node = _victim(job, randoms)
    at_ns = time.monotonic_ns()
    job.training.run_of(node.name).kill()
    return Struck(at_ns, f"fabric-run of {node.name}", heal=partial(_join, job, node))


def _drain(job: MixJob, randoms: random.Random) -> Struck:
    _, pid, node = _victim(job, randoms)
    at_ns = time.monotonic_ns()
    operate(job, "drain", node.name)

    def heal() -> None:
        operate(job, "undrain", node.name)
        job.left.add(pid)

    return Struck(at_ns, node.name, heal=heal)


def _broker(job: MixJob, _randoms: random.Random) -> Struck:
    broker = job.management.broker
    assert broker is not None
    at_ns = time.monotonic_ns()
    broker.stop()
    return Struck(at_ns, "broker", moves=False, heal=broker.start)


PLAYS: Mapping[str, Play] = {
    "SIGKILL": partial(_signal, signal.SIGKILL),
    "abort": partial(_deed, Deed.ABORT, None),
    "exception": partial(_deed, Deed.RAISE, None),
    "exception at every attempt": partial(_deed, Deed.RAISE_ALWAYS, None),
    "stopped": partial(_signal, signal.SIGSTOP),
    "stuck in its loop": partial(_deed, Deed.STICK, None),
    "wrong gradient": partial(_deed, Deed.CORRUPT, Phase.GATE),
    "wrong parameter": partial(_deed, Deed.CORRUPT, Phase.BETWEEN),
    "carrier": partial(_rail, Carrier),
    "black hole": partial(_rail, BlackHole),
    "flap": partial(_rail, lambda target: Flap(target, 400, 8)),
    "switch of a rail": _leaf,
    "all rails of a host": partial(_host, BlackHole),
    "host without power": partial(_host, NodeKill),
    "host frozen": partial(_host, NodeFreeze),
    "fabric-run killed": _run_killed,
    "drain": _drain,
    "broker away": _broker,
}
