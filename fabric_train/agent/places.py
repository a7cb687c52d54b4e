"""The places of a host's processes, as ``LOCAL_RANK`` names them. Pure.

A place is a number, and for a job on GPUs the number of the GPU. Two processes that go on never
have the same one. A process keeps its place, also when it takes over a rank. A spare that waits for
its rank in ``join`` has not used its place yet: it gets the lowest free one with its rank, which is
that of the process whose rank it takes over on the same host.
"""

from __future__ import annotations


class Places:
    """Of one host."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._unused: set[str] = set()
        """Processes that wait for a rank before they use a place."""

    def enter(self, process: str) -> int:
        """The place of a new ``process``: the lowest free one."""
        self._places[process] = self._lowest_free()
        return self._places[process]

    def wait(self, process: str) -> None:
        """``process`` uses no place until it has a rank."""
        if process in self._places:
            self._unused.add(process)

    def take(self, process: str) -> int | None:
        """The place of ``process``, which has a rank from now on; None: it is not here."""
        if process in self._unused:
            self._unused.remove(process)
            del self._places[process]
            return self.enter(process)
        return self._places.get(process)

    def leave(self, process: str) -> None:
        """``process`` has ended, or runs no more of its loop."""
        self._places.pop(process, None)
        self._unused.discard(process)

    def _lowest_free(self) -> int:
        taken = {place for one, place in self._places.items() if one not in self._unused}
        return next(place for place in range(len(taken) + 1) if place not in taken)
