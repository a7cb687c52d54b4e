"""Which ranks of a job need more time of their own for a step than the others. Pure.

Each rank says how long it works by itself in a step, without what it waits for others, in windows
of the same steps on all ranks (``fabric_train.rank.own_time``). The *slowness* of a rank in a
block of a window is the logarithm of its own time over the median of all ranks.

A rank is named when the lower confidence bound of its slowness is above the limit in two windows,
one after the other. The bound is a median minus `CONFIDENCE` standard errors, which are estimated
from the median absolute deviation of the rank's own blocks. Of a noisy rank one window says little:
then up to `MOST_WINDOWS` of them count together, as long as the rank was slower than by half of the
limit in each. It is cleared when its slowness was below half of the limit in two windows.

It is no evidence: nobody is fenced or moved for it. Times are seconds of the caller.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from statistics import median

from compute.decide.recovery import JobRecord
from fabric_train.messages.documents import AgentDocument, JobGeneration
from fabric_train.messages.step_window import StepWindow

LEAST_RANKS = 3
"""Of two ranks nothing tells whether one is slow or the other one quick."""
IN_A_ROW = 2
MOST_WINDOWS = 8
SPANS = (1, 3, 5, MOST_WINDOWS)
"""So many windows count together."""
CONFIDENCE = 2.5
NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
OF_MEDIAN = 1.2533
"""Standard error of a median over that of a mean."""
LEAST_DEVIATION = 0.002
GATHER_S = 20.0
"""So long the windows of the last ranks are awaited; then more than half of them are enough."""
LEAST_DELAY = 0.01
"""Of a step: who delays it by less is not worth naming."""
TOLD_STEP = 0.05
"""A ratio that is told is told anew when it has changed by so much."""
SAMPLE = 64
"""Ranks by which the usual deviation is estimated."""
MOST_ROUNDS = 4
"""Windows of which some ranks have told: what comes first is given up."""
AT_ONCE = 256
"""Ranks that one document has judged: the judgement of a large job delays no other decision."""


def of_ranks(values: Sequence[float]) -> float:
    """What ranks are compared with: fewer than half of them may be slow, and do not move it."""
    return median(values)


@dataclass(frozen=True)
class SlowRank:
    """A rank that is named. ``ratio``: its own time over the median of all ranks."""

    rank: int
    host: str
    ratio: float
    own_ms: float
    step_ms: float

    @property
    def text(self) -> str:
        """For people."""
        delay = self.own_ms * (1 - 1 / self.ratio)
        return (
            f"rank {self.rank} on {self.host} is slow: {self.ratio:.2f} times the median of the "
            f"ranks in time of its own, {self.own_ms:.3g} ms of each step of {self.step_ms:.3g} "
            f"ms; the others wait {delay:.3g} ms for it"
        )


@dataclass
class _Round:
    """One window, as far as ranks have told it."""

    since: float
    windows: dict[int, StepWindow] = field(default_factory=dict)


@dataclass
class _History:
    """Slowness of one rank: the blocks of each window, newest last."""

    windows: deque[array[float]] = field(default_factory=lambda: deque(maxlen=MOST_WINDOWS))
    medians: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WINDOWS))
    last: int = 0
    """Of the newest window."""
    least: float = -math.inf
    """The lower one of the medians of the newest window's halves: slow all the time is above."""
    above: int = 0
    """Windows in a row with a bound above the limit."""
    below: int = 0

    def add(self, window: StepWindow, middles: Sequence[float]) -> None:
        """``window``, where ``middles`` are the logarithms of the ranks; once for each window."""
        if window.last == self.last:
            return
        self.last = window.last
        blocks = array("d", map(sub, map(math.log, window.blocks_ns), middles))
        self.windows.append(blocks)
        self.medians.append(median(blocks))
        half = len(blocks) // 2
        self.least = min(median(blocks[:half]), median(blocks[half:]))

    @property
    def deviation(self) -> float:
        """Of a block, by how much blocks of one window differ from each other."""
        apart = (
            abs(one - middle)
            for blocks, middle in zip(self.windows, self.medians, strict=True)
            for one in blocks
        )
        return NORMAL * median(apart)

    def bound(self, limit: float, least_deviation: float) -> float:
        """The highest lower bound that any span of the newest windows gives."""
        error = OF_MEDIAN * max(self.deviation, least_deviation)
        best = -math.inf
        for span in SPANS:
            if span > len(self.medians):
                break
            lowest = min(self.least, *[*self.medians][-span:])
            if lowest <= (limit if span == 1 else limit / 2):
                continue
            blocks = [one for window in list(self.windows)[-span:] for one in window]
            best = max(best, median(blocks) - CONFIDENCE * error / math.sqrt(len(blocks)))
        return best


