"""State of one job and its agents between two decisions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from compute.decide.agent_votes import AgentVotes
from compute.decide.decision import JobDecision, JobInput
from compute.decide.evidence import Verdict
from compute.decide.job import JobCore
from fabric_train.messages.documents import AgentDocument
from telemetry.messages.documents import Fence, Recovery

Mode = Literal["observe", "migrate"]


@dataclass
class KnownAgent:
    """The newest fabric-run of one job on one host."""

    incarnation: str
    gone: bool
    document: AgentDocument | None
    fence_id: str


@dataclass(frozen=True)
class DecisionContext:
    """Inputs that the decisions over all jobs have in common."""

    mode: Mode
    stopped: str
    drained: Mapping[str, str]
    refused: Mapping[str, str]


@dataclass
class KnownJob:
    """One job: its agents, its fences, and what was decided last."""

    core: JobCore
    agents: dict[str, KnownAgent] = field(default_factory=dict)
    votes: AgentVotes = field(default_factory=AgentVotes)
    """Heartbeat votes of the agents that are neither gone nor fenced."""
    fences: dict[str, Fence] = field(default_factory=dict)
    evidence: dict[str, Verdict] = field(default_factory=dict)
    fenced: dict[str, Verdict] = field(default_factory=dict)
    """Fence's id → the verdict that it followed from."""
    recoveries: list[Recovery] = field(default_factory=list)
    """Newest first."""
    stale_since: float | None = None
    """When something was observed that its published state does not say; None: it says all."""
    judged: bool = False
    """``evidence`` is of the newest documents of its agents, and of its fences."""
    calm: bool = False
    """None of its hosts was accused or missed by an agent when it was judged."""
    news: bool = True
    """A document says more than steps and votes, or another host is lost."""
    last: tuple[JobInput, JobDecision] | None = None
    context: DecisionContext | None = None
    """Context of the last decision; None before the first."""
    due: float = 0.0
    """When the last decision may not hold any more without news."""


def is_progress(before: KnownAgent, agent: KnownAgent) -> bool:
    """``agent`` says what ``before`` said, but for how far its processes are."""
    old, new = before.document, agent.document
    if old is None or new is None:
        return _is_same_life(before, agent) and old is new
    return _is_same_life(before, agent) and (old is new or new.is_progress_of(old))


def is_vote(before: KnownAgent, agent: KnownAgent) -> bool:
    """``agent`` says what ``before`` said, but for steps, and for whom it hears and misses."""
    old, new = before.document, agent.document
    if old is None or new is None:
        return False
    return _is_same_life(before, agent) and new.is_vote_of(old)


def _is_same_life(before: KnownAgent, agent: KnownAgent) -> bool:
    return (before.incarnation, before.gone) == (agent.incarnation, agent.gone)


def lost_of(evidence: Mapping[str, Verdict]) -> dict[str, str]:
    """Host → why it is lost."""
    return {host: one.reason for host, one in evidence.items() if one.lost}
