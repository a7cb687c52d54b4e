"""Ranks killed at random moments, and ranks that end by an exception, of a job on this machine.

Each figure is from what the processes recorded (``bench.training.trace``): the fault's own time,
and each rank's first commit in a later generation. What has to be exact is compared with a second
run of the same job that nobody disturbs. FABRIC_TRAIN_BACKEND=plugin measures over the plugin.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

from bench.migrate import takeovers
from bench.migrate.events import Events, Resumed, merge_steps, wrong_samples, wrong_states
from bench.migrate.jobs import RANKS, Job, run_job, standalone
from bench.migrate.takeovers import Play, Strike
from bench.report import Row, percentile
from bench.training.samples import samples_of
from bench.training.trace import UNLIMITED, Phase
from fabric_train.groups import backend

Start = Callable[..., AbstractContextManager[Job]]
"""Called with ``steps``, ``spares`` and the steps after which each rank hashes its state."""

WHERE = f"4 ranks, 52 MB of state, {backend.chosen(os.environ)}, one machine"


@dataclass(frozen=True)
class Measured:
    """One disturbed job, and how it differs from the undisturbed one."""

    play: Play
    events: Events
    found: list[Resumed]
    wrong: list[tuple[int, int]]
    dropped: int
    doubled: int
    log: str

    def pauses_ms(self) -> list[float]:
        """From each fault to the next commit on all ranks."""
        pairs = zip(self.found, self.play.faults, strict=True)
        return [(after.at_ns - fault.at_ns) / 1e6 for after, fault in pairs]

    def by_phase(self) -> dict[str, list[float]]:
        """The same, by the phase that the fault hit."""
        taken: dict[str, list[float]] = {}
        for fault, pause in zip(self.play.faults, self.pauses_ms(), strict=True):
            taken.setdefault(fault.phase.name.lower(), []).append(pause)
        return {phase.name.lower(): taken[phase.name.lower()] for phase in Phase
                if phase.name.lower() in taken}  # fmt: skip


def start_here(
    *, steps: int, spares: int, hashed: Sequence[int] = ()
) -> AbstractContextManager[Job]:
    """A job of this machine alone."""
    return run_job(standalone(steps, spares=spares, hashed=hashed))


def measure(
    strike: Strike, count: int, seed: int, start: Start = start_here, *, spares: int = 1
) -> Measured:
    """Strike ``count`` times in one job; then run the same job undisturbed."""
    steps = count * takeovers.STEPS_PER_FAULT + 30
    with start(steps=steps, spares=spares) as job:
        play = takeovers.play(job, strike, count, seed, spares)
        events, log = job.events(), job.log()
    with start(steps=steps, spares=0, hashed=merge_steps([events])) as job:
        job.control.allow(UNLIMITED)
        job.wait_end(1200)
        reference = job.events()
    expected = {
        (rank, step): samples_of(step, rank, play.world)
        for rank in range(play.world)
        for step in range(steps)
    }
    if wrong_samples(reference, expected) != (0, 0):
        raise ValueError("the undisturbed job did not take the samples in their order")
    dropped, doubled = wrong_samples(events, expected)
    found = takeovers.recoveries(play, events)
    return Measured(play, events, found, wrong_states(events, reference), dropped, doubled, log)


def kills(*, quick: bool) -> list[Row]:
    """SIGKILL, uniformly in time."""
    count = 10 if quick else 100
    got = measure(takeovers.kill, count, seed=27)
    pauses = got.pauses_ms()
    same = takeovers.exact(got.found, got.events, got.wrong)
    final = max(step for _, step in got.events.states)
    ends = sum((rank, final) not in got.wrong for rank in range(RANKS))
    memory = takeovers.memory_mb(got.play)
    agent, rank = (takeovers.growth_mb(memory[name]) for name in ("fabric-run", "rank"))
    what = "rank killed at a random moment → next commit on all ranks"
    return [
        Row(f"{what}, median", 500, median(pauses), "ms", note=_about(got), samples=got.by_phase()),
        Row(f"{what}, p99", 1200, percentile(pauses, 0.99), "ms", note=_spans(got.log)),
        Row(f"{what}, the slowest of {count}", None, max(pauses), "ms"),
        Row("steps lost", 0, sum(one.lost_steps for one in got.found), "", better="equal"),
        Row(
            "batches dropped or doubled", 0, got.dropped + got.doubled, "", better="equal",
            note=f"{len(got.events.draws)} attempts of {RANKS} ranks",
        ),
        Row(
            "takeovers with the state of an undisturbed job, all ranks", count, same, "",
            better="equal", note="SHA-256 of weights, buffers, optimizer state and learning rate",
        ),
        Row(
            "ranks with the final state of an undisturbed job", RANKS, ends, "", better="equal",
            note=f"after {final} steps",
        ),
        Row(
            f"growth of fabric-run over the last three quarters of {count} takeovers", None, agent,
            "MB", samples=memory,
            note=f"of {memory['fabric-run'][-1]:.0f} MB; the rank that lived longest: "
            f"{rank:.1f} of {memory['rank'][-1]:.0f} MB in three quarters of "
            f"{len(memory['rank']) - 1} takeovers",
        ),
    ]  # fmt: skip


def crashes(*, quick: bool) -> list[Row]:
    """An exception in the loop of a rank."""
    count = 5 if quick else 30
    got = measure(takeovers.crash, count, seed=28)
    same = takeovers.exact(got.found, got.events, got.wrong)
    what = "rank ends by an exception → next commit on all ranks"
    pauses = got.pauses_ms()
    return [
        Row(f"{what}, median", 500, median(pauses), "ms", note=_about(got), samples=got.by_phase()),
        Row(f"{what}, the slowest of {count}", None, max(pauses), "ms", note=_spans(got.log)),
        Row(
            "crashes with the state of an undisturbed job, all ranks", count, same, "",
            better="equal",
            note=f"steps lost {sum(one.lost_steps for one in got.found)}, batches dropped or "
            f"doubled {got.dropped + got.doubled}",
        ),
    ]  # fmt: skip


def _about(got: Measured) -> str:
    hit = ", ".join(f"{name} {len(some)}" for name, some in got.by_phase().items())
    return f"{WHERE}; a step takes {got.play.step_s * 1e3:.0f} ms; hit: {hit}"


_SPANS = re.compile(r"p\d+ (copy|keep|apply): \{(.*)\}")


def _spans(log: str) -> str:
    """Medians of what the processes report of their recoveries, as text; empty without any."""
    found: dict[str, list[float]] = {}
    for _, spans in _SPANS.findall(log):
        for name, value in re.findall(r"'(\w+)': ([\d.]+)", spans):
            found.setdefault(name, []).append(float(value))
    parts = [f"{name} {median(some):.0f}" for name, some in found.items()]
    return f"median ms since a process heard of it: {', '.join(parts)}" if parts else ""
