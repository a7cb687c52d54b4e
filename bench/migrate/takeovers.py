"""Plays faults into a running job, one after another, each at a random moment of a step.

Between two faults the ranks wait at a step boundary until a spare is warm, so that its imports do
not share the CPU with what is measured. The job may run anywhere: a scenario sees its directory
and the pids of its processes.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.migrate.events import Commit, Events, Resumed, resumed
from bench.migrate.jobs import Job, resident_mb
from bench.training.trace import UNLIMITED, Phase, read_page

_RECOVERY_S = 60.0
STEPS_PER_FAULT = 10
"""Steps that a job takes for each fault, at most."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happened to one rank. ``phase``: where it was in its step."""

    at_ns: int
    rank: int
    phase: Phase


@dataclass
class Play:
    """Faults of one job, and resident memory by pid before the first and after each, in MB.

    ``launcher`` is the pid of fabric-run.
    """

    launcher: int
    world: int
    step_s: float
    faults: list[Fault] = field(default_factory=list)
    memory_mb: list[dict[int, float]] = field(default_factory=list)


Strike = Callable[[Job, int, random.Random], Fault]
"""Harms the process of this pid."""


def kill(job: Job, pid: int, _random: random.Random) -> Fault:
    """SIGKILL at once."""
    at_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    page = read_page(job.directory, pid)
    assert page is not None
    return Fault(at_ns, page.rank, page.phase)


def kill_neighbours(job: Job, pid: int, random: random.Random) -> Fault:
    """SIGKILL to this rank and the next one, which keeps the shards of this one."""
    fault = kill(job, pid, random)
    os.kill(job.ranks()[(fault.rank + 1) % job.world], signal.SIGKILL)
    return fault


def crash(job: Job, pid: int, random: random.Random) -> Fault:
    """An exception in the loop, at the beginning of any part of a step."""
    phase = random.choice([one for one in Phase if one >= Phase.FORWARD])
    job.control.crash(pid, phase)

    def crashed() -> bool:  # a cheap look, for it is repeated beside what is measured
        return "crash" in (job.directory / f"events.{pid}").read_text()

    job.wait_until(crashed, f"an exception in {phase.name}", _RECOVERY_S)
    (event,) = (one for one in job.events().crashes if one.pid == pid)
    return Fault(event.at_ns, event.rank, phase)


def play(job: Job, strike: Strike, count: int, seed: int, spares: int = 1) -> Play:
    """Strike ``count`` times, any rank but one, then let the job run to its end.

    Each strike waits until ``spares`` are warm.
    The rank that is spared shows whether a process that lives through all recoveries grows. It is
    rank 0 in the first half, and the last one then.
    """
    randoms = random.Random(seed)
    job.control.allow(UNLIMITED)
    job.wait_running(1)
    begun, first = time.monotonic(), _steps(job)
    job.wait_running(10)
    step_s = (time.monotonic() - begun) / (_steps(job) - first)
    played = Play(job.launcher.pid, job.world, step_s)
    job.pause()
    for index in range(count):
        job.wait_spares(spares)
        played.memory_mb.append(_memory(job))
        job.control.allow(UNLIMITED)
        job.wait_running(2)
        time.sleep(randoms.uniform(0, step_s))
        ranks = job.ranks()
        generation = max(page.committed for page in job.pages().values())
        victims = sorted(ranks)[1:] if index < count / 2 else sorted(ranks)[:-1]
        played.faults.append(strike(job, ranks[randoms.choice(victims)], randoms))
        job.wait_committed(generation)
        job.pause()
    job.wait_spares(spares)
    played.memory_mb.append(_memory(job))
    job.control.allow(UNLIMITED)
    job.wait_end(600)
    return played


def recoveries(played: Play, events: Events) -> list[Resumed]:
    """What came after each fault. Raises ``ValueError`` where a rank never committed again."""
    found = []
    for number, fault in enumerate(played.faults):
        until = played.faults[number + 1].at_ns if number + 1 < len(played.faults) else None
        seen = Events(
            commits=[one for one in events.commits if until is None or one.at_ns < until],
            draws=[one for one in events.draws if until is None or one.at_ns < until],
        )
        after = resumed(seen, fault.at_ns, played.world)
        if after is None:
            raise ValueError(f"fault {number} (rank {fault.rank}): not all ranks committed again")
        found.append(after)
    return found


def exact(found: Sequence[Resumed], events: Events, wrong: Sequence[tuple[int, int]]) -> int:
    """Recoveries after which every rank's first state is as undisturbed. Pure."""
    first: dict[int, dict[int, Commit]] = {}
    for commit in events.commits:
        first.setdefault(commit.generation, {}).setdefault(commit.rank, commit)
    bad = set(wrong)
    keys = ([(one.rank, one.step) for one in first[after.generation].values()] for after in found)
    return sum(all(key in events.states and key not in bad for key in some) for some in keys)


def memory_mb(played: Play) -> dict[str, list[float]]:
    """Resident memory before the first and after each fault, of those that lived through most."""
    by_pid: dict[int, list[float]] = {}
    for one in played.memory_mb:
        for pid, size in one.items():
            by_pid.setdefault(pid, []).append(size)
    agent = by_pid.pop(played.launcher)
    return {"fabric-run": agent, "rank": max(by_pid.values(), key=len)}


def growth_mb(series: Sequence[float]) -> float:
    """MB gained since the first quarter: what is used for the first time is allocated by then."""
    return series[-1] - series[len(series) // 4]


def _steps(job: Job) -> int:
    return max(page.step for page in job.pages().values())


def _memory(job: Job) -> dict[int, float]:
    # A rank that was taken over may end meanwhile.
    return {pid: resident_mb(pid) for pid in [*job.ranked(), job.launcher.pid]}
