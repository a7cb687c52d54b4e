"""What is still to do when a step or a recovery is over, before the next step.

A source that held gradients only sends its state once it has applied them. Then what is made of the
shards of all ranks can be made, or gathered. Ranks that hold the same compare what they have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from fabric_train.groups.generation_group import GenerationGroup
from fabric_train.groups.job_group import JobGroup
from fabric_train.groups.torch_calls import Use
from fabric_train.rank.own_parts import OwnParts
from fabric_train.rules.agreement import DisagreementError
from fabric_train.rules.step_rule import RecoveryPlan
from fabric_train.state.replicated import ReplicatedState
from fabric_train.state.transfer import send_state


class AfterRecovery:
    """States that this rank owes others: of a step that it has yet to apply.

    A replica that holds gradients only, where no rank has applied them already, is a source that
    has to make its step first. What it sent before that would be a step behind, and whoever got it
    would go on with another state than its replicas, without an error.
    """

    def __init__(self) -> None:
        self._owed: tuple[GenerationGroup, list[int]] | None = None
        self._compare = False
        self._unmade = False  # of the shards of all ranks something is to be made
        self._rebuilt: frozenset[int] = frozenset()
        self._gathered: tuple[int, int] | None = None  # generation and step

    def compare(self) -> None:
        """Compare replicas at the next step's start, on all ranks."""
        self._compare = True

    def stepped(self) -> None:
        """All ranks change their shards in the step that is over."""
        self._unmade = True

    def note(self, inner: GenerationGroup, plan: RecoveryPlan) -> None:
        """What ``plan`` has this rank send later; debts of a generation before are void."""
        to = [one for one, source in sorted(plan.copies.items()) if source == inner.rank]
        to = [one for one in to if plan.is_owed(one)]
        self._owed = (inner, to) if to else None
        self._rebuilt = plan.rebuilt
        self._compare = self._unmade = True

    def settle(self, group: JobGroup, own: OwnParts, step: int, *, leaves: bool) -> str:
        """Do it, now that the step before ``step`` is applied, in the generation of ``group``.

        ``leaves``: a rank has left by plan, and the next generation gathers. Raises
        ``RuntimeError`` where the group is broken, ``DisagreementError`` where replicas differ.
        """
        inner = group.inner
        assert inner is not None
        own.settle(step)
        owed, self._owed = self._owed, None
        compares, self._compare = self._compare, False
        state = own.state
        if owed is not None and owed[0] is inner:
            for to in owed[1]:
                if own.keeper is not None and to in self._rebuilt:
                    own.keeper.send(inner.group, state, to, step)
                else:
                    send_state(inner.group, state, to)
        if self._unmade:
            own.make_whole(inner)
            self._unmade = False
        if own.gather is not None and (leaves or not self.gather(group, own, step)):
            self._compare = compares
            return ""
        if compares and own.holders.classes:
            check_classes(inner, state, own.holders.classes)
        elif compares and state.replicas is not None:
            check_replicas(inner, state, own.keeper.units.names() if own.keeper else frozenset())
        return ""

    def gather(self, group: JobGroup, own: OwnParts, step: int) -> bool:
        """Make parameters whole, once for each generation and step, on all ranks.

        False: a rank was lost meanwhile; ``group`` is marked as broken.
        """
        inner = group.inner
        if own.gather is None or inner is None or self._gathered == (inner.generation, step):
            return True
        self._gathered = inner.generation, step  # a loss is followed by another generation
        group.use = Use.ATTEMPT
        try:
            own.gather()
            return group.settle(attempt=False)
        finally:
            group.use = Use.CLOSED


def check_replicas(
    inner: GenerationGroup, state: ReplicatedState, alone: frozenset[str] = frozenset()
) -> None:
    """Compare the state of ranks that hold the same shards; of all ranks what is no shard.

    ``alone``: names of what no other rank holds. Raises ``RuntimeError`` where the group is broken,
    ``DisagreementError`` where they differ.
    """
    group = range(inner.world) if alone else state.replicas
    mine = json.dumps([list(group or ()), state.digest(alone)]).encode()
    said = [json.loads(one) for one in inner.exchange(mine)]
    for rank, (others, digest) in enumerate(said):
        for other in others:
            if said[other][1] != digest:
                raise DisagreementError(
                    f"ranks {rank} and {other} hold the same {'tensors' if alone else 'shards'}, "
                    "and their states differ"
                )


def check_classes(
    inner: GenerationGroup, state: ReplicatedState, classes: Mapping[str, Sequence[int]]
) -> None:
    """Compare each part with those of the ranks that hold the same of it. Raises likewise."""
    mine = {name: [list(ranks), state.digest(part=name)] for name, ranks in classes.items()}
    said = [json.loads(one) for one in inner.exchange(json.dumps(mine).encode())]
    for rank, parts in enumerate(said):
        for name, (others, digest) in parts.items():
            for other in others:
                if said[other].get(name) != [others, digest]:
                    raise DisagreementError(
                        f"ranks {rank} and {other} hold the same {name}, and it differs"
                    )
