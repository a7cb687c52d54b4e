"""What protection costs while nothing happens, beside plain DDP in the same run.

Both jobs live at the same time, and one of them waits at a step boundary while the other runs a
block of steps. Blocks alternate, so what disturbs the machine for seconds hits both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.migrate.jobs import Job, plain, resident_mb, run_job, standalone
from bench.plugin.rounds import alternate, interval, ratio, spread
from bench.report import Row
from bench.training.trace import Phase

BLOCK = 10
_FIRST = 2  # steps of a block that do not count: the processes wake up
_WARM = 10
_REPEAT = {2: 12, 4: 1}  # so that a step takes about 100 ms


class _Blocks:
    """Runs one job block by block."""

    def __init__(self, job: Job, ranks: int) -> None:
        self.job = job
        self._ranks = ranks
        self._next = _WARM
        job.control.allow(_WARM)
        job.wait_running(1)

    def run(self) -> float:
        """Seconds per step of the next block; the job waits again when it is over."""
        first, last = self._next + _FIRST, self._next + _FIRST + BLOCK
        self._wait(self._next)
        self.job.control.allow(last)
        self._wait(last)
        self._next = last
        times = {one.step: one.at_ns for one in self.job.events().commits if one.rank == 0}
        return (times[last] - times[first]) / BLOCK / 1e9

    def _wait(self, step: int) -> None:
        self.job.wait_until(
            lambda: sum(page.step >= step for page in self.job.pages().values()) >= self._ranks,
            f"{self._ranks} ranks at step {step}", 120,
        )  # fmt: skip


def steady(*, quick: bool) -> list[Row]:
    """Time of a step and memory, for as many ranks as there are cores, and for four."""
    rows = []
    for ranks in (2, 4):
        rows += _compare(ranks, 6 if quick else 40, asked=1.0 if ranks == 2 else None)
    return rows


def _compare(ranks: int, rounds: int, asked: float | None) -> list[Row]:
    steps = _WARM + (rounds + 2) * (_FIRST + BLOCK)
    commands: Mapping[str, Callable[[Path], list[str | Path]]] = {
        "protected": standalone(steps, spares=1, ranks=ranks),
        "plain": plain(steps, ranks=ranks),
    }
    with ExitStack() as stack:
        blocks: dict[str, _Blocks] = {}
        for name, command in commands.items():
            repeat = {"BENCH_REPEAT": str(_REPEAT[ranks])}
            job = stack.enter_context(run_job(command, repeat, ranks=ranks))
            blocks[name] = _Blocks(job, ranks)
        blocks["protected"].job.wait_spares(1)
        for one in blocks.values():
            one.run()  # the first block of each warms up
        taken = alternate(rounds, {name: one.run for name, one in blocks.items()})
        memory = {name: _memory(one.job) for name, one in blocks.items()}
    each = [100 * (a / b - 1) for a, b in zip(taken["protected"], taken["plain"], strict=True)]
    low, high = interval(each)
    got = 100 * (ratio(taken["protected"], taken["plain"]) - 1)
    plain_ms = [1e3 * one for one in taken["plain"]]
    ours, theirs = memory["protected"], memory["plain"]
    return [
        Row(
            f"steady cost of protection, {ranks} ranks: time of a step beside plain DDP", asked,
            got, "%",
            note=f"90 % confidence {low:.2f} to {high:.2f} %; plain {spread(plain_ms)} ms a step; "
            f"{rounds} rounds of {BLOCK} steps each",
            samples={name: [1e3 * one for one in some] for name, some in taken.items()},
        ),
        Row(
            f"resident memory of a rank, {ranks} ranks", None, ours["rank"], "MB",
            peer=theirs["rank"],
            note=f"peer: plain DDP; besides, fabric-run has {ours['launcher']:.0f} MB, a spare "
            f"{ours['spare']:.0f} MB",
        ),
    ]  # fmt: skip


def _memory(job: Job) -> dict[str, float]:
    pages = job.pages()
    ranks = [resident_mb(pid) for pid, page in pages.items() if page.step]
    spares = [resident_mb(pid) for pid, page in pages.items() if page.phase is Phase.WARM]
    return {
        "rank": median(ranks),
        "launcher": resident_mb(job.launcher.pid),
        "spare": median(spares or [0.0]),
    }