class SlowRanks:
    """Of one job."""

    def __init__(self, percent: float) -> None:
        """``percent`` of the median that a rank has to be slower than."""
        self._limit = math.log1p(percent / 100)
        self._generation: JobGeneration | None = None
        self._rounds: dict[int, _Round] = {}
        self._judged = 0
        """The last step of the newest window that was judged."""
        self._cases: deque[tuple[int, StepWindow]] = deque()
        """Ranks that are not judged yet, with the window that is judged."""
        self._middles: list[float] = []
        """Of that window, for each block: what its ranks are compared with."""
        self._usual = LEAST_DEVIATION
        self._histories: dict[int, _History] = {}
        self._named: dict[int, SlowRank] = {}
        self._records: list[JobRecord] = []

    @property
    def named(self) -> list[SlowRank]:
        """Ranks that are slow now, the slowest first."""
        return sorted(self._named.values(), key=lambda one: (-one.ratio, one.rank))

    @property
    def rounds(self) -> int:
        """Windows that not all ranks have told yet."""
        return len(self._rounds)

    @property
    def has_news(self) -> bool:
        """There is something to take."""
        return bool(self._records)

    def take_records(self) -> list[JobRecord]:
        """What has changed since the last call, for the ledger."""
        records, self._records = self._records, []
        return records

    def update(self, document: AgentDocument, generation: JobGeneration | None, now: float) -> None:
        """An agent says how long its ranks have worked."""
        if generation is None:
            return
        if self._generation is None or self._generation.proposal != generation.proposal:
            self._begin(generation)
        for process in document.processes:
            window, rank = process.window, generation.rank_of(process.process)
            if window is not None and rank is not None and window.generation == generation.number:
                self._add(rank, window, now)
        for _ in range(AT_ONCE):
            if not self._cases and not self._begin_round(now):
                return
            if self._cases:
                self._judge(*self._cases.popleft())

    def _begin(self, generation: JobGeneration) -> None:
        """Ranks have moved, and what they wait for may be another: nothing is known of them."""
        for one in self.named:
            self._tell(one, "cleared", f"generation {generation.number}: it is measured anew")
        self._generation = generation
        self._rounds, self._judged = {}, 0
        self._cases.clear()
        self._histories, self._named = {}, {}

    def _add(self, rank: int, window: StepWindow, now: float) -> None:
        if not window.is_sound or window.last <= self._judged:
            return
        if window.last not in self._rounds and len(self._rounds) >= MOST_ROUNDS:
            del self._rounds[next(iter(self._rounds))]  # what ranks say may be anything
        self._rounds.setdefault(window.last, _Round(now)).windows.setdefault(rank, window)

    def _is_whole(self, one: _Round, now: float) -> bool:
        assert self._generation is not None
        ranks, told = len(self._generation.slots), len(one.windows)
        return told == ranks or (now - one.since >= GATHER_S and 2 * told > ranks)

    def _begin_round(self, now: float) -> bool:
        """Take the first window that can be judged. False: there is none."""
        whole = (last for last in sorted(self._rounds) if self._is_whole(self._rounds[last], now))
        last = next(whole, None)
        if last is None:
            return False
        windows = _of_same_steps(self._rounds[last].windows)
        self._judged = last
        self._rounds = {one: kept for one, kept in self._rounds.items() if one > last}
        if len(windows) < LEAST_RANKS:
            return True
        logs = (map(math.log, one.blocks_ns) for one in windows.values())
        self._middles = [of_ranks(blocks) for blocks in zip(*logs, strict=True)]
        deviations = []
        for rank in sorted(windows)[:: max(1, len(windows) // SAMPLE)]:
            history = self._histories.setdefault(rank, _History())
            history.add(windows[rank], self._middles)
            deviations.append(history.deviation)
        self._usual = max(LEAST_DEVIATION, median(deviations))
        self._cases.extend(windows.items())
        return True

    def _judge(self, rank: int, window: StepWindow) -> None:
        assert self._generation is not None
        median_ns = math.exp(median(self._middles))
        history = self._histories.setdefault(rank, _History())
        history.add(window, self._middles)
        newest = history.medians[-1]
        slow = history.bound(self._limit, self._usual) > self._limit
        ratio = math.exp(median([*history.medians][-IN_A_ROW:]))
        step_ns = window.wall_ns / window.steps
        history.above = history.above + 1 if slow else 0
        history.below = history.below + 1 if newest < self._limit / 2 else 0
        found = SlowRank(
            rank, self._generation.hosts[rank], round(ratio, 3),
            round(median_ns * ratio / 1e6, 3), round(step_ns / 1e6, 3),
        )  # fmt: skip
        before = self._named.get(rank)
        if before is None:
            delays = median_ns * (ratio - 1) / step_ns
            if history.above >= IN_A_ROW and delays >= LEAST_DELAY:
                self._named[rank] = found
                self._tell(found, "named", found.text)
        elif history.below >= IN_A_ROW:
            del self._named[rank]
            self._tell(found, "cleared", f"rank {rank} is as quick as others again")
        elif abs(before.ratio - found.ratio) >= TOLD_STEP:
            self._named[rank] = found

    def _tell(self, one: SlowRank, state: str, reason: str) -> None:
        assert self._generation is not None
        fields = {
            "generation": self._generation.number, "rank": one.rank, "host": one.host,
            "state": state, "ratio": one.ratio, "reason": reason,
        }  # fmt: skip
        self._records.append(JobRecord("slow_rank", fields))


def _of_same_steps(windows: Mapping[int, StepWindow]) -> dict[int, StepWindow]:
    """Windows of those ranks that were measured in the same steps as most."""
    counts: Sequence[int] = sorted(one.steps for one in windows.values())
    usual = counts[len(counts) // 2]
    return {rank: one for rank, one in windows.items() if one.steps == usual}
