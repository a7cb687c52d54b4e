"""What one process has given to ``protect``, and what looks after it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from fabric_train.groups.generation_group import GenerationGroup
from fabric_train.messages.link import AgentLink
from fabric_train.rank.ending import end_at_once
from fabric_train.rank.hand_over import HandOver
from fabric_train.rank.loop_rules import LoopRules
from fabric_train.rules.agreement import Beginning, agree, agree_in_groups
from fabric_train.rules.buddies import Room, check_room
from fabric_train.shards.gradient_keeper import GradientKeeper
from fabric_train.shards.keeper import GradientLog, ShardKeeper
from fabric_train.shards.units import ShardUnits
from fabric_train.shards.whole import CopyKeeper
from fabric_train.state.rank_local import LocalStates, Stateful
from fabric_train.state.replicas import Holders
from fabric_train.state.replicated import ReplicatedState
from fabric_train.state.step_start import StepStart
from fabric_train.state.transfer import CorruptStateError
from fabric_train.state.unprotected import Finds, state_of


@dataclass(frozen=True)
class OwnParts:
    """Replicated and rank-local state, the start of a step, the way to the agent, the rules.

    ``keeper``: of shards that no other rank holds; None: there are none. ``gather``: makes the
    state whole after a step, by collectives.
    """

    state: ReplicatedState
    local: LocalStates
    start: StepStart
    hand_over: HandOver
    rules: LoopRules
    holders: Holders
    keeper: ShardKeeper[Any] | None = None
    gather: Callable[[], object] | None = None

    @classmethod
    def of(
        cls,
        link: AgentLink,
        parts: Mapping[str, object],
        local: Mapping[str, Stateful],
        holders: Holders,
        options: GradientLog | None = None,
        gather: Callable[[], object] | None = None,
    ) -> OwnParts:
        """Raises ``TypeError`` for a part that has no state, and without an optimizer.

        ``ValueError`` for a gather of shards that nobody has declared.
        """
        if gather is not None and not holders.declared:
            raise ValueError("gather needs replicas: which ranks hold which shard of the optimizer")
        keeper: ShardKeeper[Any] | None = None
        units = ShardUnits(parts, all_parameters=holders.declared) if holders.alone else None
        if units is not None and units.units:  # a mesh of one rank has none
            kind = CopyKeeper if units.unreplayed else GradientKeeper
            keeper = kind(units, options or GradientLog())
            stepped = keeper.stepped
            register_optimizer_step_post_hook(lambda one, *_: stepped(one))
        state = ReplicatedState(parts, holders.ranks, kept=keeper is not None)
        states = LocalStates(local)
        if not state.optimizers():
            raise TypeError("protect() needs an optimizer: its step is what a job counts")
        start = StepStart(state, states)
        hand_over = HandOver(link, start)
        rules = LoopRules(link, state, start, hand_over)
        return cls(state, states, start, hand_over, rules, holders, keeper, gather)

    def statement(self) -> dict[str, str]:
        """What this process has to say for the protection report. The rehearsal is over."""
        found = self.rules.begin(Finds(self.state, self.local))
        kept = self.keeper.describe(self.state) if self.keeper is not None else ""
        return state_of(self.state, self.local, found, kept, self.holders.classes)

    def layout(self) -> dict[str, str]:
        """What all ranks have alike, and each process that may get a rank."""
        if not self.holders.declared:
            known = self.state.layout()
        else:  # each group has its own
            known = {name: type(part).__qualname__ for name, part in self.state.parts.items()}
        if self.keeper is not None:
            # What is no tensor of a shard comes from a buddy: it has to have the same names.
            known["names of shards"] = " ".join(unit.name for unit in self.keeper.units.units)
            known["shards that are copied whole"] = " ".join(self.keeper.units.unreplayed)
        return known

    def meet(self, inner: GenerationGroup, beginning: Beginning, step: int) -> str:
        """The loop begins at ``step``: do all ranks begin alike, and who keeps whose shards?

        Returns the name of this run. Raises ``RuntimeError`` where the group is broken,
        ``DisagreementError`` where they do not, or where a rank has no memory for shards.
        """
        run = agree(inner.exchange, beginning)
        if self.holders.declared:
            agree_in_groups(inner.exchange, self.state.layout(), self.holders.ranks or ())
        if self.keeper is None:
            return run
        keeper = self.keeper
        mine = [
            inner.host, *keeper.need(), keeper.limit(), keeper.options.buddies,
            keeper.own_need(self.state),
        ]  # fmt: skip
        said = [json.loads(one) for one in inner.exchange(json.dumps(mine).encode())]
        keeper.meet(inner.rank, [host for host, *_ in said], step, [{} for _ in said])
        check_room([Room(*one) for one in said])
        return run

    def give_shards(self, inner: GenerationGroup, step: int) -> None:
        """Before the vote on the step after ``step``, at any time. Raises ``RuntimeError``."""
        keeper = self.keeper
        if keeper is None:
            return
        try:
            inner.attended(
                lambda: keeper.exchange(inner.group, inner.rank, step, self.start.scalars)
            )
        except CorruptStateError as error:  # another process takes this rank
            end_at_once(f"the shards that arrived are refused: {error}")

    @property
    def makes(self) -> bool:
        """Something is made of the shards of all ranks, behind each step."""
        return bool(self.state.flat_shards())

    def make_whole(self, inner: GenerationGroup) -> None:
        """Make it, now that all ranks have their shards. Raises ``RuntimeError``."""
        for part in self.state.flat_shards():
            inner.attended(functools.partial(part.make_whole, inner.group, inner.rank))

    def voted(self, *, equal: bool) -> None:
        """All ranks have voted; ``equal``: with the same digest."""
        self.start.voted(equal=equal)
        if self.keeper is not None:
            self.keeper.voted(self.state)
        if self.goes_back:
            self.start.keep()

    @property
    def goes_back(self) -> bool:
        """Who is lost behind a step takes all ranks back before it."""
        return self.keeper is not None and self.keeper.own is not None

    @property
    def own_step(self) -> int | None:
        """Steps in the copy that this process keeps of itself; None: there is none."""
        return self.keeper.own.step if self.keeper is not None and self.keeper.own else None

    def go_back(self) -> None:
        """Be as before the last step that was voted on. Raises ``LayoutError``."""
        assert self.keeper is not None
        assert self.keeper.own is not None
        self.keeper.own.put_back(self.state)
        self.start.go_back()

    def forget_copy(self) -> None:
        """This process takes over another state: its copy of itself is void."""
        if self.keeper is not None and self.keeper.own is not None:
            self.keeper.own.forget()

    def check_whole(self) -> None:
        """Raises ``RuntimeError`` where parameters may not be whole between two steps."""
        if self.gather is not None:
            raise RuntimeError(
                "checkpoint() in a job with gather: parameters are whole only in an attempt. Write "
                "one of what each rank has of its own, by the framework's means"
            )

    def settle(self, step: int) -> None:
        """All of the step before ``step`` is done. Raises ``RuleError``; the job ends then."""
        if self.keeper is not None:
            with self.rules.ending():
                self.keeper.settle(step)
