"""The phases of one job, as a pure state machine: events and the time go in, effects come out.

::

    FORMING ──all ranks protected──► RUNNING ◄──all ranks recovered── RECOVERING
       │ rank lost: start again         │ rank lost, spare ready ────────►│ ▲
       ▼                                ▼ rank lost, no spare             │ │ spare ready
    FAILED                            HELD ◄──────── rank lost ───────────┘ │
                                        └────────────────────────────────────┘

RUNNING goes to ENDED when all ranks have finished. Every phase goes to FAILED when a limit is
passed or no rank holds the state any more. The shell (``agent``) spawns processes and carries
messages.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from fabric_train.rules.agreement import LATE, layout_difference
from fabric_train.rules.membership import (
    Generation,
    NotEnoughSparesError,
    first_generation,
    next_generation,
)


class Phase(enum.Enum):
    """Where a job is. The module's picture shows the transitions."""

    FORMING = "forming"
    RUNNING = "running"
    RECOVERING = "recovering"
    HELD = "held"
    ENDED = "ended"
    FAILED = "failed"


_TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.FORMING: frozenset({Phase.RUNNING, Phase.FAILED}),
    Phase.RUNNING: frozenset({Phase.RECOVERING, Phase.HELD, Phase.ENDED, Phase.FAILED}),
    Phase.RECOVERING: frozenset({Phase.RECOVERING, Phase.RUNNING, Phase.HELD, Phase.FAILED}),
    Phase.HELD: frozenset({Phase.RECOVERING, Phase.HELD, Phase.FAILED}),
    Phase.ENDED: frozenset(),
    Phase.FAILED: frozenset(),
}


@dataclass(frozen=True)
class Limits:
    """When a job is given up. Times in seconds."""

    starts: int = 3  # a rank lost before the job had state: how often to start again
    recoveries_without_progress: int = 5
    spares_that_fail: int = 3  # in a row, before one of them is warm
    answer_s: float = 30.0  # a rank that has not acknowledged a generation counts as lost
    recovery_s: float = 120.0  # a generation in which not all ranks have recovered is given up
    # A failed collective without a lost process: connect anew after this. A process that ends by an
    # error closes its connections some time before it is gone.
    suspicion_s: float = 5.0


# Effects, for the shell.


@dataclass(frozen=True)
class Spawn:
    """Start this process. ``rank``: of a spare, that for which it builds its model; None: any."""

    process: str
    spare: bool
    rank: int | None = None


@dataclass(frozen=True)
class Announce:
    """Tell every joined process its place in this generation. ``lost`` ranks changed hands."""

    generation: Generation
    lost: tuple[int, ...]
    formed: bool


@dataclass(frozen=True)
class Kill:
    """End this process; ``reason`` is for people."""

    process: str
    reason: str


@dataclass(frozen=True)
class Refuse:
    """Tell this process why it is not taken; it ends by itself."""

    process: str
    reason: str


@dataclass(frozen=True)
class ReleaseAll:
    """Tell every process that the job has ended well."""


@dataclass(frozen=True)
class JobFailed:
    """The job is lost. ``reason`` is for people."""

    reason: str


Effect = Spawn | Announce | Kill | Refuse | ReleaseAll | JobFailed


@dataclass(frozen=True)
class RecoveryRecord:
    """One recovery, for the log. Times are seconds on the caller's clock; None: not reached.

    ``step``: with which it ended; ``again``: applied steps that are run again then.
    """

    generation: int
    ranks: tuple[int, ...]
    reason: str
    lost_at: float
    assigned_at: float | None = None
    recovered_at: float | None = None
    committed_at: float | None = None
    step: int | None = None
    again: int | None = None

    def amended(self, **fields: float | int) -> RecoveryRecord:
        """This record with those of ``fields`` that it does not have yet."""
        news = {name: value for name, value in fields.items() if getattr(self, name) is None}
        return RecoveryRecord(**{**self.__dict__, **news})


@dataclass
class _Process:
    spare: bool
    rank: int | None = None  # for which its model is built before it has one; None: any
    joined: bool = False
    layout: str | None = None
    software: dict[str, str] = field(default_factory=dict)


