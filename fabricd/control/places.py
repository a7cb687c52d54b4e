"""Who gets a place on the control socket when there are few. Pure but for the waiting line.

Root has places that nobody else can fill, and members of the admin group have places that readers
cannot. One user never has all of what is left. The same rule serves connections and large requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from fabricd.control.access import Access, Caller


class Standing(IntEnum):
    """Whose places a caller may take: its own and those of all below."""

    READER = 0
    ADMIN = 1
    ROOT = 2


def standing(access: Access, caller: Caller) -> Standing:
    """Of a caller, by the groups in force."""
    if caller.uid == 0:
        return Standing.ROOT
    return Standing.ADMIN if access.may_change(caller) else Standing.READER


@dataclass(frozen=True, slots=True)
class PlaceLimits:
    """How many places there are.

    Attributes:
        most: by standing, for callers of that standing and below together.
        of_one_user: by standing, for one uid.
    """

    most: Mapping[Standing, int]
    of_one_user: Mapping[Standing, int]


CONNECTIONS = PlaceLimits(
    {Standing.READER: 48, Standing.ADMIN: 56, Standing.ROOT: 64},
    {Standing.READER: 16, Standing.ADMIN: 24, Standing.ROOT: 64},
)
LARGE_REQUESTS = PlaceLimits(
    {Standing.READER: 3, Standing.ADMIN: 4, Standing.ROOT: 6},
    {Standing.READER: 2, Standing.ADMIN: 2, Standing.ROOT: 6},
)
"""Each holds 8 bytes a row, SQLite's cache of 2 MB and a part of its answer."""


class Places:
    """Counts who has a place."""

    def __init__(self, limits: PlaceLimits) -> None:
        self._limits = limits
        self._taken: Counter[tuple[Standing, int]] = Counter()

    @property
    def taken(self) -> int:
        """Places that somebody has."""
        return self._taken.total()

    def full(self, rank: Standing, uid: int) -> str:
        """Why a caller gets no place now; empty: there is one."""
        own = sum(count for (_, user), count in self._taken.items() if user == uid)
        if own >= self._limits.of_one_user[rank]:
            return f"uid {uid} has {own}, the most for one user"
        for above in Standing:
            if above < rank:
                continue
            held = sum(count for (other, _), count in self._taken.items() if other <= above)
            if held >= self._limits.most[above]:
                return f"all {held} places for such callers are taken"
        return ""

    def take(self, rank: Standing, uid: int) -> None:
        """Count a place as taken; ask `full` before."""
        self._taken[rank, uid] += 1

    def give_back(self, rank: Standing, uid: int) -> None:
        """The opposite of `take`, with the same arguments."""
        self._taken[rank, uid] -= 1
        if not self._taken[rank, uid]:
            del self._taken[rank, uid]


class Busy(Exception):  # noqa: N818 - what the caller is told
    """No place came free in time; the text says why."""


class PlaceQueue:
    """Places that are waited for."""

    def __init__(self, limits: PlaceLimits, wait_s: float) -> None:
        """Args: ``limits`` of the places; ``wait_s``: how long a caller waits for one."""
        self._places = Places(limits)
        self._wait_s = wait_s
        self._freed = asyncio.Event()

    @property
    def taken(self) -> int:
        """Places that somebody has."""
        return self._places.taken

    @contextlib.asynccontextmanager
    async def place(self, rank: Standing, uid: int) -> AsyncIterator[None]:
        """Hold a place for as long as the context lasts.

        Raises:
            Busy: none came free.
        """
        why = ""
        try:
            async with asyncio.timeout(self._wait_s):
                while why := self._places.full(rank, uid):
                    await self._freed.wait()
        except TimeoutError:
            raise Busy(why) from None
        self._places.take(rank, uid)
        try:
            yield
        finally:
            self._places.give_back(rank, uid)
            freed, self._freed = self._freed, asyncio.Event()
            freed.set()
