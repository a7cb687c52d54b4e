"""What the second act does to the job, and what came of each strike."""

from __future__ import annotations

from dataclasses import dataclass

TOTAL = 300
PACE_S = 0.2
HOSTS, RANKS, RAILS = 5, 4, 4


@dataclass
class Strike:
    """One thing that is done to the job. Times: CLOCK_MONOTONIC ns; None: not reached."""

    title: str
    target: str
    expected: str
    """Class of failure in the ledger; "" where nobody has to be moved."""
    start_ns: int = 0
    end_ns: int = 0
    decided_ns: int | None = None
    fenced_ns: int | None = None
    running_ns: int | None = None
    committed_ns: int | None = None
    generation: int = 0
    moved: str = ""
    steps_lost: int = 0
    longest_gap_ms: float = 0.0

    def since_start_ms(self, t_ns: int | None) -> float | None:
        """From the strike to ``t_ns``."""
        return None if t_ns is None else (t_ns - self.start_ns) / 1e6


def strikes() -> list[Strike]:
    """In the order in which they are played."""
    return [
        Strike("NIC unplugged", "h1:rail2", ""),
        Strike("rank killed", "h0", "rank"),
        Strike("host frozen, then without power", "h2", "host"),
        Strike("host drained", "h3", "planned"),
    ]
