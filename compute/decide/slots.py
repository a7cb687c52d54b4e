"""Places of ranks that are not used again. Pure.

A process ended there twice without a step, or somebody said that the place is broken. A place is a
rank on a host: most often one GPU. Only that rank moves; the others of the host stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from compute.decide.recovery import JobRecord
from fabric_train.messages.documents import JobGeneration

ENDS = 2
"""Ends of a rank's processes on one host, of which all but the first have made no step."""


@dataclass
class _Ends:
    count: int
    processes: set[str]
    why: str


class BrokenSlots:
    """Where the ranks of one job have ended; kept until they are cleared, or the job is over."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], _Ends] = {}
        self._left_out: dict[tuple[str, int], str] = {}
        self._records: list[JobRecord] = []

    def update(
        self, generation: JobGeneration, ended: Mapping[int, str], stepped: Collection[str]
    ) -> None:
        """These ranks of ``generation`` have lost their process, not their host.

        ``ended``: rank → why. ``stepped``: processes that have committed a step.
        """
        for rank, why in sorted(ended.items()):
            place, process = (generation.hosts[rank], rank), generation.slots[rank]
            known = self._ends.get(place)
            if known is not None and process in known.processes:
                continue
            if known is None or process in stepped:
                known = self._ends[place] = _Ends(0, set(), why)
            known.count += 1
            known.processes.add(process)
            known.why = why
            if known.count >= ENDS:
                reason = f"its process ended {known.count} times without a step, the last: {why}"
                self.leave_out(*place, reason)

    def leave_out(self, host: str, rank: int, reason: str) -> None:
        """``rank`` is placed on ``host`` no more. What was said first stays."""
        if (host, rank) not in self._left_out:
            self._left_out[host, rank] = reason
            fields = {"host": host, "rank": rank, "reason": reason}
            self._records.append(JobRecord("slot_left_out", fields))

    def misplaced(self, generation: JobGeneration) -> dict[int, str]:
        """Ranks of ``generation`` whose place is left out → why they shall move."""
        return {
            rank: f"rank {rank} is left out on {host} ({self._left_out[host, rank]})"
            for rank, host in enumerate(generation.hosts)
            if (host, rank) in self._left_out
        }

    @property
    def left_out(self) -> Mapping[tuple[str, int], str]:
        """Host and rank → why that rank is not placed there."""
        return self._left_out

    def clear(self, host: str) -> None:
        """``host`` is repaired: places on it may be used again."""
        for place in [one for one in self._left_out if one[0] == host]:
            del self._left_out[place]
            self._ends.pop(place, None)
            self._records.append(JobRecord("slot_cleared", {"host": host, "rank": place[1]}))

    def take_records(self) -> list[JobRecord]:
        """What has changed since the last call."""
        records, self._records = self._records, []
        return records
