"""A mix of failures, drawn by a published table, of jobs over the lab's hosts and rails.

Four hosts with two spares train over the plugin on two rails. One failure follows another in the
same job, as soon as a spare is warm and all rails are up. A job that a failure has ended or spoiled
is followed by another one. What has to come out is what comes out of the same job undisturbed.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bench.migrate import hosts, mix_outcome
from bench.migrate.events import Events, merge_steps
from bench.migrate.failure_table import SPOILS, Drawn, draw
from bench.migrate.jobs import REPO, JobError, run_job, standalone
from bench.migrate.mix_outcome import Course, Played
from bench.migrate.mix_plays import PLAYS, MixJob
from bench.report import Row
from bench.training.trace import UNLIMITED
from lab.services.management import Management, ledger_command

SEED = 405
FAILURES = 48
QUICK = 4
MOST_STEPS = 900  # of a job
_EACH, _LEFT = 40, 70  # steps of a failure, and that a job has to have left for another one
_HASH_EVERY = 8
_AFTER = 10  # steps of all ranks with a failure in force, and again once it is healed
_LEAST_S = 3.0  # so long a failure is in force that moves no rank
_RESOLVE_S = 45.0
_LEDGER_S = 20.0
_HANG_S = 10.0  # no rank does anything alone for so long
_POLICY = {"away_s": 0.8}  # the lab's: faults come much faster than in life
_ENV = {
    "BENCH_WIDTH": "512",  # the bits are compared, not the time of a copy
    "FABRIC_TRAIN_BACKEND": "plugin",
    "FABRIC_TRAIN_HANG_S": f"{_HANG_S:g}",
    "NCCL_NET_PLUGIN": str(REPO / "build" / "release" / "nccl_plugin" / "libnccl-net-fabric.so"),
}
WHERE = "4 hosts and two spares, 2 rails, 8 MB of state, the plugin, two cores for everything"


def mix(*, quick: bool) -> list[Row]:
    """Draw the failures, play them, and compare with a job that nobody disturbs."""
    seed = int(os.environ.get("BENCH_MIX_SEED", str(SEED)))
    count = int(os.environ.get("BENCH_MIX_FAILURES", str(QUICK if quick else FAILURES)))
    drawn = draw(count, seed)
    _say(f"{count} failures, seed {seed}")
    courses: list[Course] = []
    left, most = drawn, 0
    while left:
        steps = min(MOST_STEPS, _EACH * len(left) + 2 * _LEFT)
        courses.append(_one_job(left, steps, random.Random(seed + len(left))))
        left, most = left[len(courses[-1].played) :], max(most, steps)
    reference = _undisturbed(most, [course.events for course in courses])
    found = [one for course in courses for one in mix_outcome.outcomes(course, reference)]
    for one in found:
        if one.misses:
            _say(f"missed: {one.sentence}")
    return mix_outcome.rows(found, seed, WHERE)


def _one_job(left: list[Drawn], steps: int, randoms: random.Random) -> Course:
    """Play failures in one job until it has few steps left, or is ended or spoiled by one."""
    played: list[Played] = []
    rails = {"NCCL_SOCKET_IFNAME": "rail0,rail1"}
    hashed = range(_HASH_EVERY, steps, _HASH_EVERY)
    with hosts.lab_job(
        steps=steps, env={**_ENV, **rails}, kind=MixJob, hashed=hashed, spares=2, policy=_POLICY
    ) as job:
        assert isinstance(job, MixJob)
        job.control.allow(UNLIMITED)
        job.wait_running(5)
        job.rest(job.is_ready, "warm spares, and all rails up")
        sound = True
        while sound and len(played) < len(left) and job.step < steps - _LEFT:
            one, sound = _play(job, left[len(played)], randoms)
            played.append(one)
            sound = sound and _comes_well(
                job, played, lambda: job.rest(job.is_ready, "a warm spare")
            )
        if sound:
            job.control.allow(UNLIMITED)
            _comes_well(job, played, lambda: job.wait_end(600))
        ledger_command(job.management, "verify")
        return Course(played, job.events())


def _comes_well(job: MixJob, played: list[Played], wait: Callable[[], None]) -> bool:
    """Whether the job is as before; else the failure before has a miss more."""
    try:
        wait()
    except (JobError, TimeoutError) as error:
        why = _last_words(job) if job.has_ended else str(error).partition("\n")[0]
        played[-1] = replace(played[-1], ended=f"later, with: {why}")
        _say(f"#{played[-1].drawn.number} {played[-1].ended}")
        return False
    return True


def _play(job: MixJob, drawn: Drawn, randoms: random.Random) -> tuple[Played, bool]:
    """Play one failure; whether the job can be used for another one."""
    known = len(_recoveries(job.management))
    job.control.allow(UNLIMITED)
    job.wait_running(2)
    time.sleep(randoms.uniform(0, 0.2))
    step, generation = job.step, job.generation
    struck = PLAYS[drawn.play](job, randoms)
    began = time.monotonic()

    def is_over() -> bool:
        # A step that was under way may be finished yet where one rank is stuck.
        moved = job.generation > generation or not struck.moves
        return moved and job.has_reached(step + _AFTER)

    ended = person = ""
    if _waited(job, is_over):
        time.sleep(0.0 if struck.moves else max(0.0, began + _LEAST_S - time.monotonic()))
    elif not job.has_ended:
        person = f"nothing happened in {_RESOLVE_S:.0f} s: {struck.by_hand}"
        struck.relieve()
        if not _waited(job, is_over) and not job.has_ended:
            ended = f"it stood still for {2 * _RESOLVE_S:.0f} s"
    if job.has_ended:
        ended = f"after {time.monotonic() - began:.0f} s, with: {_last_words(job)}"
    if not ended:
        struck.heal()
        step = job.step
        if not _waited(job, lambda: job.has_reached(step + _AFTER)):
            ended = "it stood still after the repair"
    ledger = _recoveries(job.management, known + struck.moves)[known:]
    played = Played(
        drawn, struck.target, struck.at_ns, struck.moves, ended, person, tuple(ledger)
    )  # fmt: skip
    took, now = time.monotonic() - began, ended or person or "the job goes on"
    _say(f"#{drawn.number} {drawn.play}, {struck.target}: {took:.1f} s, step {job.step}; {now}")
    return played, not ended and drawn.play not in SPOILS


def _say(text: str) -> None:
    print(f"mix: {text}", file=sys.stderr, flush=True)


def _waited(job: MixJob, condition: Callable[[], bool]) -> bool:
    """Whether ``condition`` came to hold in time, and before the job ended."""
    try:
        job.wait_until(condition, "the job goes on", _RESOLVE_S)
    except JobError:
        return False
    return True


def _last_words(job: MixJob) -> str:
    """Why the job ended, as its fabric-runs say."""
    said = re.findall(r"^fabric-run: job \S+ failed: (.*)$", job.log(), re.MULTILINE)
    return max(said, key=len) if said else "no reason"


def _recoveries(management: Management, wanted: int = 0) -> list[Mapping[str, Any]]:
    """Fields of the ledger's records of takeovers and failed jobs; waits for ``wanted`` of them."""
    deadline = time.monotonic() + _LEDGER_S
    while True:
        entries = map(json.loads, ledger_command(management, "export").splitlines())
        records = [json.loads(entry["line"]) for entry in entries]
        found = [one["fields"] for one in records if one["kind"] in ("recovery", "job_failed")]
        if len(found) >= wanted or time.monotonic() > deadline:
            return found


def _undisturbed(steps: int, disturbed: list[Events]) -> Events:
    """What the same job records that nobody disturbs, with states after the same steps."""
    env = {**_ENV, "NCCL_SOCKET_IFNAME": "lo"}
    with run_job(standalone(steps, spares=0, hashed=merge_steps(disturbed)), env) as job:
        job.control.allow(UNLIMITED)
        job.wait_end(1200)
        return job.events()
