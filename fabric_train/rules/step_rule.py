"""At which step a job continues after a loss, and who copies whose state. Pure.

Before its optimizer step each rank passes a gate: an all-reduce that only succeeds when every rank
has whole, reduced gradients. So when one rank has applied step ``s``, every other rank either has
applied it, too, or holds the gradients to apply it. Nothing finished is ever thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RankReport:
    """What one rank holds when a recovery begins.

    ``committed`` counts the optimizer steps that its state contains; None means that it holds no
    state (a spare). ``ready``: its gradients of the step after those are reduced and whole.
    ``keeps``: of other ranks' shards, the first and the last step after which it can rebuild them.
    """

    committed: int | None
    ready: bool = False
    keeps: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class RecoveryPlan:
    """All ranks continue with ``step`` committed steps.

    ``apply`` ranks first apply their gradients. Each rank in ``copies`` receives the state of the
    rank that it maps to, which copies from nobody: at once where that is at ``step`` already, and
    after its step where it has yet to apply it (``is_owed``). Those that are ``rebuilt`` get what
    that rank keeps of their shards: it holds other ones itself.
    """

    step: int
    apply: frozenset[int]
    copies: dict[int, int]
    rebuilt: frozenset[int] = frozenset()

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
    groups = [tuple(ranks)] if replicas is None else [tuple(group) for group in replicas]
    if sorted(rank for group in groups for rank in group) != list(ranks):
        raise ValueError(f"replicas {groups} are no partition of {len(reports)} ranks")
    held = [report.committed for report in reports if report.committed is not None]
    if not held:
        raise UnrecoverableError("no live rank holds the state of this job")
    step = max(held)
    apply = frozenset(
        rank for rank in ranks if reports[rank].committed == step - 1 and reports[rank].ready
    )
    copies: dict[int, int] = {}
    rebuilt: set[int] = set()
    for group in groups:
        at_step = [rank for rank in group if reports[rank].committed == step]
        sources = at_step or [rank for rank in group if rank in apply]
        missing = [rank for rank in group if rank not in at_step and rank not in apply]
        for place, rank in enumerate(missing):
            if sources:
                copies[rank] = sources[place % len(sources)]
            else:
                copies[rank] = _keeper(reports, group, rank, step, apply)
                rebuilt.add(rank)
    return RecoveryPlan(step, apply, copies, frozenset(rebuilt))


def _keeper(
    reports: Sequence[RankReport],
    group: Sequence[int],
    rank: int,
    step: int,
    apply: frozenset[int],
) -> int:
    """A rank that can rebuild the shards of ``rank`` after ``step`` steps."""
    kept = {one: mine.keeps[rank] for one, mine in enumerate(reports) if rank in mine.keeps}
    for one, (first, last) in kept.items():
        if first <= step <= last and (one in apply or reports[one].committed == step):
            return one
    known = "; ".join(
        f"rank {one} can rebuild them after steps {first} to {last}"
        for one, (first, last) in kept.items()
    )
    raise UnrecoverableError(
        f"the state of rank {rank} after step {step} has no live copy "
        f"(its replicas: {list(group)}{'; ' * bool(known)}{known})"
    )
