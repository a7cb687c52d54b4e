"""What one process has given to ``protect``, and what looks after it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.optim.optimizer import register_optimizer_step_post_hook

from fabric_train.groups.generation_group import GenerationGroup
from fabric_train.messages.link import AgentLink
from fabric_train.rank.hand_over import HandOver
from fabric_train.rank.loop_rules import LoopRules
from fabric_train.rules.buddies import Room, check_room
from fabric_train.shards.keeper import GradientLog, ShardKeeper
from fabric_train.shards.units import ShardUnits
from fabric_train.state.rank_local import LocalStates, Stateful
from fabric_train.state.replicated import ReplicatedState
from fabric_train.state.step_start import StepStart


@dataclass(frozen=True)
class OwnParts:
    """Replicated and rank-local state, the start of a step, the way to the agent, the rules.

    ``keeper``: of shards that no other rank holds; None: there are none.
    """

    state: ReplicatedState
    local: LocalStates
    start: StepStart
    hand_over: HandOver
    rules: LoopRules
    keeper: ShardKeeper | None = None

    @classmethod
    def of(
        cls,
        link: AgentLink,
        parts: Mapping[str, object],
        local: Mapping[str, Stateful],
        replicas: Sequence[int] | None = None,
        options: GradientLog | None = None,
    ) -> OwnParts:
        """Raises ``TypeError`` for a part that has no state, and without an optimizer."""
        keeper = None
        if replicas is not None and len(replicas) < 2:
            keeper = ShardKeeper(ShardUnits(parts), options or GradientLog())
            stepped = keeper.stepped
            register_optimizer_step_post_hook(lambda one, *_: stepped(one))
        state = ReplicatedState(parts, replicas, kept=keeper is not None)
        states = LocalStates(local)
        if not state.optimizers():
            raise TypeError("protect() needs an optimizer: its step is what a job counts")
        start = StepStart(state, states)
        hand_over = HandOver(link, start)
        rules = LoopRules(link, state, start, hand_over)
        return cls(state, states, start, hand_over, rules, keeper)

    def meet(self, inner: GenerationGroup, step: int) -> str:
        """The loop begins at ``step``: agree who keeps whose shards.

        Raises ``RuntimeError`` where the group is broken, ``DisagreementError`` where a rank has no
        memory for them.
        """
        if self.keeper is None:
            return ""
        mine = [inner.host, *self.keeper.need(), self.keeper.limit(), self.keeper.options.buddies]
        said = [json.loads(one) for one in inner.exchange(json.dumps(mine).encode())]
        self.keeper.meet(inner.rank, [host for host, *_ in said], step, [{} for _ in said])
        check_room([Room(*one) for one in said])
        return ""

    def give_shards(self, inner: GenerationGroup, step: int) -> None:
        """Before the vote on the step after ``step``. Raises as ``ShardKeeper.exchange`` does."""
        if self.keeper is not None:
            self.keeper.exchange(inner.group, inner.rank, step)

    def voted(self, *, equal: bool) -> None:
        """All ranks have voted; ``equal``: with the same digest."""
        self.start.voted(equal=equal)
        if self.keeper is not None:
            self.keeper.voted()

    def settle(self, step: int) -> None:
        """All of the step before ``step`` is done. Raises ``RuleError``; the job ends then."""
        if self.keeper is not None:
            with self.rules.ending():
                self.keeper.settle(step)
