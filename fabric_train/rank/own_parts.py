"""What one process has given to ``protect``, and what looks after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fabric_train.messages.link import AgentLink
from fabric_train.rank.hand_over import HandOver
from fabric_train.rank.loop_rules import LoopRules
from fabric_train.state.rank_local import LocalStates, Stateful
from fabric_train.state.replicated import ReplicatedState
from fabric_train.state.step_start import StepStart


@dataclass(frozen=True)
class OwnParts:
    """Replicated and rank-local state, the start of a step, the way to the agent, the rules."""

    state: ReplicatedState
    local: LocalStates
    start: StepStart
    hand_over: HandOver
    rules: LoopRules

    @classmethod
    def of(
        cls,
        link: AgentLink,
        parts: Mapping[str, object],
        local: Mapping[str, Stateful],
        replicas: Sequence[int] | None = None,
    ) -> OwnParts:
        """Raises ``TypeError`` for a part that has no state, and without an optimizer."""
        state, states = ReplicatedState(parts, replicas), LocalStates(local)
        if not state.optimizers():
            raise TypeError("protect() needs an optimizer: its step is what a job counts")
        start = StepStart(state, states)
        hand_over = HandOver(link, start)
        return cls(state, states, start, hand_over, LoopRules(link, state, start, hand_over))
