"""A job's ranks in virtual time, whose steps are uneven in many ways, and what they say of them.

Each rank measures by `OwnTime` and `WindowLog` on a clock of its own. A step ends for all when the
slowest rank has done its part. `SlowRanks` gets documents a random time later, and some twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from compute.decide.slow_ranks import SlowRanks
from fabric_train.messages.documents import (
    AgentDocument,
    JobGeneration,
    Member,
    ProcessState,
    parse,
    to_data,
)
from fabric_train.messages.step_window import StepWindow, patience_s
from fabric_train.rank.own_time import OwnTime, WindowLog

LOOK_S = 1.0
CALM_S = 60.0
"""Between two episodes in which one rank is slow."""
PERCENT = 8.0


def generation(ranks: int, number: int = 1) -> JobGeneration:
    hosts = [f"h{i}" for i in range(ranks)]
    agents = [f"{host}/i" for host in hosts]
    return JobGeneration(
        number, number - 1, [f"{host}.p" for host in hosts], hosts, agents, agents,
        [Member(host, "i", f"{host}:1", f"{host}:2", "t") for host in hosts], "h0:2", True,
    )  # fmt: skip


def document(host: str, ranks: int, window: StepWindow | None) -> AgentDocument:
    """As fabric-compute reads it."""
    process = ProcessState(f"{host}.p", "warm", layout="L", committed=1, step=9, window=window)
    sent = AgentDocument(
        "gpt", host, "i", ranks, 0, 1, f"{host}:1", f"{host}:2", "t", [process], running=1
    )
    read: AgentDocument = parse(AgentDocument, to_data(sent))
    return read


@dataclass
class Unevenness:
    """Shares and standard deviations of logarithms, of own time; times in seconds."""

    step_s: float = 0.5
    own: float = 0.03
    """Of each rank and step."""
    common: float = 0.0
    """Of each step, on all ranks alike."""
    long_steps: float = 0.0
    """Chance of a step that is twice as long, on all ranks."""
    imbalance: float = 0.0
    """Of each rank and step: sequences are not of one length."""
    drift: float = 0.0
    """By so much all ranks are slower after half an hour."""
    checkpoint_every: int = 0
    checkpoint_s: float = 0.0
    """Rank 0 writes it, the others wait."""
    evaluation_every: int = 0
    stall: float = 0.0
    """Chance of a stall of one rank in a step."""
    stall_s: float = 0.0
    episodes: float = 0.0
    """Chance of one a second in which a rank is slow for `episode_s`."""
    episode_s: float = 0.0
    episode: float = 1.4
    transfer_s: float = 0.005
    buckets: int = 1


@dataclass
class Rank:
    rank: int
    log: WindowLog
    skew: float
    offset: float
    own: OwnTime = field(default_factory=OwnTime)
    window: StepWindow | None = None
    read_at: float = 0.0
    told: StepWindow | None = None
    slow_until: float = -1e9
    used: float = 0.0

    def clock(self, now: float) -> float:
        return self.offset + now * self.skew


class Job:
    """``factor(rank, now)``: by what the rank is slower at that time. Kinds of broken measuring:
    ``waiting``: what a rank waits for others counts as its own.
    """

    def __init__(
        self, seed: int, ranks: int, uneven: Unevenness, *,
        factor: Callable[[int, float], float] = lambda _rank, _now: 1.0, waiting: bool = False,
        slow: SlowRanks | None = None,
    ) -> None:  # fmt: skip
        self.random = random.Random(seed)
        self.uneven, self.factor, self.waiting = uneven, factor, waiting
        self.world = ranks
        self.generation = generation(ranks)
        self.ranks = [
            Rank(i, WindowLog(ranks), 1 + self.random.uniform(-1e-4, 1e-4),
                 self.random.uniform(-1e6, 1e6))
            for i in range(ranks)
        ]  # fmt: skip
        self.slow = slow or SlowRanks(PERCENT)
        self.now, self.step = 0.0, 0
        self._queue: list[tuple[float, int, AgentDocument]] = []
        self.named_at: dict[int, float] = {}
        self.ever: set[int] = set()
        self.windows, self.episodes = 0, 0

    def own_s(self, rank: Rank, common: float) -> float:
        u, draw = self.uneven, self.random
        own = u.step_s * common * draw.lognormvariate(0.0, u.own)
        if u.imbalance:
            own *= max(0.05, draw.gauss(1.0, u.imbalance))
        if u.checkpoint_every and rank.rank == 0 and self.step % u.checkpoint_every == 0:
            own += u.checkpoint_s
        if u.stall and draw.random() < u.stall:
            own += draw.uniform(0, u.stall_s)
        if self.now < rank.slow_until:
            own *= u.episode
        return own * self.factor(rank.rank, self.now)

    def common(self) -> float:
        u, draw = self.uneven, self.random
        common = draw.lognormvariate(0.0, u.common) * (1 + u.drift * self.now / 1800)
        if draw.random() < u.long_steps:
            common *= 2
        if u.evaluation_every and self.step % u.evaluation_every == 0:
            common *= 10
        return common

    def run_step(self) -> None:
        u = self.uneven
        common = self.common()
        begins = self.now
        owns = [self.own_s(rank, common) for rank in self.ranks]
        ends = begins + max(owns) + u.transfer_s
        ending = False
        for rank, own in zip(self.ranks, owns, strict=True):
            self._measure(rank, begins, own, ends)
            ending |= rank.log.wants_end(rank.clock(ends))
        self.step += 1
        for rank, own in zip(self.ranks, owns, strict=True):
            measured = rank.own.gate_reached(rank.clock(ends), rank.used)
            if self.waiting and measured is not None:
                measured = ends - begins if own < max(owns) else own
            window = rank.log.add(measured, 1, self.step, rank.clock(ends), ends=ending)
            rank.window = window or rank.window
            self.windows += window is not None
            rank.own.gate_left(rank.clock(ends))
        lasted = ends - begins
        for rank in self.ranks:
            calm = ends > rank.slow_until + CALM_S
            if u.episodes and calm and self.random.random() < u.episodes * lasted:
                rank.slow_until = ends + u.episode_s
                self.episodes += 1
        self.now = ends
        self._tell()

    def _measure(self, rank: Rank, begins: float, own: float, ends: float) -> None:
        """One bucket after the other is reduced beside the backward pass; then all is awaited."""
        buckets = self.uneven.buckets
        for bucket in range(1, buckets + 1):
            at = begins + own * (0.5 + 0.5 * bucket / buckets)
            rank.own.started(rank.clock(at), rank.used + at - begins)
        rank.used += own
        for _ in range(buckets):
            rank.own.ended(rank.clock(ends), rank.used)

    def _tell(self) -> None:
        for rank in self.ranks:
            if rank.window is not rank.told:
                rank.told = rank.window
                delay = self.random.uniform(0, LOOK_S + patience_s(self.world))
                said = document(f"h{rank.rank}", self.world, rank.window)
                self._queue.append((self.now + delay, rank.rank, said))
        due = sorted((one for one in self._queue if one[0] <= self.now), key=lambda one: one[:2])
        self._queue = [one for one in self._queue if one[0] > self.now]
        for at, _, said in due:
            for _ in range(self.random.choice((1, 1, 2))):
                self.slow.update(said, self.generation, at)
            for one in self.slow.named:
                self.named_at.setdefault(one.rank, at)
                self.ever.add(one.rank)

    def run(self, seconds: float) -> Job:
        end = self.now + seconds
        while self.now < end:
            self.run_step()
        return self


def uneven(seed: int) -> tuple[int, Unevenness]:
    """Ranks and unevenness of a job that no rank is slow in."""
    draw = random.Random(seed)
    return draw.choice((3, 4, 5, 8, 12)), Unevenness(
        step_s=draw.choice((0.12, 0.3, 0.6, 1.2, 2.0, 8.0)),
        own=draw.choice((0.005, 0.02, 0.05, 0.1)),
        common=draw.choice((0.0, 0.05, 0.3)),
        long_steps=draw.choice((0.0, 0.1, 0.5)),
        imbalance=draw.choice((0.0, 0.05, 0.2)),
        drift=draw.choice((0.0, 0.3)),
        checkpoint_every=draw.choice((0, 100, 400)),
        checkpoint_s=draw.uniform(1, 20),
        evaluation_every=draw.choice((0, 150)),
        stall=draw.choice((0.0, 0.001, 0.003)),
        stall_s=draw.uniform(0.5, 20),
        episodes=draw.choice((0.0, 0.003)),
        episode_s=12.0,
        buckets=draw.choice((1, 1, 3)),
    )
