"""Is a host lost? What its peers' probes, the broker and the job's own agents say.

A host is lost when two of these agree, or when the first one holds alone:

1. more than half of the hosts that probe it hear it on no rail;
2. the broker has published its last will;
3. more than half of the job's agents miss its agent's heartbeats.

A lost host is fenced, and its ranks move when its peers have acknowledged the fence. Where the
first evidence stood alone, that acknowledgement is the second one.

Words: a host is *silent* by (1) and *missed* by (3). It is *accused* when one observer calls it
silent or its last will was published. It is *lost* by the verdict of this module.

An observer abstains when its own prober was paused (Lifeguard), when its last will was published,
or when most of *its* observers call it silent: it sits on the small side of a partition. An
observer that abstains still counts for the half: a few hosts that have the broker on their side
decide nothing.
While one live agent of the job hears the host's agent, the host is not lost.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from compute.decide.agent_votes import AgentsSay
from compute.decide.observers import Observers, ProbeVotes

NO_EVIDENCE = "not lost: nothing speaks against it"
VETO = "not lost: a live agent of the job hears it"
ONE_ALONE = "not lost: one kind of evidence alone is not enough"
TWO_AGREE = "lost: two kinds of evidence agree"
PROBES_AND_FENCE = "lost: the probes agree, and a fence that its peers acknowledge confirms it"


@dataclass(frozen=True)
class Votes(ProbeVotes):
    """What was said of one host, by its observers, the broker and the job's agents."""

    last_will: bool = False
    missed_by: tuple[str, ...] = ()
    heard_by: tuple[str, ...] = ()
    agents: int = 0
    """Other hosts of the job."""

    @property
    def any_against(self) -> bool:
        """At least one of those who can speak speaks against the host."""
        return bool(self.silent or self.missed_by or self.last_will)

    def is_missed(self, least: int) -> bool:
        """More than half of the job's agents, and at least ``least``, miss it."""
        return len(self.missed_by) >= least and 2 * len(self.missed_by) > self.agents


@dataclass(frozen=True)
class Verdict:
    """``lost``: fence it. ``reason`` says which evidence, or why not; ``rule`` what follows."""

    lost: bool
    reason: str
    votes: Votes = field(default_factory=Votes)
    rule: str = NO_EVIDENCE


def judge(
    hosts: Collection[str], observers: Observers, agents: AgentsSay, least: int
) -> dict[str, Verdict]:
    """Judge ``hosts`` of one job. Those that nobody speaks against are left out.

    ``agents``: of all hosts of the job that are not fenced and have not ended. ``least``: how many
    observers have to agree.
    """
    silent = observers.silent(least)
    suspects = (observers.accused | agents.missed).intersection(hosts)
    if not suspects:
        return {}
    abstaining = silent | observers.last_wills

    def others(names: Collection[str], host: str) -> tuple[str, ...]:
        return tuple(sorted(one for one in names if one not in abstaining and one != host))

    return {
        host: _verdict(
            Votes(
                *_lists(observers.votes(host, silent)), observers.view(host).last_will,
                others(agents.missed_by(host), host), others(agents.heard_by(host), host),
                len(agents.agents) - (host in agents.agents),
            ),
            least,
        )
        for host in suspects
    }  # fmt: skip


def _lists(votes: ProbeVotes) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    return votes.silent, votes.heard, votes.abstained


def _verdict(votes: Votes, least: int) -> Verdict:
    if votes.heard_by:
        return Verdict(False, f"the job's agent on {votes.heard_by[0]} hears it", votes, VETO)
    evidence = []
    if votes.is_silent(least):
        evidence.append(
            f"silent on all rails to {len(votes.silent)} of {votes.observers} observers"
        )
    if votes.last_will:
        evidence.append("the broker has lost it")
    if votes.is_missed(least):
        evidence.append(f"missed by {len(votes.missed_by)} of {votes.agents} agents of the job")
    # The probes alone are enough to fence: the acknowledged fence is the second evidence.
    if len(evidence) >= 2:
        rule = TWO_AGREE
    elif votes.is_silent(least):
        rule = PROBES_AND_FENCE
    else:
        rule = ONE_ALONE if evidence else NO_EVIDENCE
    lost = rule in (TWO_AGREE, PROBES_AND_FENCE)
    return Verdict(lost, ", ".join(evidence) or "no evidence", votes, rule)
