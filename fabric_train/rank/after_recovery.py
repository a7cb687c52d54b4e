"""What is still to do when a recovery is over, at the start of the next step.

A source that held gradients only sends its state once it has applied them; and ranks that hold the
same shards compare what they have.
"""

from __future__ import annotations

import json

from fabric_train.groups.generation_group import GenerationGroup
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

    def compare(self) -> None:
        """Compare replicas at the next step's start, on all ranks."""
        self._compare = True

    def note(self, inner: GenerationGroup, plan: RecoveryPlan) -> None:
        """What ``plan`` has this rank send later; debts of a generation before are void."""
        to = [one for one, source in sorted(plan.copies.items()) if source == inner.rank]
        to = [one for one in to if plan.is_owed(one)]
        self._owed = (inner, to) if to else None
        self._compare = True

    def settle(self, inner: GenerationGroup, state: ReplicatedState) -> str:
        """Do it, now that the step before is applied. ``inner``: the present generation.

        Raises ``RuntimeError`` where the group is broken, ``DisagreementError`` where replicas
        differ.
        """
        owed, self._owed = self._owed, None
        compares, self._compare = self._compare, False
        if owed is not None and owed[0] is inner:
            for to in owed[1]:
                send_state(inner.group, state, to)
        if compares and state.replicas is not None:
            check_replicas(inner, state)
        return ""


def check_replicas(inner: GenerationGroup, state: ReplicatedState) -> None:
    """Compare the state of ranks that hold the same shards.

    Raises ``RuntimeError`` where the group is broken, ``DisagreementError`` where they differ.
    """
    mine = json.dumps([state.replicas, state.digest()]).encode()
    said = [json.loads(one) for one in inner.exchange(mine)]
    for rank, (group, digest) in enumerate(said):
        for other in group or ():
            if said[other][1] != digest:
                raise DisagreementError(
                    f"ranks {rank} and {other} hold the same shards, and their states differ"
                )
