"""How far the newest generation of one job has come: proposed, chosen, recovered; what is overdue.

Times are seconds of the caller. After a restart all limits count from then: the documents say what
was chosen, not since when.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from compute.decide.choice import is_chosen, is_contested
from compute.decide.policy import Policy
from compute.decide.ranks import rank_processes
from compute.decide.recovery import RecoveryLog
from fabric_train.messages.documents import AgentDocument, JobGeneration

MOST_PATIENCE = 8
"""At most so many times ``accept_s`` a generation has to be accepted."""


class GenerationProgress:
    """The newest generation and its limits of time."""

    def __init__(self, policy: Policy, log: RecoveryLog) -> None:
        self._policy = policy
        self._log = log
        self._newest: JobGeneration | None = None
        self._proposed_at = 0.0
        self._in_vain = 0  # generations one after the other that were not accepted
        self._chosen = 0
        self._chosen_at = 0.0
        self._told_at: float | None = 0.0
        """Since when one of its hosts can be told of it; None: none can."""
        self._suspected: tuple[int, float] | None = None

    @property
    def generation(self) -> JobGeneration | None:
        """The newest generation that was proposed or accepted."""
        return self._newest

    def follow(self, generation: JobGeneration, now: float) -> None:
        """The agents know a newer generation, or the job begins with this one."""
        before = self._newest
        if before is not None and generation.number > before.number:
            self._in_vain = 0 if self.was_chosen(before) else self._in_vain + 1
        self._newest, self._proposed_at = generation, now

    def propose(self, generation: JobGeneration, step: int, now: float) -> None:
        """This fabric-compute proposes the next generation, at ``step``."""
        self.follow(generation, now)
        self._suspected = None
        self._log.proposed(step, now)

    def is_chosen(
        self, generation: JobGeneration, documents: Mapping[str, AgentDocument], now: float
    ) -> bool:
        """Whether the agents have chosen it; limits of time count from then."""
        chosen = is_chosen(generation, documents)
        if chosen and self._chosen != generation.number:
            self._chosen, self._chosen_at = generation.number, now
            if not generation.parked:
                self._log.chosen(now)
        return chosen

    def was_chosen(self, generation: JobGeneration) -> bool:
        """Whether it was chosen at the last decision."""
        return self._chosen == generation.number

    def is_parking(self, now: float) -> bool:
        """A parked generation was proposed, and its voters have time left to accept it."""
        newest = self._newest
        if newest is None or not newest.parked or self.was_chosen(newest):
            return False
        return now - self._proposed_at <= self._policy.accept_s

    def has_limits(self, documents: Mapping[str, AgentDocument]) -> bool:
        """Whether a limit of a generation that runs may be passed without news."""
        generation = self._newest
        if generation is None or self._suspected is not None or self._log.active:
            return True
        return generation.formed and not self._is_recovered(generation, documents)

    @staticmethod
    def _is_recovered(generation: JobGeneration, documents: Mapping[str, AgentDocument]) -> bool:
        """All ranks say so, or one has committed a step: that takes a collective of all.

        What an agent says that has lost the broker is old.
        """
        states = rank_processes(generation, documents)
        return any(one.committed >= generation.number for one in states) or all(
            one.recovered >= generation.number for one in states
        )

    def failure(
        self, generation: JobGeneration, documents: Mapping[str, AgentDocument], now: float,
        offline: Collection[str] = (),
    ) -> str:  # fmt: skip
        """Why this generation is given up although all its processes live; ``""``: it is not.

        ``offline``: hosts that the broker has lost: what they say is old.
        """
        policy = self._policy
        if generation.parked:
            return "its ranks are here again"
        if not self.is_chosen(generation, documents, now):
            # A job that begins waits for its hosts: nothing is lost while they are slow.
            # Where messages take long, the next one would come too early again.
            patience = policy.accept_s * min(2**self._in_vain, MOST_PATIENCE)
            overdue = generation.formed and now - self._proposed_at > patience
            if overdue or is_contested(generation, documents):
                return f"generation {generation.number} was not accepted by all of its hosts"
            return ""
        suspected = any(one.suspects >= generation.number for one in documents.values())
        if not suspected:
            self._suspected = None
        elif self._suspected is None or self._suspected[0] != generation.number:
            self._suspected = (generation.number, now)
        elif now - self._suspected[1] > policy.suspicion_s:
            return "connections failed"
        recovered = self._is_recovered(generation, documents)
        waited = self._waited(generation, offline, now)
        if generation.formed and not recovered and waited > policy.recovery_s:
            return f"not all ranks recovered within {policy.recovery_s:g} s"
        return ""

    def _waited(self, generation: JobGeneration, offline: Collection[str], now: float) -> float:
        """Seconds since its hosts could be told that it was chosen; 0: they cannot be."""
        if all(host in offline for host in generation.hosts):
            self._told_at = None
            return 0.0
        if self._told_at is None:
            self._told_at = now
        return now - max(self._chosen_at, self._told_at)

    def silent_processes(
        self, documents: Mapping[str, AgentDocument], generation: JobGeneration, now: float,
        offline: Collection[str] = (),
    ) -> set[str]:  # fmt: skip
        """Processes that hold a rank, and have not answered in time. ``offline``: as above."""
        waited = self._waited(generation, offline, now)
        overdue = self._chosen == generation.number and waited > self._policy.answer_s
        if not overdue or not generation.formed or self._is_recovered(generation, documents):
            return set()
        return {
            one.process
            for host, document in documents.items()
            for one in document.processes
            if host not in offline
            and one.state != "ended"
            and generation.has_rank(one.process)
            and one.acknowledged < generation.number
        }
