"""Who says at a pace whether the job steps, while a host of it is in question. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

MOST_WITNESSES = 8
"""A few agents say it for all, also in a job of thousands."""


def is_witness(
    host: str, hosts: Sequence[str], silent: Collection[str], *, waits: bool = False
) -> bool:
    """Whether the agent on ``host`` says it.

    ``hosts``: those of the ranks, by rank. ``silent``: hosts that this host's probes or its agent
    miss, or that are fenced. The first of the others are witnesses. ``waits``: the agent has
    accepted a generation that does not run yet: one of its hosts may have lost the broker.
    """
    doubtful = set(silent).intersection(hosts)
    if not doubtful and not waits:
        return False
    witnesses = [one for one in dict.fromkeys(hosts) if one not in doubtful][:MOST_WITNESSES]
    return host in witnesses
