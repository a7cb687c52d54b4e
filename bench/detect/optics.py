"""Prediction of failing optics: false alarms on healthy links, and failures named in time.

``./run bench detect --only optics`` prints the table. The world is `optics_world`; seeds
below 9,000,000 were used while the predictor was written, those of `HELD_OUT` never.
"""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from bench.detect.optics_world import BITS, DAYS, MODES, WINDOW_S, WINDOWS, World, build
from bench.report import Row
from fabricd.predict.risk import Predictor, Window

HELD_OUT = 9_000_000
BATCH = 500
LEAD_S = 600
HORIZON_WINDOWS = 30 * 86_400 // WINDOW_S


@dataclass(slots=True)
class Score:
    """What came out, over all batches."""

    months: float = 0.0
    false: int = 0
    why: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    lead_hours: list[float] = field(default_factory=list)

    def add(self, other: Score) -> None:
        """Take another batch in."""
        self.months += other.months
        self.false += other.false
        self.why += other.why
        self.failures += other.failures
        self.named += other.named
        self.lead_hours += other.lead_hours


def play(world: World, score: Score) -> None:
    """Run the predictor over a month of a batch, and score it."""
    n = len(world.mode)
    predictor = Predictor([str(i) for i in range(n)])
    nothing = np.full(n, np.nan)
    bits = np.full(n, BITS)
    first = np.full(n, np.inf)
    before = np.zeros(n, bool)
    for at in range(WINDOWS):
        # A link that has failed is no longer predicted.
        alive = world.failed > at
        predictor.step(
            Window(
                up=world.carrier[:, at] & (world.flaps[:, at] == 0),
                bits=bits,
                errors=world.errors[:, at],
                tail=world.tail[:, at],
                lost=world.lost[:, at],
                rx_dbm=world.rx_dbm[:, at],
                tx_dbm=world.tx_dbm[:, at],
                bias=world.bias[:, at],
                celsius=world.celsius[:, at],
                retransmits=world.retransmits[:, at],
                marks=world.marks[:, at],
                flaps=world.flaps[:, at],
                rx_low_dbm=nothing,
                hot_celsius=nothing,
            )
        )
        fresh = predictor.named & ~before & alive
        before = predictor.named.copy()
        for link in np.flatnonzero(fresh):
            if world.onset[link] <= at:
                first[link] = min(first[link], at)
            elif world.failed[link] - at > HORIZON_WINDOWS:
                score.false += 1
                score.why["+".join(predictor.evidence(int(link)))] += 1
    score.months += float(np.minimum(world.failed, WINDOWS).sum()) / WINDOWS * DAYS / 30
    for link in np.flatnonzero(np.isfinite(world.failed)):
        mode = world.mode[link] or "unforced"
        score.failures[mode] += 1
        # The window of the alarm is over at its end, that of the failure at its beginning.
        lead = (world.failed[link] - first[link] - 1) * WINDOW_S
        if lead >= LEAD_S:
            score.named[mode] += 1
            score.lead_hours.append(lead / 3600)


def _batch(task: tuple[int, int, bool]) -> Score:
    """Build a batch and play it; one process each."""
    seed, links, degrading = task
    score = Score()
    play(build(seed, links, degrading=degrading), score)
    return score


def measure(seed: int, healthy: int, degrading: int) -> tuple[Score, Score]:
    """Scores of ``healthy`` link-months and of ``degrading`` links that fail."""
    tasks = [
        (seed + at + sick, min(BATCH, count - at), bool(sick))
        for sick, count in ((0, healthy), (1, degrading))
        for at in range(0, count, BATCH)
    ]
    scores = (Score(), Score())
    with ProcessPoolExecutor(2) as pool:
        for task, score in zip(tasks, pool.map(_batch, tasks), strict=True):
            scores[task[2]].add(score)
            print(f"{task}: {score.false} false, {dict(score.why)}", file=sys.stderr, flush=True)
    return scores


def rows(fine: Score, ill: Score) -> list[Row]:
    """The table."""
    total = sum(ill.failures.values())
    told = sum(ill.named.values())
    lead = sorted(ill.lead_hours)
    table = [
        Row(
            "false alarms per 1,000 link-months",
            1.0,
            1000 * fine.false / fine.months,
            "alarms",
            note=f"{fine.false} in {fine.months:.0f} link-months",
        ),
        Row(
            "degrading optics named ≥ 10 min before",
            50.0,
            100 * told / total,
            "%",
            better="higher",
            note=f"{told} of {total}, sudden deaths among them",
        ),
    ]
    table += [
        Row(
            f"… of those by {mode}",
            None,
            100 * ill.named[mode] / ill.failures[mode],
            "%",
            note=f"{ill.failures[mode]} links",
        )
        for mode in [*MODES, "unforced"]
        if ill.failures[mode]
    ]
    if lead:
        table.append(Row("lead, median of those named", None, lead[len(lead) // 2], "h"))
    return table


def run(*, quick: bool = False) -> list[Row]:
    """Measure on held-out seeds: 20,000 link-months and 2,000 failures, quick an eighth of it."""
    fine, ill = Score(), Score()
    for part in range(1 if quick else 8):
        some = measure(HELD_OUT + 10_000 * part, 2500, 250)
        fine.add(some[0])
        ill.add(some[1])
    return rows(fine, ill)
