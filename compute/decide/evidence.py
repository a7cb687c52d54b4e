"""Is a host of a job lost? What speaks for and against it on the job's own network.

``docs/design/lost-hosts.md`` has the rule, its words and its proof; the rows of its table are the
rules below, in their order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from compute.decide.absence import Absence, StepWatch
from compute.decide.agent_votes import AgentsSay
from compute.decide.core_hosts import (
    Electorate,
    by_heartbeats,
    by_probes,
    core_hosts,
    largest_group,
)
from compute.decide.observers import Observers, ProbeVotes
from compute.decide.policy import Policy

RAILS, AGENTS, UNKNOWN = "rails", "agents", ""
"""Networks of a job's collectives; UNKNOWN: its fabric-runs are of a version that does not say."""

NO_EVIDENCE = "not lost: nothing speaks against it"
NO_CORE = "not lost: no majority of the job's hosts hears each other"
HEARD = "not lost: most that probe it hear it on the job's network"
AGENT_HEARS = "not lost: a live agent of the job hears it"
NOT_DARK = "not lost: on the job's network most do not miss it"
STEPS_GO_ON = "not lost: the job goes on stepping"
AWAY = "not lost yet: away on the job's network"
UNWITNESSED = "not lost yet: no rank of the job has said since that no step was made"
EXPLAINED = "not lost yet: its prober or its fabricd is away, and no step is overdue"
FEW_WELL = "not lost: to fence it, a majority of the job's hosts has to be well"
UNTOLD = "lost: no order reaches it, and the job makes no step"
BOTH = "lost: gone on the job's network and on the other one"
FLAPS = "lost: it comes and goes on the job's network, and the job starts a generation each time"
DARK = "lost: away on the job's network, and the job makes no step"


@dataclass(frozen=True)
class Votes(ProbeVotes):
    """What was said of one host, by its observers, the broker and the job's agents.

    Only hosts of the core vote. ``agents``: other hosts of the core whose agent may vote.
    """

    last_will: bool = False
    missed_by: tuple[str, ...] = ()
    heard_by: tuple[str, ...] = ()
    agents: int = 0

    @property
    def any_against(self) -> bool:
        """At least one of those who can speak speaks against the host."""
        return bool(self.silent or self.deaf_to or self.missed_by or self.last_will)

    def is_missed(self, least: int) -> bool:
        """More than half of the job's agents, and at least ``least``, miss it."""
        return len(self.missed_by) >= least and 2 * len(self.missed_by) > self.agents


@dataclass(frozen=True)
class Verdict:
    """``lost``: fence it. ``reason`` says which evidence, or why not; ``rule`` what follows.

    ``held``: it is not fenced, and the job waits for that to change.
    """

    lost: bool
    reason: str
    votes: Votes = field(default_factory=Votes)
    rule: str = NO_EVIDENCE
    held: bool = False

    @property
    def is_claim(self) -> bool:
        """Nobody but the job's own agents speaks against the host."""
        votes = self.votes
        return bool(votes.missed_by) and not (votes.silent or votes.deaf_to or votes.last_will)


@dataclass(frozen=True)
class Bench:
    """All that verdicts over the hosts of one job are made of.

    ``hosts``: to be judged. ``electorate``: hosts whose majority decides. ``ranks``: hosts with
    ranks. ``network``: of the job's collectives. ``one_network``: the addresses of its agents are
    on the rails. ``pending``: a fence or a generation waits for all hosts with ranks.
    ``linkless``: hosts whose own fabricd says that all links of theirs are down.
    """

    hosts: Collection[str]
    electorate: Electorate
    ranks: Collection[str]
    network: str
    observers: Observers
    agents: AgentsSay
    one_network: bool = False
    pending: bool = False
    linkless: Collection[str] = ()


