"""How often the loss test calls a healthy link sick, by computation. Pure.

The bare test is what is computed: that its losses also have to be those of two peers, and that the
link has to explain them better than anything else, only makes it rarer.

*Steady losses*, each packet by itself: the mean time to a false verdict is that of a Markov chain
on the statistic in cells (Brook and Evans, Biometrika 59, 1972). *Bursts*: thousands of links for
years, from burst to burst, since between two of them the statistic only falls.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fabricd.detect.sequential import Test

READING_S = 0.5
CELLS = 900
YEAR_S = 365.25 * 86400
MOST_LOST = 40
"""Losses in a reading that a row of the table of chances goes to; more are as many as these."""


def years_to_alarm(test: Test, rate: float, packets: float) -> float:
    """Mean years to a verdict of one direction that loses ``rate`` of ``packets`` a second."""
    count = packets * READING_S
    mean = count * rate
    lost = np.arange(MOST_LOST)
    chance = np.exp(lost * math.log(mean) - mean - [math.lgamma(k + 1) for k in lost])
    added = np.minimum(lost * test.gain - count * test.cost, test.step_share * test.threshold)
    width = test.threshold / CELLS
    values = np.concatenate([[0.0], (np.arange(CELLS) + 0.5) * width])
    moves = np.zeros((CELLS + 1, CELLS + 1))
    for p, nats in zip(chance, added, strict=True):
        after = values + nats
        cell = np.where(after <= 0, 0, 1 + np.minimum(after / width, CELLS - 1).astype(int))
        stays = after < test.threshold
        np.add.at(moves, (np.flatnonzero(stays), cell[stays]), p)
    steps = np.linalg.solve(np.eye(CELLS + 1) - moves, np.ones(CELLS + 1))
    return float(steps[0]) * READING_S / YEAR_S


def alarms_of_bursts(
    test: Test,
    within: Test,
    *,
    per_minute: float,
    length_s: tuple[float, float],
    loss: tuple[float, float],
    packets: float,
    links: int,
    years: float,
    seed: int = 1,
) -> tuple[float, float]:
    """Verdicts a link and direction and year, and the share of packets lost, of random bursts.

    Args:
        test: of the link.
        within: by whose rates a burst is judged: those of a congested path where a queue shows.
        per_minute: bursts come at random, so many in the mean.
        length_s: of each burst, log-uniform.
        loss: within each burst, log-uniform, and each packet by itself.
        packets: a second.
        links: how many are simulated.
        years: for how long.
        seed: of the numbers.
    """
    rng = np.random.default_rng(seed)
    most = test.step_share * test.threshold
    value, alarms, lost_in_all = np.zeros(links), 0, 0
    elapsed = np.zeros(links)
    while float(elapsed.mean()) < years * YEAR_S:
        gap = rng.exponential(60 / per_minute, links)
        lasts = _log_uniform(rng, length_s, links)
        share = _log_uniform(rng, loss, links)
        lost = rng.poisson(packets * lasts * share)
        value = np.maximum(0.0, value - gap * packets * test.cost)
        # What may be added while it lasts, and in the reading that it begins in.
        room = most * (1 + lasts / (test.step_ns / 1e9))
        nats = lost * within.gain - packets * lasts * within.cost
        value = np.maximum(0.0, value + np.minimum(nats, room))
        sick = value >= test.threshold
        alarms += int(sick.sum())
        lost_in_all += int(lost.sum())
        value[sick] = 0.0
        elapsed += gap + lasts
    total_s = float(elapsed.sum())
    return alarms / (total_s / YEAR_S), lost_in_all / (packets * total_s)


def _log_uniform(
    rng: np.random.Generator, span: tuple[float, float], count: int
) -> NDArray[np.float64]:
    return np.exp(rng.uniform(math.log(span[0]), math.log(span[1]), count))
