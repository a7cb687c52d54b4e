"""State of one job and its agents between two decisions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from compute.decide.absence import Absence, StepWatch
from compute.decide.agent_votes import AgentVotes
from compute.decide.decision import JobDecision, JobInput
from compute.decide.evidence import UNWITNESSED, Verdict
from compute.decide.job import JobCore
from compute.decide.policy import Policy
from compute.decide.slow_ranks import SlowRanks
from fabric_train.messages.documents import AgentDocument, DocumentError
from telemetry.messages.documents import Fence, Recovery

Mode = Literal["observe", "migrate"]
PROVED = "confirmed lost"
"""How the reason of a fence begins whose host an operator knows to be off."""


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
    proved: set[str] = field(default_factory=set)
    """Ids of fences of agents whose loss somebody has confirmed."""
    evidence: dict[str, Verdict] = field(default_factory=dict)
    fenced: dict[str, Verdict] = field(default_factory=dict)
    """Fence's id → the verdict that it followed from."""
    recoveries: list[Recovery] = field(default_factory=list)
    """Newest first."""
    stale_since: float | None = None
    """When something was observed that its published state does not say; None: it says all."""
    absence: Absence = field(default_factory=Absence)
    steps: StepWatch = field(default_factory=StepWatch)
    slow: SlowRanks = field(default_factory=lambda: SlowRanks(Policy.slow_percent))
    verdict_due: float | None = None
    """When time alone changes ``evidence``; None: it does not."""
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

    def is_on(self, host: str) -> bool:
        """Its fabric-run on ``host`` is there, as far as is known."""
        return (agent := self.agents.get(host)) is not None and not agent.gone

    def leave_out(self, host: str, ranks: Collection[int], reason: str) -> bool:
        """These ranks shall be on ``host`` no more. False: none of them is there now."""
        generation = self.core.generation
        here = [
            rank for rank, home in enumerate(generation.hosts if generation else ())
            if home == host and rank in ranks
        ]  # fmt: skip
        for rank in here:
            self.core.slots.leave_out(host, rank, reason)
        self.news = self.news or bool(here)
        return bool(here)

    @classmethod
    def new(cls, job: str, policy: Policy, former: str) -> KnownJob:
        """``former``: how the run before it ended."""
        return cls(JobCore(job, policy, former), slow=SlowRanks(policy.slow_percent))

    def note_steps(self, document: AgentDocument, now: float) -> bool:
        """An agent says how far its ranks are, and how long they work by themselves.

        True: another rank is slow, or none any more.
        """
        self.steps.update(document, self.core.generation, now)
        self.slow.update(document, self.core.generation, now)
        self.due = min(self.due, now) if self.slow.has_news else self.due
        return self.slow.has_news

    @property
    def lacks_witness(self) -> bool:
        """A host is lost as soon as a rank says that no step is made."""
        return any(one.rule == UNWITNESSED for one in self.evidence.values())


def check_sender(document: AgentDocument, job: str, host: str, incarnation: str) -> None:
    """Raises ``DocumentError`` where ``document`` is of somebody else."""
    if (document.job, document.host, document.incarnation) != (job, host, incarnation):
        raise DocumentError(
            f"a document of job {document.job:.80}, host {document.host:.80}, incarnation "
            f"{document.incarnation:.80} under that of {job}, {host}, {incarnation}"
        )


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


def claims_of(evidence: Mapping[str, Verdict]) -> list[str]:
    """Hosts that are lost by what the job's own agents say, and by nothing else."""
    return [host for host, one in evidence.items() if one.lost and one.is_claim]


def held_of(evidence: Mapping[str, Verdict]) -> dict[str, str]:
    """Host → why it is not fenced, though the job waits for it."""
    return {host: f"{one.rule} ({one.reason})" for host, one in evidence.items() if one.held}


def is_proved(fence: Fence) -> bool:
    """Somebody has confirmed the loss that the fence is about."""
    return fence.reason.startswith(PROVED)
