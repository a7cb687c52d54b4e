"""What the matrix consists of, what each cell expects, and which cells are picked for CI. Pure.

A full pairwise selection would need every fault with every pattern and every size: three cells for
each of 25 faults. Faults therefore stand in classes of kin (what dies, how it is noticed), and the
selection is pairwise in class × pattern × size: each fault is struck at least once, each class with
each pattern and each size, each pattern with each size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Pattern = Literal["p2p", "ring", "alltoall"]
PATTERNS: tuple[Pattern, ...] = ("p2p", "ring", "alltoall")
SIZES: dict[str, int] = {"8B": 8, "64KB": 64 << 10, "64MB": 64 << 20}
"""Bytes. Of one message at 8 B, of the collective (of a message, for p2p) beyond."""
TURNS = len(PATTERNS) * len(SIZES)
"""So many selections, and each fault has met every pattern and size."""


class Fault(StrEnum):
    """What strikes. The names are those of the issue, as one word."""

    CARRIER = "carrier"
    ADMIN = "admin"
    ADDRESS = "address"
    BLACKHOLE_TX = "blackhole-tx"
    BLACKHOLE_RX = "blackhole-rx"
    BLACKHOLE_BOTH = "blackhole-both"
    LOSS_1 = "loss-1"
    LOSS_20 = "loss-20"
    RESET_STORM = "reset-storm"
    FLAP_20MS = "flap-20ms"
    FLAP_200MS = "flap-200ms"
    FLAP_2S = "flap-2s"
    TWO_RAILS = "two-rails"
    THREE_RAILS = "three-rails"
    CROSSED = "crossed"
    """Half of the rails on one end, the other half on the other: only cross-rail paths are left."""
    ALL_RAILS = "all-rails"
    STOPPED_PEER = "stopped-peer"
    REBOOTED_PEER = "rebooted-peer"
    """Half-open: the peer's sockets are gone without a word, its addresses answer RST."""
    CONNECT = "connect"
    CLOSE = "close"
    GROUPED = "grouped"
    DAEMON_KILLED = "daemon-killed"
    PAGE_CORRUPT = "page-corrupt"
    PAGE_TRUNCATED = "page-truncated"
    CLOCK_JUMP = "clock-jump"


class Outcome(StrEnum):
    """What has to come of it. Never a hang, never a wrong byte."""

    GOES_ON = "goes on"
    """No error; what the fault took carries again afterwards."""
    ONE_ERROR = "one error"
    """Each survivor gets one clear error soon."""
    ENDS = "ends"
    """All ranks end in good order."""


class Stage(StrEnum):
    """Which job a cell needs."""

    RUNNING = "running"
    """Strikes a job under way, which goes on for the next cell."""
    OWN = "own"
    """Begins or ends a job of its own."""
    DAEMONS = "daemons"
    """Strikes a job under way, with prober and fabricd on every host."""


CLASSES: dict[str, tuple[Fault, ...]] = {
    "link": (Fault.CARRIER, Fault.ADMIN, Fault.ADDRESS),
    "black hole": (Fault.BLACKHOLE_TX, Fault.BLACKHOLE_RX, Fault.BLACKHOLE_BOTH),
    "packets": (Fault.LOSS_1, Fault.LOSS_20, Fault.RESET_STORM),
    "flap": (Fault.FLAP_20MS, Fault.FLAP_200MS, Fault.FLAP_2S),
    "several rails": (Fault.TWO_RAILS, Fault.THREE_RAILS, Fault.CROSSED),
    "whole peer": (Fault.ALL_RAILS, Fault.STOPPED_PEER, Fault.REBOOTED_PEER),
    "moment": (Fault.CONNECT, Fault.CLOSE, Fault.GROUPED),
    "daemon": (Fault.DAEMON_KILLED, Fault.PAGE_CORRUPT, Fault.PAGE_TRUNCATED, Fault.CLOCK_JUMP),
}
_STAGES = {
    Fault.REBOOTED_PEER: Stage.OWN,
    Fault.CONNECT: Stage.OWN,
    Fault.CLOSE: Stage.OWN,
    Fault.GROUPED: Stage.OWN,
    Fault.DAEMON_KILLED: Stage.DAEMONS,
    Fault.PAGE_CORRUPT: Stage.DAEMONS,
    Fault.PAGE_TRUNCATED: Stage.DAEMONS,
    Fault.CLOCK_JUMP: Stage.DAEMONS,
}
_OUTCOMES = {
    Fault.REBOOTED_PEER: Outcome.ONE_ERROR,
    Fault.CLOSE: Outcome.ENDS,
    Fault.CONNECT: Outcome.ENDS,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault against one pattern of one size."""

    fault: Fault
    pattern: Pattern
    size: str
    """A key of `SIZES`."""

    def __str__(self) -> str:
        return f"{self.fault}-{self.pattern}-{self.size}"

    @property
    def bytes(self) -> int:
        """The size."""
        return SIZES[self.size]

    @property
    def stage(self) -> Stage:
        """Which job it needs."""
        return _STAGES.get(self.fault, Stage.RUNNING)

    @property
    def outcome(self) -> Outcome:
        """What has to come of it."""
        return _OUTCOMES.get(self.fault, Outcome.GOES_ON)


def all_cells() -> list[Cell]:
    """The full matrix, in running order."""
    return in_running_order(Cell(*axes) for axes in itertools.product(Fault, PATTERNS, SIZES))


def selection(turn: int = 0) -> list[Cell]:
    """The pairwise selection, in running order; the same for the same ``turn``.

    Fault j of class k meets pattern j + turn and size j + k + turn // 3 (all modulo 3): a class's
    three faults take all patterns and all sizes, and successive classes shift the one against the
    other. `TURNS` selections, and each fault has met every pattern with every size.
    """
    sizes = list(SIZES)
    cells = []
    for k, faults in enumerate(CLASSES.values()):
        for j, fault in enumerate(faults):
            pattern = PATTERNS[(j + turn) % len(PATTERNS)]
            size = sizes[(j + k + turn // len(PATTERNS)) % len(sizes)]
            cells.append(Cell(fault, pattern, size))
    return in_running_order(cells)


def in_running_order(cells: Iterable[Cell]) -> list[Cell]:
    """Cells that can share a job stand together; those that need daemons come last."""
    stages, sizes, faults = list(Stage), list(SIZES), list(Fault)

    def key(cell: Cell) -> tuple[int, int, int, int]:
        return (
            stages.index(cell.stage),
            PATTERNS.index(cell.pattern),
            sizes.index(cell.size),
            faults.index(cell.fault),
        )

    return sorted(cells, key=key)
