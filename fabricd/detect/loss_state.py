"""What the test of gray loss (`fabricd.detect.loss`) keeps of each path and link. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fabricd.detect.baseline_rate import BaselineRate
from fabricd.detect.locate import Blame, Kind, Way
from fabricd.detect.loss_rules import LossCount, LossCounters
from fabricd.detect.sequential import Cusum
from fabricd.probes.records import Direction


class LossEvidence(NamedTuple):
    """Of one direction of one path: what was lost without a queue on it, and behind one."""

    calm: LossCount
    queued: LossCount

    def since(self, before: LossEvidence) -> LossEvidence:
        """What came since then."""
        return LossEvidence(self.calm.since(before.calm), self.queued.since(before.queued))


NO_EVIDENCE = LossEvidence(LossCount(), LossCount())


@dataclass(slots=True)
class DirectionLoss:
    """One direction of one path."""

    calm: LossCount = field(default_factory=LossCount)
    """Admitted as evidence so far, while no queue stood on the path."""
    queued: LossCount = field(default_factory=LossCount)
    """While one stood."""
    before: LossEvidence = NO_EVIDENCE
    """The same at the last reading but one."""
    cusum: Cusum = field(default_factory=Cusum)
    blamed: str = ""

    @property
    def now(self) -> LossEvidence:
        """Both."""
        return LossEvidence(self.calm, self.queued)

    def count(self, lost: float, packets: float, *, queued: bool) -> None:
        """Take what was read."""
        if queued:
            self.queued = LossCount(self.queued.lost + lost, self.queued.packets + packets)
        else:
            self.calm = LossCount(self.calm.lost + lost, self.calm.packets + packets)


BothWays = tuple[LossEvidence, LossEvidence]
"""Of rx and tx."""


@dataclass(slots=True)
class PathLoss:
    """One path."""

    row: LossCounters
    """As it was last read."""
    absent: tuple[int, int]
    """Packets lost, or believed lost, by then: rx, tx."""
    anew: bool = False
    """What its counters say next is where they go on from."""
    settled_ns: int = 0
    halves: tuple[DirectionLoss, DirectionLoss] = field(
        default_factory=lambda: (DirectionLoss(), DirectionLoss())
    )


@dataclass(slots=True)
class LinkLoss:
    """One direction of one link."""

    baseline: BaselineRate
    cusum: Cusum = field(default_factory=Cusum)
    before: dict[int, BothWays] = field(default_factory=dict)
    """All paths' counts when the evidence began; of a blamed link, at the last asking but one."""
    asked_at: dict[int, BothWays] = field(default_factory=dict)
    """The same at the last asking: what is old does not speak for ever."""
    blamed: str = ""
    place: Blame | None = None
    """Where its losses come from. An element that several ports share is named when two askings in
    a row name it: the first losses of two ports look like it."""
    answer: Blame | None = None
    """The newest asking's."""
    asked: float = 0.0
    """Losses when it was last asked where they are: more may change the answer."""
    relapse_ns: int = 0
    """Until then it was sick not long ago, and has to be better for longer to be called well."""

    def settle(self, answer: Blame | None) -> None:
        """Take where the losses come from, as asked anew; None: nobody can say."""
        before, self.answer = self.answer, answer
        again = before is not None and answer is not None and before.element == answer.element
        if answer is None or again or answer.kind in (Kind.LINK, Kind.UNKNOWN):
            self.place = answer
        else:
            self.place = replace(answer, kind=Kind.UNKNOWN, element="", way=Way.BOTH)


def lost_text(cusum: Cusum, way: Direction, peers: Collection[str]) -> str:
    """For people: how much of whose probes is lost, and which way."""
    names = sorted(peers)
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    word = "from" if way is Direction.RX else "to"
    return f"{100 * cusum.rate:.2g} % of probes {word} {shown} lost"
