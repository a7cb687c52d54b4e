"""Which of two masters is the better one: the data set comparison (9.3.4), and who takes part.

A unicast client is told its masters, so nothing is left of the state decision of 9.3.3: the best of
those it was told is its master.
"""

from __future__ import annotations

from typing import Final

from clocksync.ptp.messages import Announce, Flag

MOST_STEPS: Final = 255
"""9.3.2.5 d): a master so far from its grandmaster does not count."""
ACCURACY_NS: Final = {
    0x17: 1e-3, 0x18: 2.5e-3, 0x19: 1e-2, 0x1A: 2.5e-2, 0x1B: 0.1, 0x1C: 0.25, 0x1D: 1.0,
    0x1E: 2.5, 0x1F: 10.0, 0x20: 25.0, 0x21: 100.0, 0x22: 250.0, 0x23: 1e3, 0x24: 2.5e3,
    0x25: 1e4, 0x26: 2.5e4, 0x27: 1e5, 0x28: 2.5e5, 0x29: 1e6, 0x2A: 2.5e6, 0x2B: 1e7,
    0x2C: 2.5e7, 0x2D: 1e8, 0x2E: 2.5e8, 0x2F: 1e9, 0x30: 1e10,
}  # fmt: skip
"""clockAccuracy (7.6.2.6, table 5); of others nothing is known."""


def qualified(said: Announce, own: bytes) -> bool:
    """Whether it may be a master at all (9.3.2.5).

    Args:
        said: its Announce.
        own: our clockIdentity; a message of our own is none of a master.
    """
    return (
        said.steps_removed < MOST_STEPS
        and said.header.source.clock != own
        and not said.header.flags & Flag.ALTERNATE_MASTER
    )


def better(one: Announce, other: Announce) -> bool:
    """Whether ``one`` is better than ``other`` (9.3.4, figures 34 and 35).

    Two ports of one grandmaster: the nearer; else the smaller identity.
    """
    if one.grandmaster != other.grandmaster:
        return _grade(one) < _grade(other)
    return _place(one) < _place(other)


def _grade(said: Announce) -> tuple[int, int, int, int, int, bytes]:
    return (said.priority1, said.clock_class, said.accuracy, said.variance, said.priority2,
            said.grandmaster)  # fmt: skip


def _place(said: Announce) -> tuple[int, bytes, int]:
    return said.steps_removed, said.header.source.clock, said.header.source.port