@dataclass(frozen=True)
class Judgement:
    """``verdicts`` of those that somebody speaks against. ``due``: when time alone changes one."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    due: float | None = None


def judge(
    bench: Bench, absence: Absence, steps: StepWatch, policy: Policy, now: float
) -> Judgement:
    """Judge all hosts of the bench; ``absence`` learns which are dark."""
    suspects = (bench.observers.troubled | bench.agents.missed).intersection(bench.hosts)
    if not suspects:
        absence.calm(now)
        return Judgement()
    if bench.network == AGENTS:
        neighbours = by_heartbeats(bench.observers, bench.agents, bench.electorate.hosts)
    else:
        neighbours = by_probes(bench.observers, bench.agents, bench.electorate.hosts)
    core = core_hosts(bench.electorate, neighbours)
    absence.note_core(bool(core), now)
    if not core:
        group = largest_group(bench.electorate.hosts, neighbours)
        return _without_core(bench, suspects, group, absence, steps, policy, now)
    votes = {host: _votes(bench, host, core) for host in suspects}
    dark = {host for host, one in votes.items() if _is_dark(bench.network, one, policy)}
    untold = {
        host
        for host in bench.ranks
        if host in votes
        and votes[host].last_will
        and (bench.pending or votes[host].is_missed(policy.min_observers))
    }
    elsewhere = {host for host, one in votes.items() if _gone_elsewhere(bench, one, policy)}
    absence.update(dark, now, untold - dark, elsewhere)
    found, dues = dict[str, Verdict](), [float("inf")]
    for host, one in votes.items():
        if one.any_against:
            found[host], due = _verdict(bench, host, one, absence, steps, policy, now)
            dues.append(due)
    well = core.intersection(bench.electorate.hosts).difference(
        dark, (host for host, one in found.items() if one.lost)
    )
    if not bench.electorate.is_majority(well):
        found = {host: _few_well(one, well, bench) for host, one in found.items()}
    due = min(dues)
    return Judgement(found, None if due == float("inf") else due)


def _without_core(
    bench: Bench, suspects: Collection[str], group: Collection[str], absence: Absence,
    steps: StepWatch, policy: Policy, now: float,
) -> Judgement:  # fmt: skip
    absence.update((), now)
    names = ", ".join(group[:8]) if isinstance(group, list) else ""
    text = (
        f"{len(group)} of {bench.electorate.size} hosts of the job hear each other ({names}): no "
        "majority. If the others are gone for good, say so: fabric-compute confirm-lost HOST"
    )
    moved = steps.moved_at
    told = any(host not in bench.observers.last_wills for host in bench.ranks)
    stands = told and (moved is None or now - moved > steps.overdue_s(policy.away_s))
    outside = {host for host in suspects if host not in group}
    everybody = {*bench.electorate.hosts, *suspects}
    found = {}
    for host in outside:
        votes = _votes(bench, host, everybody)
        if votes.any_against:
            found[host] = Verdict(False, text, votes, NO_CORE, held=stands)
    return Judgement(found, now + policy.away_s if told and not stands else None)


def _votes(bench: Bench, host: str, core: Collection[str]) -> Votes:
    observers, agents = bench.observers, bench.agents
    probes = observers.votes(host, core)
    fresh = [name for name in agents.agents if name in core and name != host] if (
        host in agents.missed or bench.network != RAILS
    ) else []  # fmt: skip

    def voting(names: Collection[str]) -> tuple[str, ...]:
        return tuple(
            sorted(
                one
                for one in names
                if one in core and one != host and one not in observers.last_wills
            )
        )

    said = Votes(
        probes.silent, probes.heard, probes.abstained, probes.deaf_to, probes.probed,
        observers.view(host).last_will, voting(agents.missed_by(host)),
    )  # fmt: skip
    if not said.any_against:  # as of each host that accuses another
        return said
    return replace(
        said, heard_by=voting(agents.heard_by(host)),
        agents=sum(name not in observers.last_wills for name in fresh),
    )  # fmt: skip


def _judged_by_heartbeats(network: str, votes: Votes) -> bool:
    """The agents' word is that of the job's network, also where nobody probes the host."""
    return network == AGENTS or (network == RAILS and not votes.observers and not votes.probed)


def _is_dark(network: str, votes: Votes, policy: Policy) -> bool:
    if _judged_by_heartbeats(network, votes):
        return votes.is_missed(policy.min_observers)
    return votes.is_silent(policy.min_observers) or votes.is_deaf(policy.min_observers)


def _verdict(
    bench: Bench, host: str, votes: Votes, absence: Absence, steps: StepWatch, policy: Policy,
    now: float,
) -> tuple[Verdict, float]:  # fmt: skip
    """The verdict over one host, and when time alone may change it."""
    least, never = policy.min_observers, float("inf")
    evidence = _texts(votes, least)

    def verdict(rule: str, *more: str, lost: bool = False) -> Verdict:
        text = ", ".join([*evidence, *more]) or "no evidence"
        return Verdict(lost, text, votes, rule)

    if bench.network == UNKNOWN:
        rule, lost = _as_before(votes, least)
        return verdict(rule, lost=lost), never
    heartbeats = _judged_by_heartbeats(bench.network, votes)
    since = absence.since(host)
    if since is None:
        rule = HEARD if not heartbeats and votes.is_heard else NOT_DARK
        untold = absence.untold_since(host)
        if untold is None or steps.goes_on(untold, policy.untold_s, now):
            return verdict(rule), never if untold is None else steps.expected_by(policy.untold_s)
        if now < (due := max(untold, steps.moved_at or untold) + policy.untold_s):
            return verdict(rule), due
        if not steps.is_witnessed(due):
            return verdict(UNWITNESSED), never
        return verdict(UNTOLD, f"for {now - untold:.1f} s", lost=True), never
    alone = not heartbeats and not votes.is_silent(least)  # nobody but the host itself says so
    if not alone and not votes.heard and not votes.heard_by:
        gone = absence.gone_elsewhere_since(host)
        # A job that has stepped since does not need those who miss the host. Where nobody knows
        # since when it is missed, only time tells.
        if gone is not None and not (
            host in bench.ranks
            and (absence.began_unseen(host) or steps.moved_since(min(since, gone)))
        ):
            return verdict(BOTH, lost=True), never
    times = absence.times(host, policy.flap_window_s, now)
    begun = steps.generations(policy.flap_window_s, now)
    if times >= policy.flaps <= begun and not alone:
        flaps = f"{times} times within {policy.flap_window_s:g} s, with {begun} generations"
        return verdict(FLAPS, flaps, lost=True), never
    if host in bench.ranks and steps.goes_on(since, policy.away_s, now):
        return verdict(STEPS_GO_ON), steps.expected_by(policy.away_s)
    rule, wait = AWAY, policy.away_s
    if alone:
        wait = max(wait, policy.deaf_s)
    excused = not heartbeats and host not in bench.linkless and not bench.observers.is_live(host)
    if excused and votes.heard_by:
        rule, wait = EXPLAINED, steps.overdue_s(wait)
    # What had begun to run when the host became dark is no step of now.
    moved = steps.moved_at if host in bench.ranks and steps.moved_since(since) else None
    due = max(since, moved or since) + wait
    if now < due:
        return verdict(rule, f"for {now - since:.1f} of {wait:.1f} s"), due
    if host in bench.ranks and not steps.is_witnessed(due):
        return verdict(UNWITNESSED), never
    why = f"away for {now - since:.1f} s without a step of the job"
    return verdict(DARK, why, lost=True), never


def _gone_elsewhere(bench: Bench, votes: Votes, policy: Policy) -> bool:
    """The network that is not the job's has lost a host; ``votes`` are of it."""
    least = policy.min_observers
    if bench.one_network:
        return votes.last_will
    if bench.network == AGENTS:
        return votes.is_silent(least)
    if _judged_by_heartbeats(bench.network, votes):
        return votes.last_will
    return votes.is_missed(least) or votes.last_will


