"""What all ranks of a job have to begin with alike, and how they differ where they do not. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_SAID = 4  # differences of a rank


@dataclass(frozen=True)
class Beginning:
    """What one rank begins with.

    ``run`` is its proposal for the name of this run. ``facts`` are values by what they are of,
    e.g. ``optimizer group 0 lr``.
    """

    run: str
    facts: Mapping[str, str]

    def encode(self) -> bytes:
        """For ``decode``, on another rank."""
        return json.dumps([self.run, dict(self.facts)]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Beginning:
        """What ``encode`` of a rank of this job gave."""
        return cls(*json.loads(data))


class DisagreementError(Exception):
    """The ranks do not begin alike. The text says in what, and where."""


def agree(exchange: Callable[[bytes], list[bytes]], mine: Beginning) -> str:
    """The name of this run, which is rank 0's proposal. ``exchange`` gives that of each rank.

    Raises ``DisagreementError``.
    """
    beginnings = [Beginning.decode(one) for one in exchange(mine.encode())]
    if problem := disagreement(beginnings):
        raise DisagreementError(f"the ranks do not train the same: {problem}")
    return beginnings[0].run


def disagreement(beginnings: Sequence[Beginning], ranks: Sequence[int] | None = None) -> str:
    """What the first rank that differs has otherwise than the first one, for people; "": nothing.

    ``ranks``: those that the beginnings are of; None: all.
    """
    first = beginnings[0].facts
    numbers = range(len(beginnings)) if ranks is None else ranks
    for rank, one in zip(numbers, beginnings, strict=True):
        mine = one.facts
        texts = [
            f"{name} is {mine.get(name, 'absent')} on rank {rank} and "
            f"{first.get(name, 'absent')} on rank {numbers[0]}"
            for name in sorted(mine.keys() | first.keys())
            if mine.get(name) != first.get(name)
        ]
        if texts:
            return "; ".join(texts[:_SAID]) + "; …" * (len(texts) > _SAID)
    return ""


def agree_in_groups(
    exchange: Callable[[bytes], list[bytes]], mine: Mapping[str, str], group: Sequence[int]
) -> None:
    """Compare ``mine`` with that of the ranks of ``group``, of which this one is a member.

    All ranks call it, each with its own group. Raises ``DisagreementError``.
    """
    said = [Beginning.decode(one) for one in exchange(Beginning("", mine).encode())]
    if problem := disagreement([said[rank] for rank in group], group):
        raise DisagreementError(f"ranks {list(group)} do not hold the same: {problem}")


LATE = "late"
"""In place of a layout: a spare that builds its model once it has a rank, so it can take any."""


def layout_of(facts: Mapping[str, str]) -> str:
    """One word for each of ``facts``, to be compared as a whole: ``NAME=HASH …``."""
    return " ".join(
        f"{name.replace(' ', '_').replace('=', '_')}={_hash(text)}"
        for name, text in sorted(facts.items())
    )


def layout_difference(mine: str, other: str) -> str:
    """The names that have another hash in ``mine`` than in ``other``, for people."""
    here, there = _parse(mine), _parse(other)
    names = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    return ", ".join(filter(None, names))[:200] or "the state"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parse(layout: str) -> dict[str, str]:
    pairs = (word.rpartition("=") for word in layout.split(" "))
    return {name: value for name, _, value in pairs}
