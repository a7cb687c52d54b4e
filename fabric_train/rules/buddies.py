"""Which ranks keep the shards of which others, where no replica does. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fabric_train.rules.agreement import DisagreementError


@dataclass(frozen=True)
class Room:
    """Of a rank on ``host``: bytes that each of its ``buddies`` needs for it, and gets a step.

    ``limit``: bytes that it may take for others, and for a copy of its ``own`` state.
    """

    host: str
    needs: int
    each_step: int
    limit: int
    buddies: int
    own: int = 0


def buddies(hosts: Sequence[str], count: int) -> list[tuple[int, ...]]:
    """By rank: the ranks that keep its shards, ``count`` of them where there are so many.

    ``hosts``: of each rank, its host. They are at the same place of the next hosts, so that what
    ends a host ends none of the copies of its shards; on one host alone they are the next ranks.
    """
    world = len(hosts)
    places: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        places.setdefault(host, []).append(rank)
    order = list(places)
    if len(order) == 1:
        return [
            tuple((rank + step) % world for step in range(1, min(count, world - 1) + 1))
            for rank in range(world)
        ]
    found = []
    for rank, host in enumerate(hosts):
        here, place = order.index(host), places[host].index(rank)
        others = [
            places[order[(here + step) % len(order)]]
            for step in range(1, min(count, len(order) - 1) + 1)
        ]
        found.append(tuple(ranks[place % len(ranks)] for ranks in others))
    return found


def wards(keepers: Sequence[Sequence[int]], rank: int) -> tuple[int, ...]:
    """The ranks whose shards ``rank`` keeps, of what `buddies` says."""
    return tuple(ward for ward, mine in enumerate(keepers) if rank in mine)


def check_room(rooms: Sequence[Room]) -> None:
    """Raises ``DisagreementError`` where a rank has no memory for the shards that it keeps."""
    counts = {one.buddies for one in rooms}
    if len(counts) > 1:
        raise DisagreementError(f"ranks want {sorted(counts)} buddies for their shards")
    hosts = {one.host for one in rooms}
    kind, there = ("hosts", len(hosts)) if len(hosts) > 1 else ("ranks", len(rooms))
    if (count := rooms[0].buddies) >= there:
        raise DisagreementError(
            f"shards with {count} buddies need {count + 1} {kind}, and the job has {there}"
        )
    keepers = buddies([one.host for one in rooms], rooms[0].buddies)
    for rank, room in enumerate(rooms):
        mine = wards(keepers, rank)
        needs = room.own + sum(rooms[ward].needs for ward in mine)
        if needs > room.limit:
            own = " and a copy of itself" * bool(room.own)
            raise DisagreementError(
                f"rank {rank} keeps the shards of ranks {list(mine)}{own}: {needs} bytes of host "
                f"memory, and it may take {room.limit} (gradient_log=GradientLog(host_memory=…))"
            )
