"""How much of the daemon's time those who ask may have: measured for each user, not guessed.

One loop decides about links and answers questions. A user who has had more than a share waits
before the next answer, or the next part of one. Root never waits. `fabricd.process.cpu_meter`
measures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fabricd.control.pace import Pace
from fabricd.control.places import Standing

SHARE, BURST_S = 0.15, 1.0
"""Of a core, for one user; and seconds of work that a user has at once after a pause."""
SHARE_OF_READERS = 0.3
"""The same for all users who may only ask, together."""
READERS = -1
"""No uid."""


class WorkPace:
    """What each user's questions have cost, in seconds of CPU time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: ``clock``: seconds, monotonic."""
        self._users = Pace(clock, rate=SHARE, burst=BURST_S, least=0.0)
        self._readers = Pace(clock, rate=SHARE_OF_READERS, burst=BURST_S, least=0.0)

    def spent(self, rank: Standing, uid: int, seconds: float) -> None:
        """The daemon has worked so long for a user."""
        if rank is not Standing.ROOT:
            self._users.delay_s(uid, seconds)
        if rank is Standing.READER:
            self._readers.delay_s(READERS, seconds)

    def delay_s(self, rank: Standing, uid: int) -> float:
        """How long a user has to wait now."""
        if rank is Standing.ROOT:
            return 0.0
        delay = self._users.delay_s(uid, 0.0)
        return max(delay, self._readers.delay_s(READERS, 0.0)) if rank is Standing.READER else delay

    async def turn(self, rank: Standing, uid: int) -> None:
        """Wait until a user may have more."""
        while delay := self.delay_s(rank, uid):  # noqa: ASYNC110 - others may spend meanwhile
            await asyncio.sleep(delay)
