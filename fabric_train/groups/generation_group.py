"""What the connections of one generation are, whichever backend makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from fabric_train.messages.process import Assignment

LOOK_S = 0.1
LOOKS = 5
"""In a row, until what looks stuck is."""
_BEFORE_2_13 = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
}
_MINIMUM = dist.AllreduceOptions()
_MINIMUM.reduceOp = dist.ReduceOp.MIN
_ANY = (1 << 63) - 1
RANKS_VERSION = "5"
"""Of what ranks say to each other beside the job's own collectives; 2: a vote has four numbers,
3: they meet in their agents' store and prove over gloo that they did; 4: who holds their shards;
5: who keeps them."""


class GenerationGroup(ABC):
    """The connections of one generation, between all its ranks.

    Its constructor blocks until all ranks are connected, or raises ``RuntimeError``.
    """

    carries_beside = False
    """Whether messages between two ranks may go beside collectives, in any order."""

    def __init__(self, assignment: Assignment, store: dist.Store, timeout_s: float) -> None:
        assert assignment.rank is not None
        self.generation = assignment.generation
        self.rank = assignment.rank
        self.world = assignment.world
        self.host = assignment.address
        """Where this rank is: alike on ranks of one host, another one on each host."""
        self.parts: dict[str, GenerationGroup] = {}
        """Connections of the groups that the job has made, by name: of those with this rank."""
        self._how = assignment, store, timeout_s

    @property
    def assignment(self) -> Assignment:
        """By which this process is part of the generation."""
        return self._how[0]

    def connect_parts(self, groups: Mapping[str, Sequence[int]]) -> None:
        """Connect what is not connected yet of ``groups``: name → ranks, this one among them.

        Each needs all of its ranks, and all ranks take them in one order. Blocks until they are
        connected, or raises ``RuntimeError``.
        """
        assignment, store, timeout_s = self._how
        for name in sorted(groups.keys() - self.parts.keys()):
            ranks = groups[name]
            mine = replace(assignment, rank=ranks.index(self.rank), world=len(ranks))
            self.parts[name] = type(self)(mine, dist.PrefixStore(f"part/{name}", store), timeout_s)

    @property
    @abstractmethod
    def group(self) -> Any:
        """Has the collectives of a ``ProcessGroup``. Each returns a ``Work``."""

    @abstractmethod
    def end(self) -> None:
        """End every collective with an error within milliseconds, and refuse others.

        Of this group without its parts. From any thread, any number of times; returns at once.
        """

    def abort(self) -> None:
        """End this group and all of its parts."""
        for one in self.all:
            one.end()

    @property
    def all(self) -> list[GenerationGroup]:
        """This group and its parts."""
        return [self, *self.parts.values()]

    @abstractmethod
    def discard(self) -> None:
        """Drop a group that nobody used, without its parts."""

    def is_mistake(self, _error: RuntimeError) -> bool:
        """Whether ``error`` is of a collective that cannot be done, and not of a lost rank."""
        return False

    def settle(self) -> None:  # noqa: B027  a group whose futures say it all needs none
        """Wait until what the training thread has started is over, where no future says so.

        Raises ``RuntimeError`` where it fails.
        """

    def quiet(self, _timeout_s: float) -> bool:
        """Wait, after ``abort``, until nothing writes memory any more. False: something might."""
        return True

    def is_stuck(self) -> bool:
        """Whether, after ``abort``, pending collectives can neither end nor write memory."""
        return False

    def attended(self, work: Callable[[], None]) -> None:
        """Do ``work``, which waits for messages of ``group``. Raises what it raises.

        ``RuntimeError`` also where an abort has missed what it waits for.
        """
        work()

    def keep(self) -> None:  # noqa: B027  only a group that can be stuck has to be kept
        """Never destroy it: that would wait for what is stuck."""

    def exchange(self, data: bytes) -> list[bytes]:
        """Give ``data`` to all ranks, and return that of each. Raises ``RuntimeError``."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        self.group.allgather([sizes], [torch.tensor([len(data)])]).wait()
        longest = max(int(size.item()) for size in sizes)
        padded = bytearray(data.ljust(longest, b"\0"))
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
        self.group.allgather([parts], [torch.frombuffer(padded, dtype=torch.uint8)]).wait()
        return [
            bytes(part.tolist())[: int(size.item())]
            for part, size in zip(parts, sizes, strict=True)
        ]

    def vote(
        self, number: int = 0, digest: int | None = 0, *, ends: bool = False
    ) -> tuple[int, bool, bool]:
        """The least ``number`` of all ranks, when every rank has called it.

        And whether all ranks have said the same ``digest``, where who says None does not care; and
        whether any rank ``ends`` its window of steps. Raises ``RuntimeError`` where a rank has not
        called it.
        """
        both = [_ANY, _ANY] if digest is None else [digest, -digest]
        least = torch.tensor([number, *both, -int(ends)])
        self.group.allreduce([least], _MINIMUM).wait()
        agreed, low, negative_high, ending = least.tolist()
        return agreed, low == _ANY or low == -negative_high, ending < 0


def method(group: Any, name: str) -> Any:
    """The method of that name, as torch 2.13 calls it. Backends may have the name before that."""
    return getattr(group, name, None) or getattr(group, _BEFORE_2_13.get(name, name))