def _as_before(votes: Votes, least: int) -> tuple[str, bool]:
    """The rule for fabric-runs that do not say which network is theirs."""
    if votes.heard_by:
        return AGENT_HEARS, False
    kinds = votes.is_silent(least) + votes.is_missed(least) + votes.last_will
    if votes.is_silent(least) or kinds >= 2:
        return BOTH if kinds >= 2 else DARK, True
    return NOT_DARK, False


def _texts(votes: Votes, least: int) -> list[str]:
    texts = []
    if votes.is_silent(least):
        count = len(votes.silent)
        texts.append(f"silent on all rails to {count} of {votes.observers} observers")
    elif votes.is_deaf(least):
        texts.append(f"it hears {len(votes.deaf_to)} of {votes.probed} hosts on no rail")
    if votes.last_will:
        texts.append("the broker has lost it")
    if votes.is_missed(least):
        texts.append(f"missed by {len(votes.missed_by)} of {votes.agents} agents of the job")
    return texts


def _few_well(verdict: Verdict, well: Collection[str], bench: Bench) -> Verdict:
    if not verdict.lost:
        return verdict
    text = f"{len(well)} of {bench.electorate.size} hosts of the job are well"
    return replace(
        verdict, lost=False, held=True, rule=FEW_WELL, reason=f"{verdict.reason}; {text}"
    )
