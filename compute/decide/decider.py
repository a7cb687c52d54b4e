"""All hosts and jobs of one fabric-compute. Pure: messages and the time go in, effects come out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from compute.decide.budget import FenceBudget
from compute.decide.choice import majority
from compute.decide.decision import JobDecision, JobInput
from compute.decide.evidence import Verdict, judge
from compute.decide.job import JobCore
from compute.decide.job_state import (
    MOST_RECOVERIES,
    Suspect,
    is_urgent,
    job_state,
    recovery_of,
)
from compute.decide.observers import HostView, Observers
from compute.decide.policy import Policy
from fabric_train.documents import AgentDocument, DocumentError, JobOrder, parse, to_data
from telemetry.messages.documents import (
    ComputeJob,
    ComputeOrder,
    Fence,
    HostDocument,
    HostJob,
    HostObservations,
    HostStatus,
    Recovery,
    fence_id,
)
from telemetry.messages.envelope import Sender

STATE_S = 1.0
"""What is only observed of a job, e.g. one vote, is told when it has changed for so long."""
POLL_S = 0.25  # while a job waits for something, limits are looked at so often
SHOWN_S = 600.0
"""The last state of a job whose hosts have all left is shown for so long."""
IDLE_S = 5.0  # a job in which nothing can run out is looked at so often without news
Mode = Literal["observe", "migrate"]


@dataclass(frozen=True)
class Order:
    """Publish this as the present order to ``host``."""

    host: str
    order: ComputeOrder


@dataclass(frozen=True)
class JobState:
    """Publish this as the present state of a job; ``None``: the job is no more."""

    job: str
    state: ComputeJob | None


@dataclass(frozen=True)
class FenceIssued:
    """Store this before any order that contains it leaves."""

    fence: Fence


@dataclass(frozen=True)
class Record:
    """For ledger, log and metrics."""

    kind: str
    fields: dict[str, Any]


Effect = Order | JobState | FenceIssued | Record


@dataclass
class _Agent:
    """The newest fabric-run of one job on one host."""

    incarnation: str
    gone: bool
    document: AgentDocument | None
    fence_id: str


@dataclass
class _Job:
    core: JobCore
    agents: dict[str, _Agent] = field(default_factory=dict)
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
    """A document says more than that its processes are some steps further."""
    last: tuple[JobInput, JobDecision] | None = None
    due: float = 0.0
    """When the last decision may not hold any more without news."""


class Decider:
    """One fabric-compute. After any input call ``decide``; call it again at ``wake_at``."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self._policy = policy
        self._mode: Mode = "observe"
        self._stopped = ""
        self._observers = Observers()
        self._racks: dict[str, str] = {}
        self._drained: dict[str, str] = {}
        self._jobs: dict[str, _Job] = {}
        self._stored: dict[str, list[Fence]] = {}
        self._budget = FenceBudget(policy)
        self._judged = -1
        """Version of the observers that all jobs' evidence is of."""
        self._orders: dict[str, tuple[list[Fence], dict[str, JobOrder]]] = {}
        self._states: dict[str, ComputeJob] = {}
        self._gone: dict[str, float] = {}
        """Job without agents → until when its last state is shown."""
        self._wake_at: float | None = None
        self._news = True

    # -- input -------------------------------------------------------------------------------

    def restore(self, fences: list[Fence], now: float) -> None:
        """Fences of an earlier life of this process, from its store."""
        self._news = True
        for fence in fences:
            self._stored.setdefault(fence.job, []).append(fence)
            self._budget.spent(fence.host, now)

    def set_mode(self, mode: Mode, now: float) -> None:
        """``observe``: say what would be done. ``migrate``: do it."""
        del now
        self._news |= mode != self._mode
        self._mode = mode

    def stop(self, stopped: bool, reason: str, now: float) -> None:
        """While stopped, no fence is issued and no generation proposed."""
        del now
        self._stopped = (reason or "by an operator") if stopped else ""
        self._news = True

    def set_maintenance(self, hosts: Collection[str], now: float) -> None:
        """Over these hosts nothing is decided until they are left out again."""
        del now
        self._policy = replace(self._policy, maintenance=tuple(sorted(hosts)))
        self._judged, self._news = -1, True

    def host_status(self, host: str, sender: Sender, status: HostStatus, now: float) -> None:
        """Birth, goodbye or last will of a host."""
        del sender, now
        view = HostView(status, self._observers.view(host).observations)
        self._news |= self._observers.update(host, view)

    def host_observations(
        self, host: str, sender: Sender, observations: HostObservations, now: float
    ) -> None:
        """What a host's probes say."""
        del sender, now
        view = HostView(self._observers.view(host).status, observations)
        self._news |= self._observers.update(host, view)

    def host_document(self, host: str, document: HostDocument | None, now: float) -> None:
        """Who a host is; None: it was removed."""
        del now
        if document is None:
            self._news |= self._observers.update(host, None)
            self._racks.pop(host, None)
            return
        self._racks[host] = document.rack

    def drain(self, host: str, now: float, *, to: str = "") -> None:
        """Move all ranks off ``host``, to host ``to`` if given, and use it as a spare no more."""
        del now
        self._drained[host] = to
        self._news = True

    def undrain(self, host: str, now: float) -> None:
        """``host`` may hold ranks again."""
        del now
        self._drained.pop(host, None)
        self._news = True

    def host_job(
        self,
        host: str,
        job: str,
        news: HostJob | None,
        now: float,
        *,
        document: AgentDocument | None = None,
    ) -> None:
        """What fabric-run on a host says. None: cleared. Raises ``DocumentError``.

        ``document``: that of ``news``, if it is parsed already.
        """
        del now
        known = self._jobs.get(job)
        if news is None:
            if known is not None:
                known.agents.pop(host, None)
                known.judged, known.news, self._news = False, True, True
            return
        if not news.gone:
            if document is None:
                document = parse(AgentDocument, news.document)
            if (document.job, document.host, document.incarnation) != (
                job, host, news.incarnation,
            ):  # fmt: skip
                raise DocumentError(
                    f"a document of job {document.job:.80}, host {document.host:.80}, incarnation "
                    f"{document.incarnation:.80} under that of {job}, {host}, {news.incarnation}"
                )
        if known is None:
            if document is None:
                return
            known = self._jobs[job] = _Job(JobCore(job, self._policy))
            self._gone.pop(job, None)
            known.fences = {one.id: one for one in self._stored.get(job, [])}
        before = known.agents.get(host)
        if document is None and before is not None and before.incarnation == news.incarnation:
            document = before.document
        known.agents[host] = _Agent(
            news.incarnation, news.gone, document, fence_id(job, host, news.incarnation)
        )
        if before is None or not _is_progress(before, known.agents[host]):
            known.judged, known.news, self._news = False, True, True

    # -- output ------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """When ``decide`` is due without news; None: never."""
        return self._wake_at

    @property
    def pending(self) -> bool:
        """Something came after the last ``decide`` that may change what it said."""
        return self._news

    def decide(self, now: float) -> list[Effect]:
        """Everything that has to be stored, published or recorded since the last call."""
        if not self._news and (self._wake_at is None or now < self._wake_at):
            return []
        self._wake_at, self._news = None, False
        effects: list[Effect] = []
        lost = self._lost_hosts()
        refused = self._budget.refusal(lost, self._racks, len(self._observers), now)
        orders: dict[str, dict[str, JobOrder]] = {}
        for name, job in sorted(self._jobs.items()):
            news = self._input(job, refused)
            if job.last is not None and not job.news and job.last[0] == news and now < job.due:
                decision = job.last[1]
            else:
                decision = self._decide_job(job, news, now)
                effects += self._fence(job, decision, now)
                effects += self._state(name, job, decision, refused, now)
                records = decision.records
                effects += [Record(one.kind, {"job": name, **one.fields}) for one in records]
            for host, order in decision.orders.items():
                orders.setdefault(host, {})[name] = order
            self._wake_at = job.due if self._wake_at is None else min(self._wake_at, job.due)
        effects += self._changed_orders(orders)
        return effects + self._forget(now)

    def _lost_hosts(self) -> dict[str, str]:
        anew, self._judged = self._judged != self._observers.version, self._observers.version
        lost: dict[str, str] = {}
        accused = self._observers.accused
        for job in self._jobs.values():
            if not job.judged or (anew and not (job.calm and accused.isdisjoint(job.agents))):
                self._judge(job)
            lost |= {host: one.reason for host, one in job.evidence.items() if one.lost}
        return lost

    def _judge(self, job: _Job) -> None:
        job.judged = True
        agents = {
            host: (one.document.hears, one.document.misses)
            for host, one in job.agents.items()
            if one.document is not None and not self._is_out(job, one)
        }
        hosts = agents.keys() - set(self._policy.maintenance)
        before = job.evidence
        job.evidence = judge(hosts, self._observers, agents, self._policy.min_observers)
        job.news |= job.evidence != before
        job.calm = not job.evidence and not any(misses for _, misses in agents.values())

    @staticmethod
    def _is_out(job: _Job, agent: _Agent) -> bool:
        """Gone, or fenced: nothing of it counts any more."""
        return agent.gone or agent.fence_id in job.fences

    def _input(self, job: _Job, refused: Mapping[str, str]) -> JobInput:
        documents: dict[str, AgentDocument] = {}
        unconfirmed = set()
        for host, agent in job.agents.items():
            if agent.document is None or agent.gone:
                continue
            if self._is_out(job, agent):
                if not self._confirmed(job, host):
                    unconfirmed.add(host)
                continue
            documents[host] = agent.document
        if job.core.is_new_run(documents) and documents:
            job.core, job.last = JobCore(job.core.job, self._policy), None
        lost = {
            host: verdict.reason
            for host, verdict in job.evidence.items()
            if verdict.lost and host in documents
        }
        acts = self._mode == "migrate"
        return JobInput(
            documents,
            lost={host: why for host, why in lost.items() if host not in refused},
            held={host: refused[host] for host in lost if host in refused},
            unconfirmed=frozenset(unconfirmed),
            drained=dict(self._drained),
            act=acts,
            stopped=bool(self._stopped),
        )

    def _decide_job(self, job: _Job, news: JobInput, now: float) -> JobDecision:
        if not news.unconfirmed:
            job.core.fenced(now)
        decision = job.core.decide(news, now)
        decision.records += job.core.recovery(news.documents, now)
        limits = job.core.has_limits(news.documents)
        job.last, job.due = (news, decision), now + (POLL_S if limits else IDLE_S)
        job.news = False
        return decision

    def _fence(self, job: _Job, decision: JobDecision, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for host, reason in sorted(decision.fence.items()):
            agent = job.agents[host]
            fence = Fence(
                id=agent.fence_id, job=job.core.job, host=host,
                incarnation=agent.incarnation, reason=reason,
            )  # fmt: skip
            job.fences[fence.id] = fence
            job.fenced[fence.id] = job.evidence[host]
            job.judged = False
            self._budget.spent(host, now)
            votes = job.evidence[host].votes
            effects += [
                FenceIssued(fence),
                Record(
                    "fence",
                    {
                        "job": fence.job, "host": host, "id": fence.id, "reason": reason,
                        "silent": list(votes.silent), "heard": list(votes.heard),
                        "abstained": list(votes.abstained), "last_will": votes.last_will,
                        "missed_by": list(votes.missed_by),
                    },
                ),
            ]  # fmt: skip
        return effects

    def _confirmed(self, job: _Job, host: str) -> bool:
        """A majority of the electorate, and all hosts left with a rank, have acknowledged it."""
        acknowledged = self._observers.acknowledged(job.agents[host].fence_id)
        generation = job.core.generation
        if generation is None:
            return True
        electorate = [name.partition("/")[0] for name in generation.electorate]
        left = {
            name
            for name in generation.hosts
            if name in job.agents and not self._is_out(job, job.agents[name])
        }
        return majority(acknowledged, electorate) and left <= set(acknowledged)

    def _state(
        self, name: str, job: _Job, decision: JobDecision, refused: Mapping[str, str], now: float
    ) -> list[Effect]:
        generation = job.core.generation
        for record in decision.records:
            if (one := recovery_of(record, generation)) is not None:
                job.recoveries = [one, *job.recoveries][:MOST_RECOVERIES]
        agents = {
            host: None if self._is_out(job, one) else one.document
            for host, one in job.agents.items()
        }
        state = job_state(
            name, decision.phase, decision.reason, generation, agents,
            self._suspects(job, refused), job.recoveries,
        )  # fmt: skip
        before = self._states.get(name)
        if before == state:
            job.stale_since = None
            return []
        if not is_urgent(before, state):
            # Storing it now would delay the order that may follow in a moment.
            job.stale_since = now if job.stale_since is None else job.stale_since
            if now < job.stale_since + STATE_S:
                job.due = min(job.due, job.stale_since + STATE_S)
                return []
        self._states[name], job.stale_since = state, None
        effects: list[Effect] = [JobState(name, state)]
        if before is None or _phase(before) != _phase(state):
            effects.append(Record("phase", {"job": name, **_phase(state)}))
        return effects

    def _suspects(self, job: _Job, refused: Mapping[str, str]) -> list[Suspect]:
        """Hosts of the job that somebody speaks against, and fenced ones, by name."""
        found = []
        for host, agent in sorted(job.agents.items()):
            fence = job.fences.get(agent.fence_id)
            verdict = job.fenced.get(fence.id) if fence else job.evidence.get(host)
            if fence is not None:
                acknowledged = self._observers.acknowledged(fence.id)
                found.append(Suspect(host, verdict, fence, acknowledged=acknowledged))
            elif verdict is not None and verdict.votes.any_against:
                held = refused.get(host, "") if verdict.lost else ""
                found.append(Suspect(host, verdict, held=held))
        return found

    def _changed_orders(self, jobs: Mapping[str, Mapping[str, JobOrder]]) -> list[Effect]:
        hosts = set(self._orders) | set(jobs)
        fences_of: dict[str, list[Fence]] = {}
        for job in self._jobs.values():
            for fence in job.fences.values():
                for host in {*job.agents, fence.host}:
                    fences_of.setdefault(host, []).append(fence)
        hosts |= fences_of.keys()
        changed: list[Effect] = []
        for host in sorted(hosts):
            fences = fences_of.get(host, [])
            wanted = (fences, dict(jobs.get(host, {})))
            if self._orders.get(host, ([], {})) != wanted:
                self._orders[host] = wanted
                mine = {name: to_data(one) for name, one in wanted[1].items()}
                changed.append(Order(host, ComputeOrder(fences=fences, jobs=mine)))
        return changed

    def _forget(self, now: float) -> list[Effect]:
        """Jobs without an agent, and after a while what is shown of them."""
        effects: list[Effect] = []
        for name in [name for name, job in self._jobs.items() if not job.agents]:
            del self._jobs[name]
            self._states.pop(name, None)
            self._gone[name] = now + SHOWN_S
            effects.append(Record("job_gone", {"job": name}))
        for name in [name for name, until in self._gone.items() if now >= until]:
            del self._gone[name]
            effects.append(JobState(name, None))
        if self._gone:
            due = min(self._gone.values())
            self._wake_at = due if self._wake_at is None else min(self._wake_at, due)
        return effects


def _is_progress(before: _Agent, agent: _Agent) -> bool:
    """``agent`` says what ``before`` said, but for how far its processes are."""
    if (before.incarnation, before.gone) != (agent.incarnation, agent.gone):
        return False
    old, new = before.document, agent.document
    return old is new or (old is not None and new is not None and new.is_progress_of(old))


def _phase(state: ComputeJob) -> dict[str, Any]:
    return {"phase": state.phase, "reason": state.reason, "generation": state.generation}


__all__ = ["Decider", "Effect", "FenceIssued", "JobState", "Order", "Record"]
