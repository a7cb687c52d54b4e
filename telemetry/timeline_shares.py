"""Which rows go when the timeline is too large: each kind has a share of its own. Pure.

A flood of rows of one kind costs rows of that kind. The states and flaps of links and paths
outlive all others: they go only while no other kind has more than its share.
"""

from __future__ import annotations

from collections.abc import Mapping

from telemetry.events import EventKind

STATES = frozenset(
    {
        EventKind.FLAP,
        EventKind.CARRIER_UP,
        EventKind.LINK_STATE,
        EventKind.PATH_STATE,
        EventKind.RDMA_STATE,
    }
)

SHARES: Mapping[EventKind, float] = {
    EventKind.FLAP: 0.20,
    EventKind.LINK_STATE: 0.15,
    EventKind.CARRIER_UP: 0.10,
    EventKind.PATH_STATE: 0.10,
    EventKind.RDMA_STATE: 0.05,
    EventKind.STEER: 0.05,
    EventKind.PLUGIN: 0.05,
    EventKind.LOCATED: 0.03,
    EventKind.WOULD_STEER: 0.02,
    EventKind.OPERATOR: 0.02,
    EventKind.FENCE: 0.02,
    EventKind.MIGRATION: 0.02,
    EventKind.GENERATION: 0.02,
    EventKind.JOB: 0.02,
    EventKind.DAEMON: 0.02,
    EventKind.CONDITION: 0.02,
    EventKind.FINDING: 0.02,
    EventKind.PROBER: 0.02,
    EventKind.PEER: 0.01,
    EventKind.ADDRESS: 0.01,
    EventKind.MODE: 0.01,
    EventKind.RISK: 0.01,
    EventKind.PROBING: 0.01,
    EventKind.BROKER: 0.01,
    EventKind.SLOW_RANK: 0.01,
}
"""Of all rows, for each kind; together 1. What a kind does not use is free for the others."""


_OF_KIND = {kind.value: share for kind, share in SHARES.items()}
_STATES = {kind.value for kind in STATES}


def over_share(counts: Mapping[str, int]) -> str | None:
    """The kind whose oldest rows go next; None: there are no rows.

    Args:
        counts: how many rows there are of each kind. One that this release does not know has no
            share.
    """
    total = sum(counts.values())
    excess = {kind: n - _OF_KIND.get(kind, 0.0) * total for kind, n in counts.items() if n}
    # One has its share or more, but for the last digit of a sum.
    over = {kind for kind, rows in excess.items() if rows >= 0} or set(excess)
    return max(over - _STATES or over, key=lambda kind: (excess[kind], kind), default=None)
