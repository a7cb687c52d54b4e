"""Where the rank-local state of each rank is kept: here, and on two other hosts. Pure.

The buddies of a host are the next two hosts with ranks, in slot order. A rank hears that its state
is stored when all buddies that are heard have acknowledged it, and at least one has. So a step that
any rank has applied can be continued after the loss of any one host.

A host that hears no buddy for a while, whose collectives go on all the same, has lost its network
of agents alone. It trains on without copies rather than hold the whole job; if it is lost before a
buddy is heard again, the job cannot go on, so people are told.

Spare hosts are no buddies: the loss of one makes no new generation, so a rank could wait for it for
ever. A job whose ranks are all on one host has none; with that host it loses all replicas, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fabric_train.messages.documents import JobGeneration
from fabric_train.messages.state_memory import STEPS

BUDDIES = 2


@dataclass(frozen=True)
class Copy:
    """Send this state to the agent on ``host``."""

    host: str
    generation: int
    rank: int
    step: int
    body: bytes
    number: int = 0


@dataclass(frozen=True)
class ConfirmStored:
    """Tell ``process`` that its state of ``step`` and ``number`` is safe."""

    process: str
    step: int
    number: int = 0


Effect = Copy | ConfirmStored


@dataclass
class _State:
    generation: int
    body: bytes
    number: int
    acknowledged: set[str]


def buddies_of(host: str, generation: JobGeneration) -> tuple[str, ...]:
    """The hosts that keep the rank-local state of the ranks on ``host``."""
    ring = list(dict.fromkeys(generation.hosts))
    if host not in ring:
        return ()
    at = ring.index(host)
    return tuple((ring[at + 1 :] + ring[:at])[:BUDDIES])


class LocalStates:
    """The states that the agent on ``host`` keeps, its own ranks' and those of others."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._states: dict[int, dict[int, _State]] = {}
        self._waiting: dict[int, tuple[str, int, int]] = {}  # by rank: process, step and number
        self._current: JobGeneration | None = None
        self._ranks: frozenset[int] = frozenset()  # on this host
        self._buddies: tuple[str, ...] = ()
        self._heard: frozenset[str] = frozenset()
        self._alone = False
        self._generation = 0
        self._incarnations: dict[str, str] = {}

    @property
    def current(self) -> JobGeneration | None:
        """The generation whose ranks store their states."""
        return self._current

    @property
    def processes(self) -> frozenset[str]:
        """Those of this host that hold ranks in ``current``."""
        slots = self._current.slots if self._current else []
        return frozenset(slots[rank] for rank in self._ranks)

    def holds(self, process: str, rank: int) -> bool:
        """``process`` has ``rank`` in ``current``."""
        return self._current is not None and self._current.rank_of(process) == rank

    def started(self, generation: JobGeneration) -> list[Effect]:
        """``generation`` runs from now on: what its buddies do not have yet is sent to them.

        Processes have heard of it before: who lost its rank is not kept waiting, for what it stored
        belongs to a step of a generation that has ended.
        """
        self._current, self._generation = generation, generation.number
        self._forget_former({one.host: one.incarnation for one in generation.members})
        if not generation.formed:  # older states are of an earlier start
            for rank, states in self._states.items():
                kept = {s: one for s, one in states.items() if one.generation >= generation.number}
                self._states[rank] = kept
        here = (rank for rank, host in enumerate(generation.hosts) if host == self._host)
        self._ranks = frozenset(here)
        over = [
            rank
            for rank, (process, *_) in self._waiting.items()
            if not generation.formed or generation.slots[rank] != process
        ]
        confirmed = [ConfirmStored(*self._waiting.pop(rank)) for rank in over]
        self._buddies = buddies_of(self._host, generation)
        copies = [copy for host in self._buddies for copy in self.copies_for(host)]
        return [*confirmed, *copies, *self._settle()]

    def copies_for(self, host: str) -> list[Effect]:
        """What a buddy that has just connected lacks."""
        if host not in self._buddies:
            return []
        return [
            Copy(host, one.generation, rank, step, one.body, one.number)
            for rank in sorted(self._ranks)
            for step, one in sorted(self._states.get(rank, {}).items())
            if host not in one.acknowledged
        ]

    def store(
        self, process: str, rank: int, step: int, body: bytes, number: int = 0
    ) -> list[Effect]:
        """``process``, which holds ``rank``, gives its state at the start of ``step``.

        A later ``number`` of a step replaces an earlier one: what has acknowledged that one does
        not have this one.
        """
        generation = self._generation
        self.store_copy(generation, rank, step, body, number)
        self._waiting[rank] = (process, step, number)
        copies = [Copy(host, generation, rank, step, body, number) for host in self._buddies]
        return [*copies, *self._settle()]

    def store_copy(
        self, generation: int, rank: int, step: int, body: bytes, number: int = 0
    ) -> bool:
        """Store a state that was captured in ``generation``. False: a newer one is here."""
        states = self._states.setdefault(rank, {})
        if any(one.generation > generation for one in states.values()):
            return False
        states[step] = _State(generation, body, number, set())
        for old in sorted(states, key=lambda at: (states[at].generation, at))[:-STEPS]:
            del states[old]
        return True

    def acknowledged(
        self, host: str, generation: int, rank: int, step: int, number: int = 0
    ) -> list[Effect]:
        """The agent on ``host`` keeps that state."""
        state = self._states.get(rank, {}).get(step)
        if state is not None and (state.generation, state.number) == (generation, number):
            state.acknowledged.add(host)
        return self._settle()

    def heard(self, hosts: Iterable[str]) -> list[Effect]:
        """These agents are heard."""
        self._heard = frozenset(hosts)
        self._alone = self._alone and self.hears_no_buddy
        return self._settle()

    @property
    def hears_no_buddy(self) -> bool:
        """There are buddies, and none of them is heard."""
        return bool(self._buddies) and self._heard.isdisjoint(self._buddies)

    @property
    def buddies(self) -> tuple[str, ...]:
        """Hosts that keep the states of the ranks here."""
        return self._buddies

    def go_on_alone(self) -> list[Effect]:
        """No buddy is waited for until one is heard again."""
        self._alone = self.hears_no_buddy
        return self._settle()

    def find(self, rank: int, step: int) -> tuple[int, bytes] | None:
        """Generation and state of ``rank`` at the start of ``step``, as far as it is here."""
        state = self._states.get(rank, {}).get(step)
        return None if state is None else (state.generation, state.body)

    def _forget_former(self, incarnations: dict[str, str]) -> None:
        """What a former agent of a host has acknowledged is gone with it."""
        former = {host for host, one in self._incarnations.items() if incarnations.get(host) != one}
        self._incarnations = incarnations
        for states in self._states.values():
            for state in states.values():
                state.acknowledged -= former

    def _settle(self) -> list[Effect]:
        effects: list[Effect] = []
        for rank, (process, step, number) in list(self._waiting.items()):
            state = self._states.get(rank, {}).get(step)
            if state is not None and self._is_safe(state.acknowledged):
                del self._waiting[rank]
                effects.append(ConfirmStored(process, step, number))
        return effects

    def _is_safe(self, acknowledged: Collection[str]) -> bool:
        buddies: Sequence[str] = self._buddies
        if not buddies or self._alone:
            return True
        return any(host in acknowledged for host in buddies) and all(
            host in acknowledged or host not in self._heard for host in buddies
        )
