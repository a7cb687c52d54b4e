"""At which step a job continues after a loss, and who copies whose state. Pure.

Before its optimizer step each rank passes a gate: an all-reduce that only succeeds when every rank
has whole, reduced gradients. So when one rank has applied step ``s``, every other rank either has
applied it, too, or holds the gradients to apply it. Nothing finished is ever thrown away.

Where ranks keep whole copies in place of gradients (``plan_return``), they may go back one step.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RankReport:
    """What one rank holds when a recovery begins.

    ``committed`` counts the optimizer steps that its state contains; None means that it holds no
    state (a spare). ``ready``: its gradients of the step after those are reduced and whole.
    ``keeps``: of other ranks' shards, the first and the last step after which it can rebuild them.
    ``own``: steps in the copy that it keeps of its own state, to go back to.
    """

    committed: int | None
    ready: bool = False
    keeps: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    own: int | None = None


@dataclass(frozen=True)
class RecoveryPlan:
    """All ranks continue with ``step`` committed steps.

    ``apply`` ranks first apply their gradients. Each rank in ``copies`` receives the state of the
    rank that it maps to, which copies from nobody: at once where that is at ``step`` already, and
    after its step where it has yet to apply it (``is_owed``). Those that are ``rebuilt`` get what
    that rank keeps of their shards: it holds other ones itself. Ranks in ``back`` go back to their
    own copy first. ``again``: steps that a rank has applied and that are run again.
    """

    step: int
    apply: frozenset[int]
    copies: dict[int, int]
    rebuilt: frozenset[int] = frozenset()
    back: frozenset[int] = frozenset()
    again: int = 0

    def is_owed(self, rank: int) -> bool:
        """``rank`` gets its state only when the source of it has applied its gradients."""
        return self.copies.get(rank) in self.apply


class UnrecoverableError(Exception):
    """No live rank holds a state that the job needs. The text says which."""


def plan_recovery(
    reports: Sequence[RankReport], replicas: Sequence[Sequence[int]] | None = None
) -> RecoveryPlan:
    """Decide from the reports of all ranks, by rank.

    ``replicas`` lists groups of ranks with equal state; None: all ranks are replicas of each other
    (plain data parallel). Each rank must be in exactly one group, else ``ValueError``.
    Every rank computes this from the same reports and so gets the same plan.
    Raises ``UnrecoverableError`` where only a silently wrong result would be left.
    """
    ranks = range(len(reports))
    groups = _groups(reports, replicas)
    held = [report.committed for report in reports if report.committed is not None]
    if not held:
        raise UnrecoverableError("no live rank holds the state of this job")
    step = max(held)
    apply = frozenset(
        rank for rank in ranks if reports[rank].committed == step - 1 and reports[rank].ready
    )
    able = apply | {rank for rank in ranks if reports[rank].committed == step}
    copies, rebuilt = _sources(reports, groups, step, able, apply)
    return RecoveryPlan(step, apply, copies, rebuilt)


def plan_return(
    reports: Sequence[RankReport], replicas: Sequence[Sequence[int]] | None = None
) -> RecoveryPlan:
    """As ``plan_recovery``, where each rank's buddies keep whole copies of its shards.

    A copy is of the state before a step, so who is lost behind a step cannot be had after it. The
    highest step counts that all ranks can have: as they are, by the copy that they keep of
    themselves, or from who lives. Before the vote on a step all copies of the state before it are
    there, and older ones go only behind that vote: at most one applied step is run again.
    """
    ranks = range(len(reports))
    groups = _groups(reports, replicas)
    mine = [{one.committed, one.own} - {None} for one in reports]
    steps = sorted({step for one in mine for step in one if step is not None}, reverse=True)
    if not steps:
        raise UnrecoverableError("no live rank holds the state of this job")
    refusal: UnrecoverableError | None = None
    for step in steps:
        able = frozenset(rank for rank in ranks if step in mine[rank])
        try:
            copies, rebuilt = _sources(reports, groups, step, able)
        except UnrecoverableError as error:
            refusal = refusal or error
            continue
        held = [one.committed for one in reports if one.committed is not None]
        back = frozenset(rank for rank in able if reports[rank].committed != step)
        again = max(held, default=step) - step
        return RecoveryPlan(step, frozenset(), copies, rebuilt, back, again)
    assert refusal is not None
    raise refusal


def _sources(
    reports: Sequence[RankReport],
    groups: Sequence[Sequence[int]],
    step: int,
    able: frozenset[int],
    apply: frozenset[int] = frozenset(),
) -> tuple[dict[int, int], frozenset[int]]:
    """Of each rank that is not ``able`` to have ``step`` by itself: from whom it gets its state.

    ``able`` without ``apply`` are asked first. And who of them is rebuilt: no replica has it.
    """
    copies: dict[int, int] = {}
    rebuilt: set[int] = set()
    for group in groups:
        mine = [rank for rank in group if rank in able]
        sources = [rank for rank in mine if rank not in apply] or mine
        for place, rank in enumerate(one for one in group if one not in able):
            if sources:
                copies[rank] = sources[place % len(sources)]
                continue
            found = _rebuilds(reports, rank, step, able)
            if found is None:
                raise _no_copy(reports, group, rank, step)
            copies[rank] = found
            rebuilt.add(rank)
    return copies, frozenset(rebuilt)


def _groups(
    reports: Sequence[RankReport], replicas: Sequence[Sequence[int]] | None
) -> list[tuple[int, ...]]:
    ranks = range(len(reports))
    groups = [tuple(ranks)] if replicas is None else [tuple(group) for group in replicas]
    if sorted(rank for group in groups for rank in group) != list(ranks):
        raise ValueError(f"replicas {groups} are no partition of {len(reports)} ranks")
    return groups


def _rebuilds(
    reports: Sequence[RankReport], rank: int, step: int, able: Container[int]
) -> int | None:
    """A rank that can rebuild the shards of ``rank`` after ``step`` steps, one of ``able``."""
    for one, mine in enumerate(reports):
        first, last = mine.keeps.get(rank, (0, -1))
        if first <= step <= last and one in able:
            return one
    return None


def _no_copy(
    reports: Sequence[RankReport], group: Sequence[int], rank: int, step: int
) -> UnrecoverableError:
    known = "; ".join(
        "rank {} can rebuild them after steps {} to {}".format(one, *mine.keeps[rank])
        for one, mine in enumerate(reports)
        if rank in mine.keeps
    )
    return UnrecoverableError(
        f"the state of rank {rank} after step {step} has no live copy "
        f"(its replicas: {list(group)}{'; ' * bool(known)}{known})"
    )
