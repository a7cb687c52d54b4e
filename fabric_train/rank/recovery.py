"""What the ranks of a new generation tell and give each other before they go on."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from fabric_train.groups.generation_group import GenerationGroup
from fabric_train.messages.link import AgentLink
from fabric_train.messages.process import LocalStateAnswer, LocalStateRequest
from fabric_train.rank.loop_rules import in_short, warn_unprotected
from fabric_train.rank.own_parts import OwnParts
from fabric_train.rules.step_rule import (
    RankReport,
    RecoveryPlan,
    UnrecoverableError,
    plan_recovery,
    plan_return,
)
from fabric_train.state.later_part import LaterPart
from fabric_train.state.plain_values import ForeignValueError
from fabric_train.state.replicas import partition
from fabric_train.state.replicated import LayoutError
from fabric_train.state.transfer import CorruptStateError, Move, receive_state, send_state


def agree_on_plan(
    inner: GenerationGroup, run: str, report: RankReport, own: OwnParts
) -> tuple[str, RecoveryPlan]:
    """The name of this run of the job, and the plan, which all ranks of ``inner`` get.

    ``run`` is the name that this rank knows, ``report`` what it holds. Raises ``RuntimeError``
    where the group is broken, ``UnrecoverableError``.
    """
    keeper = own.keeper
    kept = [[ward, *span] for ward, span in keeper.keeps().items()] if keeper is not None else []
    mine = [
        run, report.committed, report.ready, own.own_step, own.state.replicas, inner.host, kept,
    ]  # fmt: skip
    answers = [json.loads(one) for one in inner.exchange(json.dumps(mine).encode())]
    try:
        groups = partition([group for *_, group, _, _ in answers])
    except ValueError as error:
        raise UnrecoverableError(str(error)) from None
    keeps = [{ward: (first, last) for ward, first, last in kept} for *_, kept in answers]
    reports = [
        RankReport(held, ready, mine, copied)
        for (_, held, ready, copied, *_), mine in zip(answers, keeps, strict=True)
    ]
    plan = (plan_return if own.goes_back else plan_recovery)(reports, groups)
    if keeper is not None:
        keeper.meet(inner.rank, [host for *_, host, _ in answers], plan.step, keeps)
    known = zip(answers, reports, strict=True)
    return next(name for (name, *_), one in known if {one.committed, one.own} != {None}), plan


def receive_owed(
    inner: GenerationGroup,
    plan: RecoveryPlan,
    own: OwnParts,
    link: AgentLink,
    timeout_s: float,
) -> None:
    """Receive what the source of this rank owes it, if it does. Raises as ``copy_states`` does."""
    if plan.is_owed(inner.rank):
        _receive(inner, plan, own, link, timeout_s)


def role_of(rank: int, plan: RecoveryPlan) -> str:
    """The part of ``rank`` in ``plan``, in one word."""
    if rank in plan.copies:
        return "copy"
    if rank in plan.back:
        return "back"
    return "apply" if rank in plan.apply else "keep"


def copy_states(
    inner: GenerationGroup,
    plan: RecoveryPlan,
    own: OwnParts,
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
        if source == rank and to in plan.rebuilt and not plan.is_owed(to):
            assert own.keeper is not None
            own.keeper.send(inner.group, own.state, to, plan.step)
        elif source == rank and not plan.is_owed(to):
            move = send_state(inner.group, own.state, to, split=split and inner.carries_beside)
            moves += [move] if move else []
    if rank not in plan.copies:
        return LaterPart(lambda: _do_all(moves), receives=False) if moves else None
    if plan.is_owed(rank):
        return None  # `receive_owed` waits for it, once all have agreed to go on
    move = _receive(inner, plan, own, link, timeout_s)
    return LaterPart(move, receives=True) if move else None


def _receive(
    inner: GenerationGroup,
    plan: RecoveryPlan,
    own: OwnParts,
    link: AgentLink,
    timeout_s: float,
) -> Move | None:
    rank = inner.rank
    move: Move | None = None
    if rank in plan.rebuilt:
        if own.keeper is None:
            raise LayoutError("this rank has no shards of its own, and those it replaces had")
        own.keeper.receive(inner.group, own.state, plan.copies[rank])
    else:
        move = receive_state(inner.group, own.state, plan.copies[rank])
    answer = link.ask(LocalStateRequest(rank, plan.step), timeout_s)
    if not isinstance(answer, LocalStateAnswer) or not answer.known:
        raise UnrecoverableError(f"nobody has the local state of rank {rank} at {plan.step}")
    try:
        lost = own.start.take_over(answer.body)
    except ForeignValueError as error:
        raise CorruptStateError(f"the rank-local state of rank {rank}: {error}") from None
    if lost:
        warn_unprotected(
            f"rank {rank} was lost behind optimizer.step(), and with it what it had changed there: "
            f"{in_short(lost)}. Another rank's values are used"
        )
    return move


def _do_all(moves: Sequence[Move]) -> None:
    for move in moves:
        move()


def since_ms(start: float) -> float:
    """Milliseconds since ``start`` (seconds of the monotonic clock)."""
    return round((time.monotonic() - start) * 1000, 3)
