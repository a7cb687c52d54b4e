"""What one decision over a job is made of, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compute.decide.recovery import JobRecord
from fabric_train.messages.documents import AgentDocument, JobOrder


@dataclass
class JobDecision:
    """What the job wants now. ``fence``: host → evidence, of agents to be fenced."""

    phase: str
    reason: str = ""
    orders: dict[str, JobOrder] = field(default_factory=dict)
    fence: dict[str, str] = field(default_factory=dict)
    records: list[JobRecord] = field(default_factory=list)


@dataclass(frozen=True)
class JobInput:
    """What a decision is made of. Two are equal when all but their documents is.

    ``documents``: of agents that are neither gone nor fenced. A host whose fence is not confirmed
    yet is still among them. ``lost``: hosts to be fenced → evidence. ``held``: hosts that are lost
    but must not be fenced → why. ``unconfirmed``: hosts whose fence is not acknowledged yet.
    ``drained``: hosts whose ranks are to move while they are well → the host that is to take them,
    or "". ``proved``: agents (``host/incarnation``) whose loss somebody has confirmed.
    ``offline``: hosts that the broker has lost: what they say is old.
    ``act``: False in observe mode; ``stopped``: nothing at all may change.
    """

    documents: Mapping[str, AgentDocument] = field(compare=False)
    lost: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    unconfirmed: frozenset[str] = frozenset()
    proved: frozenset[str] = frozenset()
    drained: Mapping[str, str] = field(default_factory=dict)
    offline: frozenset[str] = field(default=frozenset(), compare=False)
    act: bool = True
    stopped: bool = False
