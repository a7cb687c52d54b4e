"""Failures of a published training run, how each is played here, and the draw. Pure.

Classes and counts: Table 5 of Dubey et al., "The Llama 3 Herd of Models" (arXiv:2407.21783, 2024),
419 unexpected interruptions in 54 days of 16,384 GPUs. The counts are used. The table prints 30.1 %
beside the 148 of its first row, which are 35.3 % of 419, and its percentages add up to 94.9; the
counts add up to 419.

The table names causes. What a job sees of a broken GPU is taken from Table 1 of Wan et al., "Robust
LLM Training Infrastructure at ByteDance" (arXiv:2509.16293, 2025): 36.1 % of its incidents are CUDA
errors, which end the process, and 9.9 % are hangs. Wrong results have a class of their own in
Table 5. A software bug that comes back at every attempt needs a person. The same section of the
Llama paper says that 3 of all interruptions needed one, so at most 3 of 54 bugs are of that kind.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

SOURCE = "Llama 3 405B, Dubey et al. 2024, arXiv:2407.21783, Table 5, by count"
TOTAL = 419
ENDS, HANGS = 36.1, 9.9
"""CUDA errors and hangs, percent of all incidents."""

_END = tuple((name, ENDS / 3) for name in ("SIGKILL", "abort", "exception"))
_HANG = tuple((name, HANGS / 2) for name in ("stopped", "stuck in its loop"))
_GPU = (*_END, *_HANG)
_NIC = (("carrier", 1), ("black hole", 1), ("flap", 1))
_HOST = (("host without power", 1),)


@dataclass(frozen=True, slots=True)
class FailureClass:
    """A row of the table. ``plays``: names of injections with weights; none: it cannot be tried."""

    name: str
    count: int
    plays: tuple[tuple[str, float], ...]


TABLE: tuple[FailureClass, ...] = (
    FailureClass("Faulty GPU", 148, _GPU),
    FailureClass("GPU HBM3 memory", 72, _GPU),
    FailureClass("Software bug", 54, (("exception", 51), ("exception at every attempt", 3))),
    FailureClass("Network switch/cable", 35, (*_NIC, ("switch of a rail", 1))),
    FailureClass("Host maintenance", 32, (("drain", 1), ("host without power", 1))),
    FailureClass("GPU SRAM memory", 19, _GPU),
    FailureClass("GPU system processor", 17, _GPU),
    FailureClass("NIC", 7, (*_NIC, ("all rails of a host", 1))),
    FailureClass("NCCL watchdog timeouts", 7, _HANG),
    FailureClass("Silent data corruption", 6, (("wrong gradient", 1), ("wrong parameter", 1))),
    FailureClass("GPU thermal interface + sensor", 6, _GPU),
    FailureClass("SSD", 3, (("fabric-run killed", 1),)),
    FailureClass("Power supply", 3, _HOST),
    FailureClass("Server chassis", 2, _HOST),
    FailureClass("IO expansion board", 2, (("all rails of a host", 1),)),
    FailureClass("Dependency", 2, (("broker away", 1),)),
    FailureClass("CPU", 2, (("host without power", 1), ("host frozen", 1))),
    FailureClass("System memory", 2, (("host without power", 1), ("host frozen", 1))),
)

SPOILS = frozenset({"wrong gradient", "wrong parameter"})
"""Where nobody notices, every later state of the job is wrong, too."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One failure to play."""

    number: int
    failure_class: str
    play: str


def draw(count: int, seed: int, table: Sequence[FailureClass] = TABLE) -> list[Drawn]:
    """``count`` failures, each drawn by itself: a class by its count, then a play by its weight.

    A class that cannot be tried is never drawn.
    """
    randoms = random.Random(seed)
    known = [one for one in table if one.plays]
    drawn = []
    for number in range(count):
        (which,) = randoms.choices(known, [one.count for one in known])
        names, weights = zip(*which.plays, strict=True)
        (play,) = randoms.choices(names, weights)
        drawn.append(Drawn(number, which.name, play))
    return drawn


def not_tried(drawn: Sequence[Drawn], table: Sequence[FailureClass] = TABLE) -> dict[str, str]:
    """Classes of the table that nothing was drawn of → why."""
    seen = Counter(one.failure_class for one in drawn)
    return {
        one.name: "never drawn" if one.plays else "the lab cannot play it"
        for one in table
        if not seen[one.name]
    }
