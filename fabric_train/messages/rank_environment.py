"""What a process finds in its environment beside what is fabric-run's own: torchrun's names. Pure.

Frameworks read them. ``RANK`` and ``GROUP_RANK`` are not among them yet: a process learns its rank
in ``join``, and a spare later (``rank.torchrun``).
"""

from __future__ import annotations

from collections.abc import Mapping

RANK, GROUP_RANK = "RANK", "GROUP_RANK"
LOCAL_RANK, LOCAL_WORLD_SIZE, WORLD_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"
MASTER_ADDR, MASTER_PORT = "MASTER_ADDR", "MASTER_PORT"
_MASTER = {MASTER_ADDR: "127.0.0.1", MASTER_PORT: "29500"}
"""As torchrun's default. Nothing of the job listens there."""


def environment_of(
    outer: Mapping[str, str], world: int, of_host: int, place: int
) -> dict[str, str]:
    """The environment of a process at ``place`` of its host, from that of its fabric-run.

    ``of_host``: ranks of each host. What a scheduler or a torchrun has set for fabric-run itself
    does not reach its processes.
    """
    inherited = {name: text for name, text in outer.items() if name not in (RANK, GROUP_RANK)}
    return {
        # As torchrun does: a thread for each core in each of many ranks is slower.
        **({"OMP_NUM_THREADS": "1"} if world > 1 else {}),
        **_MASTER,
        **inherited,
        WORLD_SIZE: str(world),
        LOCAL_WORLD_SIZE: str(of_host),
        LOCAL_RANK: str(place),
    }
