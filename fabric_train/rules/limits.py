"""The order of a job's time limits, checked before it starts. Pure.

A lost peer has to be known before anybody gives up on a recovery; a recovery has to be over before
a collective gives up by itself; and that before a watchdog kills the process. Otherwise survivors
of a loss end themselves while they are recovered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from fabric_train.rules.coordinator import Limits
from fabric_train.rules.heartbeats import LIMIT_S

TIMEOUT = "FABRIC_TRAIN_TIMEOUT_S"
HANG = "FABRIC_TRAIN_HANG_S"
COLLECTIVE_S = 1800.0  # torch's own; a lost process is known much earlier
_TIMEOUT_S = 60.0
LEAST_HANG_S = 5.0
SILENT_S, SILENT_STEPS = 30.0, 10.0
"""A rank may work by itself so long while others wait, or so many times its longest step."""
FROZEN = "FABRIC_TRAIN_FROZEN_S"
FROZEN_S, LEAST_FROZEN_S = 5.0, 2.0
"""A rank may be stopped, or its interpreter's lock be held by one call, so long."""


class LimitError(Exception):
    """A limit is no time, or does not fit to another one. The text names both."""


def timeout_s(environment: Mapping[str, str]) -> float:
    """Seconds for connecting to the ranks of a generation, and for an answer of the agent.

    Raises ``LimitError``.
    """
    text = environment.get(TIMEOUT) or str(_TIMEOUT_S)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise LimitError(f"{TIMEOUT}={text:.40}: not a number of seconds above 0")
    return value


def hang_s(environment: Mapping[str, str]) -> float | None:
    """Seconds that a rank may work by itself while the others wait for it.

    0: any time; None: as its longest step allows. Raises ``LimitError``.
    """
    return _from(environment, HANG, LEAST_HANG_S) if environment.get(HANG) else None


def frozen_s(environment: Mapping[str, str]) -> float:
    """Seconds that a rank may be stopped, or run no Python; 0: any time. Raises ``LimitError``."""
    return _from(environment, FROZEN, LEAST_FROZEN_S) if environment.get(FROZEN) else FROZEN_S


def _from(environment: Mapping[str, str], name: str, least: float) -> float:
    text = environment[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if value != 0 and not least <= value < math.inf:
        raise LimitError(f"{name}={text:.40}: neither 0 nor a number of seconds from {least:g} on")
    return value


def check_order(environment: Mapping[str, str], collective_s: float = COLLECTIVE_S) -> None:
    """Raises ``LimitError`` where a limit is not below the one that has to be longer."""
    hang_s(environment)
    frozen_s(environment)
    order = [
        (f"the time after which a silent host is missed, {LIMIT_S:g} s,", LIMIT_S),
        (f"{TIMEOUT}, {timeout_s(environment):g} s,", timeout_s(environment)),
        (f"the limit of a recovery, {Limits().recovery_s:g} s,", Limits().recovery_s),
        (f"the time-out of a collective, {collective_s:g} s,", collective_s),
    ]
    for (shorter, first), (longer, second) in pairwise(order):
        if first >= second:
            raise LimitError(f"{shorter} has to be below {longer.rstrip(',')}")
