"""Was the cause of a job's stall named, and how soon? Pure.

A job stalls if one of its ranks makes no progress for `STALL_S` while faults last. Its cause is
named once ``explain job`` of any host has the element that was injected among its causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.detect.located_faults import Element
from bench.detect.located_score import IN_TIME_S
from bench.report import Row, percentile

STALL_S = 0.3
"""Failover to another rail takes less than a tenth of it; a busy machine's pauses are shorter."""


@dataclass(frozen=True, slots=True)
class Stall:
    """What faults did to a job, and what was said of it.

    Attributes:
        faults: what was on.
        names: of each fault, the elements of which each is right.
        still_s: the longest time in which some rank made no progress.
        named: element → seconds from the faults until any host's ``explain job`` named it first.
    """

    faults: str
    names: tuple[frozenset[Element], ...]
    still_s: float
    named: Mapping[Element, float] = field(default_factory=dict)

    @property
    def stalled(self) -> bool:
        """Whether the job stalled."""
        return self.still_s >= STALL_S

    @property
    def took_s(self) -> float | None:
        """Until each fault had one of its names; None: one never had."""
        first = [
            min((self.named[one] for one in names if one in self.named), default=None)
            for names in self.names
        ]
        found = [s for s in first if s is not None]
        return max(found) if len(found) == len(first) else None

    @property
    def wrong(self) -> frozenset[Element]:
        """What was called a cause and is none."""
        return frozenset(self.named) - frozenset[Element]().union(*self.names)


def causes(answer: Mapping[str, Any]) -> frozenset[Element]:
    """Of an answer of ``explain job``."""
    return frozenset(Element(one["part"], one["element"]) for one in answer["causes"])


def longest_still_s(samples: Iterable[tuple[int, int]], from_ns: int, to_ns: int) -> float:
    """The longest time without progress of one rank.

    Args:
        samples: (CLOCK_MONOTONIC ns, what it has done so far), in order.
        from_ns: when to begin.
        to_ns: when to end; a rank that wrote no sample by then stood still since its last.
    """
    done, since, longest = -1, from_ns, 0
    for when, count in samples:
        if when > to_ns:
            break
        if when < from_ns:
            done = max(done, count)
        elif count > done:
            longest = max(longest, when - since)
            done, since = count, when
    return max(longest, to_ns - since) / 1e9


def rows(stalls: Sequence[Stall]) -> list[Row]:
    """The table."""
    met = [one for one in stalls if one.stalled]
    took = sorted(s for one in met if (s := one.took_s) is not None)
    within = sum(s <= IN_TIME_S for s in took)
    missed = [
        f"{one.faults}: {', '.join(sorted(map(str, one.named))) or 'nothing'}"
        for one in met
        if one.took_s is None or one.took_s > IN_TIME_S
    ]
    wrong = [one for one in stalls if one.wrong]
    texts = [f"{one.faults}: {', '.join(sorted(map(str, one.wrong)))}" for one in wrong]
    share = round(100 * within / len(met), 1) if met else 0.0
    note = f"{within} of {len(met)} stalls of {len(stalls)} jobs"
    if took:
        note += f", median {percentile(took, 0.5):.1f} s, latest {took[-1]:.1f} s"
    return [
        Row(f"cause of a job's stall named within {IN_TIME_S:g} s", 95, share, "%", "higher",
            note="; ".join([note, *missed[:4]]), samples={"s": took}),
        Row("jobs with a fault of which something else was called the cause, too", None,
            len(wrong), "", note="; ".join([f"{len(stalls)} jobs", *texts[:4]])),
    ]  # fmt: skip
