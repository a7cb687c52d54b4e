"""A planned move: the next generation is connected while the present one goes on.

Each rank connects on a thread of its own. With its vote on a step it says to which generation it
could change over; when all can, all change over after that step. So nothing waits for connections,
and no step is run again. A process whose rank goes to another one can do so at once: it leaves
before it applies the step, for what it would apply nobody could copy from it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fabric_train.groups.collectives import Connecting, GenerationGroup, start_connecting
from fabric_train.messages.link import AgentLink
from fabric_train.messages.process import Assignment, Suspect


class Preparation:
    """What one process has prepared. ``begin`` runs on the reading thread, all else on training."""

    def __init__(
        self,
        link: AgentLink,
        timeout_s: float,
        groups: Callable[[], Mapping[str, Sequence[int]]],
    ) -> None:
        """``groups``: ranks of each further group of the job with this rank, by name."""
        self._link = link
        self._timeout_s = timeout_s
        self._groups = groups
        self._now: tuple[Assignment, Connecting | None] | None = None
        self._reported = 0  # the last generation that could not be connected

    def begin(self, assignment: Assignment) -> None:
        """Connect to the generation of ``assignment``."""
        connecting = None
        if assignment.rank is not None:
            connecting = self._start(assignment)
        self._now = assignment, connecting

    def ready_for(self) -> int:
        """The generation to which this process could change over now; 0: none.

        Raises ``AgentLostError``.
        """
        if self._now is None:
            return 0
        assignment, connecting = self._now
        if connecting is None:
            return assignment.generation
        if connecting.error is not None and self._reported < assignment.generation:
            self._reported = assignment.generation
            self._link.send(Suspect(assignment.generation, str(connecting.error)[:500]))
        if connecting.error is not None or not connecting.ended:
            return 0
        return assignment.generation

    @property
    def leaves(self) -> bool:
        """This process has no rank in the prepared generation."""
        return self._now is not None and self._now[1] is None

    def connect(self, assignment: Assignment) -> GenerationGroup | None:
        """The group of ``assignment``, which may be prepared; None: a newer one has arrived.

        Raises as ``connect_generation`` does.
        """
        number = assignment.generation
        connecting = self._take(number) or self._start(assignment)
        return connecting.result(self._link.wait, lambda: self._link.newer_than(number))

    def _start(self, assignment: Assignment) -> Connecting:
        return start_connecting(self._link, assignment, self._timeout_s, self._groups())

    def _take(self, generation: int) -> Connecting | None:
        """What was prepared for ``generation``; anything else is abandoned."""
        now, self._now = self._now, None
        assignment, connecting = now or (None, None)
        if assignment is None or connecting is None:
            return None
        if assignment.generation == generation and connecting.error is None:
            return connecting
        connecting.abandon()
        return None