class Coordinator:
    """One job. Each method takes ``now`` (seconds, monotonic) where time matters."""

    def __init__(
        self, world: int, spares: int, limits: Limits | None = None, early: Sequence[int] = ()
    ) -> None:
        """``early``: ranks for each of which one more spare builds its model beforehand.

        Raises ``ValueError``.
        """
        if world < 1 or spares < 0:
            raise ValueError(f"a job needs at least one rank: {world} ranks, {spares} spares")
        if len(set(early)) < len(early) or not set(early) <= set(range(world)):
            raise ValueError(f"early spares: {list(early)} are not different ranks below {world}")
        self._world = world
        self._spares = spares
        self._early = tuple(early)
        self._limits = limits or Limits()
        self._phase = Phase.FORMING
        self._processes: dict[str, _Process] = {}
        self._spawned = 0
        self._starts = 0
        self._generation: Generation | None = None
        self._acknowledged: set[str] = set()
        self._recovered: set[str] = set()
        self._spares_failed = 0
        self._committed: set[str] = set()
        self._finished: dict[str, int] = {}
        self._reference: _Process | None = None
        self._step = 0
        self._recoveries_at_step = 0
        self._recovering_since = 0.0
        self._suspected_at: float | None = None
        self._lost: dict[int, str] = {}
        self._lost_at = 0.0
        self._records: list[RecoveryRecord] = []
        self._numbers = 0

    @property
    def phase(self) -> Phase:
        """Where the job is."""
        return self._phase

    @property
    def generation(self) -> Generation | None:
        """The newest generation; None before the first."""
        return self._generation

    @property
    def records(self) -> tuple[RecoveryRecord, ...]:
        """All recoveries, oldest first; the last one may still be under way."""
        return tuple(self._records)

    @property
    def held_for(self) -> tuple[int, ...]:
        """Ranks without a process, while the job is held."""
        return tuple(sorted(self._lost)) if self._phase is Phase.HELD else ()

    def start(self) -> list[Effect]:
        """Processes of a start from the beginning."""
        self._starts += 1
        self._generation = None
        self._reference = None
        self._suspected_at = None
        return [self._spawn(spare=False) for _ in range(self._world)] + self._fill_spares()

    def joined(self, process: str, software: dict[str, str]) -> list[Effect]:
        """``process`` has said hello, with the versions of its ``software``."""
        known = self._processes.get(process)
        if known is None or known.joined:
            return [Refuse(process, "no process of this job, or one that is here already")]
        for other in self._processes.values():
            if other.joined and other.software != software:
                return [Refuse(process, _difference(software, other.software))]
        known.joined, known.software = True, software
        if self._phase is Phase.ENDED:
            return [ReleaseAll()]  # a spare that was still starting when the job ended
        if self._phase is Phase.FORMING and self._generation is None:
            ranks = [name for name, one in self._processes.items() if not one.spare]
            if all(self._processes[name].joined for name in ranks):
                return [self._announce(first_generation(ranks), formed=False)]
        return []

    def protected(self, process: str, layout: str, now: float) -> list[Effect]:
        """``process`` has built its model: ``layout`` is a hash of names, shapes and types."""
        known = self._processes.get(process)
        if known is None:
            return []
        late = layout == LATE
        if self._reference is not None and not late and self._reference.layout != layout:
            reason = (
                f"{layout_difference(layout, str(self._reference.layout))}: not as in the job's "
                "other processes, so it does not train the same model"
            )
            refusal: list[Effect] = [Refuse(process, reason)]
            if self._generation is not None and self._generation.rank_of(process) is not None:
                return refusal + self._fail(f"process {process}: {reason}")
            return refusal
        known.layout = layout
        self._spares_failed = 0
        self._reference = self._reference or (None if late else known)
        if self._phase is Phase.FORMING and self._generation is not None:
            if all(self._has_layout(name) for name in self._generation.slots):
                self._set_phase(Phase.RUNNING)
        elif self._phase is Phase.HELD and known.spare:
            return self._reassign(now)
        return []

    def lost(self, process: str, reason: str, now: float) -> list[Effect]:
        """``process`` has ended, or counts as ended. ``reason`` says how."""
        known = self._processes.pop(process, None)
        if known is None or self._phase in (Phase.ENDED, Phase.FAILED):
            return []
        self._finished.pop(process, None)
        rank = self._generation.rank_of(process) if self._generation else None
        if self._phase is Phase.FORMING and not known.spare:
            return self._start_again(f"{reason} before the job had state")
        if rank is None:
            return self._lost_spare(known, reason)
        return self._lose({rank: reason}, now)

    def acknowledged(self, process: str, generation: int) -> None:
        """``process`` has heard of ``generation``."""
        if self._generation is not None and generation == self._generation.number:
            self._acknowledged.add(process)

    def recovered(
        self, process: str, generation: int, step: int, now: float, again: int = 0
    ) -> list[Effect]:
        """``process`` holds the state after ``step`` steps in ``generation``.

        ``again``: applied steps that are run again.
        """
        if self._generation is None or generation != self._generation.number:
            return []
        self._recovered.add(process)
        if self._phase is not Phase.RECOVERING or not self._recovered.issuperset(
            self._generation.slots
        ):
            return []
        self._lost.clear()
        self._set_phase(Phase.RUNNING)
        self._amend(recovered_at=now, step=step, again=again)
        return self._fill_spares()

    def committed(self, process: str, generation: int, step: int, now: float) -> None:
        """``process`` has applied ``step`` steps."""
        if self._generation is None or generation != self._generation.number:
            return
        if step > self._step:
            self._step = step
            self._recoveries_at_step = 0
        self._committed.add(process)
        if self._records and self._committed.issuperset(self._generation.slots):
            self._amend(committed_at=now)

    def finished(self, process: str, step: int) -> list[Effect]:
        """The training loop of ``process`` has ended after ``step`` steps."""
        if self._generation is None or self._generation.rank_of(process) is None:
            return []
        self._finished[process] = step
        if self._phase is Phase.RUNNING and self._finished.keys() >= set(self._generation.slots):
            steps = set(self._finished.values())
            if len(steps) != 1:
                return self._fail(f"the ranks' loops ended at different steps: {sorted(steps)}")
            self._set_phase(Phase.ENDED)
            slots = self._generation.slots
            late: list[Effect] = [
                Kill(name, "the job has ended")
                for name, one in self._processes.items()
                if name not in slots and not one.joined
            ]
            return [ReleaseAll(), *late]
        return []

    def given_up(self, process: str, reason: str) -> list[Effect]:
        """``process`` says that the job cannot go on."""
        return self._fail(f"{self._name(process)}: {reason}")

    def suspect(self, generation: int, now: float) -> None:
        """A collective of ``generation`` failed: a process is lost, or only a connection."""
        if self._generation is None:
            return
        if generation == self._generation.number and self._suspected_at is None:
            self._suspected_at = now

    def expire(self, now: float) -> list[Effect]:
        """Connect anew after a suspicion; ranks that have not recovered in time count as lost."""
        if self._generation is None:
            return []
        if self._suspected_at is not None and self._phase in (Phase.RUNNING, Phase.RECOVERING):
            if now - self._suspected_at <= self._limits.suspicion_s:
                return []
            self._lost_at = self._suspected_at
            return self._count_recovery("connections failed") or self._reassign(now)
        if self._phase is not Phase.RECOVERING:
            return []
        waited = now - self._recovering_since
        silent = [name for name in self._generation.slots if name not in self._acknowledged]
        if silent and waited > self._limits.answer_s:
            reason = f"silent for {self._limits.answer_s:g} s after another rank was lost"
            lost: dict[int, str] = {}
            for name in silent:  # all of them, before anybody takes a rank beside one of them
                self._processes.pop(name, None)
                self._finished.pop(name, None)
                lost[self._generation.slots.index(name)] = reason
            kills: list[Effect] = [Kill(name, reason) for name in silent]
            return kills + self._lose(lost, now)
        if waited > self._limits.recovery_s:
            what = f"not all ranks recovered within {self._limits.recovery_s:g} s"
            return self._count_recovery(what) or self._reassign(now)
        return []

    def _lose(self, ranks: dict[int, str], now: float) -> list[Effect]:
        """These ranks have no process any more; why, for each."""
        if not self._lost:
            self._lost_at = now
        self._lost |= ranks
        said = "; ".join(f"rank {rank}: {why}" for rank, why in ranks.items())
        return self._count_recovery(said) or self._reassign(now)

    def _lost_spare(self, spare: _Process, reason: str) -> list[Effect]:
        if spare.layout is None:
            self._spares_failed += 1
        if self._spares_failed < self._limits.spares_that_fail:
            return self._fill_spares() if self._phase in (Phase.RUNNING, Phase.HELD) else []
        if self._phase is not Phase.HELD:
            return []  # the job goes on without
        return self._fail(
            f"no process for rank {', '.join(map(str, sorted(self._lost)))}: "
            f"{self._spares_failed} new ones ended before they were warm; the last: {reason}"
        )

    def _count_recovery(self, reason: str) -> list[Effect]:
        self._recoveries_at_step += 1
        limit = self._limits.recoveries_without_progress
        if self._recoveries_at_step <= limit:
            return []
        return self._fail(
            f"{limit} recoveries without a step forward from step {self._step}; the last: {reason}"
        )

    def _name(self, process: str) -> str:
        rank = self._generation.rank_of(process) if self._generation else None
        return f"process {process}" if rank is None else f"rank {rank} ({process})"

    def _has_layout(self, process: str) -> bool:
        return process in self._processes and self._processes[process].layout is not None

    def _set_phase(self, phase: Phase) -> None:
        if phase not in _TRANSITIONS[self._phase]:
            raise ValueError(f"no transition from {self._phase.value} to {phase.value}")
        self._phase = phase

    def _spawn(self, *, spare: bool, rank: int | None = None) -> Spawn:
        process = f"p{self._spawned}"
        self._spawned += 1
        self._processes[process] = _Process(spare, rank)
        return Spawn(process, spare, rank)

    def _fill_spares(self) -> list[Effect]:
        holders = self._generation.slots if self._generation else ()
        waiting = [
            one.rank for name, one in self._processes.items() if one.spare and name not in holders
        ]
        wanted = max(self._spares, sum(rank not in waiting for rank in self._lost))
        more = range(wanted - waiting.count(None))
        return [
            *(self._spawn(spare=True) for _ in more),
            *(self._spawn(spare=True, rank=rank) for rank in self._early if rank not in waiting),
        ]

    def _announce(self, generation: Generation, *, formed: bool) -> Announce:
        self._numbers = max(self._numbers, generation.number - 1) + 1
        self._generation = Generation(self._numbers, generation.slots)
        self._acknowledged.clear()
        self._recovered.clear()
        self._committed.clear()
        self._finished.clear()
        return Announce(self._generation, tuple(sorted(self._lost)), formed)

    def _reassign(self, now: float) -> list[Effect]:
        assert self._generation is not None
        if not any(name in self._processes for name in self._generation.slots):
            return self._fail("all ranks are lost, and with them the state")
        spares = [
            name
            for name, one in self._processes.items()
            if one.spare and one.layout is not None and self._generation.rank_of(name) is None
        ]
        early = {name: one.rank for name, one in self._processes.items() if one.rank is not None}
        try:
            generation = next_generation(self._generation, set(self._processes), spares, early)
        except NotEnoughSparesError:
            self._set_phase(Phase.HELD)
            return self._fill_spares()
        for name in generation.slots:
            self._processes[name].spare = False
        self._set_phase(Phase.RECOVERING)
        self._recovering_since = now
        self._suspected_at = None
        announce = self._announce(generation, formed=True)
        reason = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(self._lost.items()))
        reason = reason or "connections failed"
        ranks = tuple(sorted(self._lost))
        self._records.append(
            RecoveryRecord(announce.generation.number, ranks, reason, self._lost_at, now)
        )
        return [announce]

    def _amend(self, **fields: float | int) -> None:
        self._records[-1] = self._records[-1].amended(**fields)

    def _start_again(self, reason: str) -> list[Effect]:
        if self._starts >= self._limits.starts:
            return self._fail(f"{reason}, {self._starts} times")
        kills: list[Effect] = [Kill(name, "the job starts again") for name in self._processes]
        self._processes.clear()
        return kills + self.start()

    def _fail(self, reason: str) -> list[Effect]:
        if self._phase in (Phase.ENDED, Phase.FAILED):
            return []
        self._phase = Phase.FAILED
        kills: list[Effect] = [Kill(name, reason) for name in self._processes]
        return [JobFailed(reason), *kills]


def _difference(mine: dict[str, str], other: dict[str, str]) -> str:
    names = sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))
    return "; ".join(
        f"{name} is {mine.get(name, 'absent')} here and {other.get(name, 'absent')} in the job"
        for name in names
    )
