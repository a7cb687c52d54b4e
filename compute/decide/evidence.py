"""Is a host lost? What its peers' probes, the broker and the job's own agents say.

A host is lost when two of these agree, or the first one alone with a fence that its peers have
acknowledged:

1. more than half of the hosts that probe it hear it on no rail;
2. the broker has published its last will;
3. more than half of the job's agents miss its agent's heartbeats.

An observer abstains when its own prober was paused (Lifeguard), when the broker has declared it
dead, or when most of *its* observers call it silent: it sits on the small side of a partition. Who
abstains still counts for the half: a few hosts that have the broker on their side decide nothing.
While one live agent of the job hears the host's agent, the host is not lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from telemetry.messages.documents import HostObservations, HostStatus, SilentHost

NO_EVIDENCE = "not lost: nothing speaks against it"
VETO = "not lost: a live agent of the job hears it"
ONE_ALONE = "not lost: one kind of evidence alone is not enough"
TWO_AGREE = "lost: two kinds of evidence agree"
PROBES_AND_FENCE = "lost: the probes agree, and a fence that its peers acknowledge confirms it"


@dataclass(frozen=True)
class HostView:
    """The newest that is known of one host. ``observations`` None: it has never said any."""

    status: HostStatus | None = None
    observations: HostObservations | None = None

    @property
    def dead(self) -> bool:
        """The broker has published its last will."""
        return self.status is not None and not self.status.online and not self.status.intended


@dataclass(frozen=True)
class Votes:
    """What was said of one host. Each is a sorted tuple of host names."""

    silent: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    abstained: tuple[str, ...] = ()
    last_will: bool = False
    missed_by: tuple[str, ...] = ()
    heard_by: tuple[str, ...] = ()
    agents: int = 0
    """Other hosts of the job."""

    @property
    def observers(self) -> int:
        """All hosts that probe it."""
        return len(self.silent) + len(self.heard) + len(self.abstained)

    @property
    def any_against(self) -> bool:
        """At least one of those who can speak speaks against the host."""
        return bool(self.silent or self.missed_by or self.last_will)

    def is_silent(self, least: int) -> bool:
        """More than half of the observers, and at least ``least``, call it silent."""
        return len(self.silent) >= least and 2 * len(self.silent) > self.observers

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


Observers = Mapping[str, Sequence[tuple[str, SilentHost | None]]]
"""Host → who probes it, sorted: (observer, what it calls silent of the host; None: it hears it)."""


def observers_of(hosts: Mapping[str, HostView]) -> Observers:
    """Who probes whom, by the newest observations. As long as all observations together."""
    observers: dict[str, list[tuple[str, SilentHost | None]]] = {}
    for name, view in sorted(hosts.items()):
        if view.observations is None:
            continue
        rows: dict[str, SilentHost | None] = dict.fromkeys(view.observations.heard)
        # The first row of a host counts, and one that is both silent and heard is silent.
        rows |= {row.host: row for row in reversed(view.observations.silent)}
        for host, row in rows.items():
            if host != name:
                observers.setdefault(host, []).append((name, row))
    return observers


def silent_hosts(
    hosts: Mapping[str, HostView], least: int, observers: Observers | None = None
) -> frozenset[str]:
    """Hosts that most of their observers call silent, before anybody abstains for that.

    ``observers``: the result of ``observers_of``, where it is known already.
    """
    known = observers_of(hosts) if observers is None else observers
    return frozenset(
        host for host in hosts if _probe_votes(host, hosts, (), known).is_silent(least)
    )


def judge(
    host: str,
    hosts: Mapping[str, HostView],
    silent: Collection[str],
    agents: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    least: int,
    observers: Observers | None = None,
) -> Verdict:
    """Judge ``host``.

    ``silent`` and ``observers``: results of ``silent_hosts`` and ``observers_of``. ``agents``: of
    each other host of the job, the hosts that its agent hears and misses. ``least``: how many
    observers have to agree.
    """
    known = observers_of(hosts) if observers is None else observers
    probes = _probe_votes(host, hosts, silent, known)
    fair = {
        name: said
        for name, said in agents.items()
        if name != host and name not in silent and not hosts.get(name, HostView()).dead
    }
    heard_by = sorted(name for name, (hears, _) in fair.items() if host in hears)
    missed_by = sorted(name for name, (_, misses) in fair.items() if host in misses)
    votes = Votes(
        probes.silent, probes.heard, probes.abstained,
        hosts.get(host, HostView()).dead, tuple(missed_by), tuple(heard_by),
        len(agents.keys() - {host}),
    )  # fmt: skip
    if heard_by:
        return Verdict(False, f"the job's agent on {heard_by[0]} hears it", votes, VETO)
    evidence = []
    if votes.is_silent(least):
        evidence.append(
            f"silent on all rails to {len(votes.silent)} of {votes.observers} observers"
        )
    if votes.last_will:
        evidence.append("the broker has lost it")
    if votes.is_missed(least):
        evidence.append(f"missed by {len(missed_by)} of {votes.agents} agents of the job")
    # The probes alone are enough to fence: the acknowledged fence is the second evidence.
    if len(evidence) >= 2:
        rule = TWO_AGREE
    elif votes.is_silent(least):
        rule = PROBES_AND_FENCE
    else:
        rule = ONE_ALONE if evidence else NO_EVIDENCE
    lost = rule in (TWO_AGREE, PROBES_AND_FENCE)
    return Verdict(lost, ", ".join(evidence) or "no evidence", votes, rule)


def _probe_votes(
    host: str, hosts: Mapping[str, HostView], silent: Collection[str], observers: Observers
) -> Votes:
    says: dict[str, list[str]] = {"silent": [], "heard": [], "abstained": []}
    for name, row in observers.get(host, ()):
        view = hosts[name]
        said = view.observations
        assert said is not None
        if said.abstains or view.dead or name in silent or _is_away(view):
            says["abstained"].append(name)
        elif row is not None and row.rails_probed and row.rails >= row.rails_probed:
            says["silent"].append(name)
        else:
            says["heard"].append(name)
    return Votes(tuple(says["silent"]), tuple(says["heard"]), tuple(says["abstained"]))


def _is_away(view: HostView) -> bool:
    return view.status is not None and not view.status.online
