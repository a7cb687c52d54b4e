"""What the ranks of a new generation tell and give each other before they go on."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from fabric_train.groups.generation_group import GenerationGroup
from fabric_train.messages.link import AgentLink
from fabric_train.messages.process import LocalStateAnswer, LocalStateRequest
from fabric_train.rank.loop_rules import in_short, warn_unprotected
from fabric_train.rules.step_rule import RankReport, RecoveryPlan, UnrecoverableError, plan_recovery
from fabric_train.state.later_part import LaterPart
from fabric_train.state.plain_values import ForeignValueError
from fabric_train.state.replicated import ReplicatedState
from fabric_train.state.step_start import StepStart
from fabric_train.state.transfer import CorruptStateError, Move, receive_state, send_state


def agree_on_plan(inner: GenerationGroup, run: str, report: RankReport) -> tuple[str, RecoveryPlan]:
    """The name of this run of the job, and the plan, which all ranks of ``inner`` get.

    ``run`` is the name that this rank knows, ``report`` what it holds. Raises ``RuntimeError``
    where the group is broken, ``UnrecoverableError``.
    """
    mine = json.dumps([run, report.committed, report.ready]).encode()
    answers = [json.loads(one) for one in inner.exchange(mine)]
    plan = plan_recovery([RankReport(*rest) for _, *rest in answers])
    return next(name for name, held, _ in answers if held is not None), plan


def role_of(rank: int, plan: RecoveryPlan) -> str:
    """The part of ``rank`` in ``plan``, in one word."""
    if rank in plan.copies:
        return "copy"
    return "apply" if rank in plan.apply else "keep"


def copy_states(
    inner: GenerationGroup,
    plan: RecoveryPlan,
    state: ReplicatedState,
    start: StepStart,
    link: AgentLink,
    timeout_s: float,
    *,
    split: bool = False,
) -> LaterPart | None:
    """Send this rank's state, or receive one, as ``plan`` says.

    ``split``: this rank is between two steps, and changes nothing before it has waited for what is
    returned: the part of a state that is still on its way. Raises as ``receive_state`` does;
    ``UnrecoverableError`` where nobody has the rank-local state.
    """
    rank = inner.rank
    moves: list[Move] = []
    for to, source in sorted(plan.copies.items()):
        if source == rank:
            move = send_state(inner.group, state, to, split=split and inner.carries_beside)
            moves += [move] if move else []
    if rank not in plan.copies:
        return LaterPart(lambda: _do_all(moves), receives=False) if moves else None
    move = receive_state(inner.group, state, plan.copies[rank])
    answer = link.ask(LocalStateRequest(rank, plan.step), timeout_s)
    if not isinstance(answer, LocalStateAnswer) or not answer.known:
        raise UnrecoverableError(f"nobody has the local state of rank {rank} at {plan.step}")
    try:
        lost = start.take_over(answer.body)
    except ForeignValueError as error:
        raise CorruptStateError(f"the rank-local state of rank {rank}: {error}") from None
    if lost:
        warn_unprotected(
            f"rank {rank} was lost behind optimizer.step(), and with it what it had changed there: "
            f"{in_short(lost)}. Another rank's values are used"
        )
    return LaterPart(move, receives=True) if move else None


def _do_all(moves: Sequence[Move]) -> None:
    for move in moves:
        move()


def since_ms(start: float) -> float:
    """Milliseconds since ``start`` (seconds of the monotonic clock)."""
    return round((time.monotonic() - start) * 1000, 3)
