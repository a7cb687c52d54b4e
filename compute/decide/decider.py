"""All hosts and jobs of one fabric-compute. Pure: messages and the time go in, effects come out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from compute.decide.budget import FenceBudget
from compute.decide.choice import majority
from compute.decide.decision import JobDecision, JobInput
from compute.decide.evidence import judge
from compute.decide.host_orders import HostOrders
from compute.decide.job import JobCore
from compute.decide.job_state import (
    MOST_RECOVERIES,
    Suspect,
    is_urgent,
    job_state,
    recovery_of,
)
from compute.decide.known_job import (
    DecisionContext,
    KnownAgent,
    KnownJob,
    Mode,
    is_progress,
    is_vote,
    lost_of,
)
from compute.decide.observers import HostView, Observers
from compute.decide.policy import Policy
from fabric_train.messages.documents import AgentDocument, DocumentError, parse, to_data
from telemetry.messages.documents import (
    ComputeJob,
    ComputeOrder,
    Fence,
    HostDocument,
    HostJob,
    HostObservations,
    HostStatus,
    fence_id,
)
from telemetry.messages.envelope import Sender

STATE_S = 1.0
"""What is only observed of a job, e.g. one vote, is told when it has changed for so long."""
POLL_S = 0.25  # while a job waits for something, limits are looked at so often
SHOWN_S = 600.0
"""The last state of a job whose hosts have all left is shown for so long."""
IDLE_S = 5.0  # a job in which nothing can run out is looked at so often without news


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
        self._jobs: dict[str, KnownJob] = {}
        self._stored: dict[str, list[Fence]] = {}
        self._budget = FenceBudget(policy)
        self._judged = -1
        """Version of the observers that all jobs' evidence is of."""
        self._orders = HostOrders()
        self._states: dict[str, ComputeJob] = {}
        self._gone: dict[str, float] = {}
        """Job without agents → until when its last state is shown."""
        self._wake_at: float | None = None
        self._news = True
        self._urgent = False

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
        changed = self._observers.update(host, view)
        self._news |= changed
        self._urgent |= changed and view.last_will

    def host_observations(
        self, host: str, sender: Sender, observations: HostObservations, now: float
    ) -> None:
        """What a host's probes say."""
        del sender, now
        view = HostView(self._observers.view(host).status, observations)
        changed = self._observers.update(host, view)
        self._news |= changed
        self._urgent |= changed and bool(observations.silent or observations.fences)

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
                known.votes.remove(host)
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
            known = self._jobs[job] = KnownJob(JobCore(job, self._policy))
            self._gone.pop(job, None)
            known.fences = {one.id: one for one in self._stored.get(job, [])}
        before = known.agents.get(host)
        if document is None and before is not None and before.incarnation == news.incarnation:
            document = before.document
        agent = known.agents[host] = KnownAgent(
            news.incarnation, news.gone, document, fence_id(job, host, news.incarnation)
        )
        if before is not None and is_progress(before, agent):
            return
        known.judged, self._news = False, True
        known.news |= before is None or not is_vote(before, agent)
        self._urgent |= bool(known.evidence or known.votes.missed) or (
            document is not None and bool(document.misses)
        )
        if document is None or self._is_out(known, agent):
            known.votes.remove(host)
        else:
            known.votes.update(host, document.hears, document.misses)

    # -- output ------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """When ``decide`` is due without news; None: never."""
        return self._wake_at

    @property
    def pending(self) -> bool:
        """Something came after the last ``decide`` that may change what it said."""
        return self._news

    @property
    def urgent(self) -> bool:
        """What is pending speaks against a host, or is of a job in which a host is in question."""
        return self._urgent

    def decide(self, now: float) -> list[Effect]:
        """Everything that has to be stored, published or recorded since the last call."""
        if not self._news and (self._wake_at is None or now < self._wake_at):
            return []
        self._wake_at, self._news, self._urgent = None, False, False
        effects: list[Effect] = []
        lost = self._lost_hosts(now)
        refused = self._budget.refusal(lost, self._racks, len(self._observers), now)
        context = DecisionContext(self._mode, self._stopped, dict(self._drained), refused)
        for name, job in sorted(self._jobs.items()):
            if self._is_due(job, context, now):
                effects += self._decide_job(name, job, context, now)
            self._wake_at = job.due if self._wake_at is None else min(self._wake_at, job.due)
        effects += self._changed_orders()
        return effects + self._forget(now)

    @staticmethod
    def _is_due(job: KnownJob, context: DecisionContext, now: float) -> bool:
        """Whether the last decision may not be the present one any more."""
        if job.last is None or job.news or now >= job.due or job.context != context:
            return True
        return bool(job.last[0].unconfirmed)  # an acknowledgement changes nothing of the job

    def _lost_hosts(self, now: float) -> dict[str, str]:
        anew, self._judged = self._judged != self._observers.version, self._observers.version
        lost: dict[str, str] = {}
        accused = self._observers.accused
        for job in self._jobs.values():
            if not job.judged or (anew and not (job.calm and accused.isdisjoint(job.agents))):
                self._judge(job, now)
            lost |= lost_of(job.evidence)
        return lost

    def _judge(self, job: KnownJob, now: float) -> None:
        job.judged = True
        hosts = job.votes.agents - set(self._policy.maintenance)
        before = job.evidence
        job.evidence = judge(hosts, self._observers, job.votes, self._policy.min_observers)
        job.votes.keep(job.evidence)
        job.calm = not job.evidence and not job.votes.missed
        if job.evidence == before:
            return
        # What one more vote changes is shown after a while; it is no reason to decide.
        job.news |= lost_of(job.evidence).keys() != lost_of(before).keys()
        job.stale_since = now if job.stale_since is None else job.stale_since
        job.due = min(job.due, job.stale_since + STATE_S)

    @staticmethod
    def _is_out(job: KnownJob, agent: KnownAgent) -> bool:
        """Gone, or fenced: nothing of it counts any more."""
        return agent.gone or agent.fence_id in job.fences

    def _input(self, job: KnownJob, context: DecisionContext) -> JobInput:
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
        lost = {host: why for host, why in lost_of(job.evidence).items() if host in documents}
        refused = context.refused
        return JobInput(
            documents,
            lost={host: why for host, why in lost.items() if host not in refused},
            held={host: refused[host] for host in lost if host in refused},
            unconfirmed=frozenset(unconfirmed),
            drained=context.drained,
            act=context.mode == "migrate",
            stopped=bool(context.stopped),
        )

    def _decide_job(
        self, name: str, job: KnownJob, context: DecisionContext, now: float
    ) -> list[Effect]:
        news, job.context = self._input(job, context), context
        if job.last is not None and not job.news and job.last[0] == news and now < job.due:
            return []
        decision = self._decision(job, news, now)
        effects = self._fence(job, decision, now)
        effects += self._state(name, job, decision, context, now)
        effects += [Record(one.kind, {"job": name, **one.fields}) for one in decision.records]
        fenced = {fence.host for fence in job.fences.values()}
        self._orders.update(name, decision.orders, job.agents.keys() | fenced)
        return effects

    def _decision(self, job: KnownJob, news: JobInput, now: float) -> JobDecision:
        if not news.unconfirmed:
            job.core.fenced(now)
        decision = job.core.decide(news, now)
        decision.records += job.core.recovery(news.documents, now)
        limits = job.core.has_limits(news.documents)
        job.last, job.due = (news, decision), now + (POLL_S if limits else IDLE_S)
        job.news = False
        return decision

    def _fence(self, job: KnownJob, decision: JobDecision, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for host, reason in sorted(decision.fence.items()):
            agent = job.agents[host]
            fence = Fence(
                id=agent.fence_id, job=job.core.job, host=host,
                incarnation=agent.incarnation, reason=reason,
            )  # fmt: skip
            job.fences[fence.id] = fence
            job.fenced[fence.id] = job.evidence[host]
            job.votes.remove(host)
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

    def _confirmed(self, job: KnownJob, host: str) -> bool:
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
        self, name: str, job: KnownJob, decision: JobDecision, context: DecisionContext, now: float
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
            self._suspects(job, context.refused), job.recoveries,
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

    def _suspects(self, job: KnownJob, refused: Mapping[str, str]) -> list[Suspect]:
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

    def _changed_orders(self) -> list[Effect]:
        fences = [(job.agents, job.fences.values()) for job in self._jobs.values() if job.fences]
        changed: list[Effect] = []
        for host, issued, jobs in self._orders.changed(fences):
            mine = {name: to_data(one) for name, one in jobs.items()}
            changed.append(Order(host, ComputeOrder(fences=issued, jobs=mine)))
        return changed

    def _forget(self, now: float) -> list[Effect]:
        """Jobs without an agent, and after a while what is shown of them."""
        effects: list[Effect] = []
        for name in [name for name, job in self._jobs.items() if not job.agents]:
            del self._jobs[name]
            self._orders.remove(name)
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


def _phase(state: ComputeJob) -> dict[str, Any]:
    return {"phase": state.phase, "reason": state.reason, "generation": state.generation}


__all__ = ["Decider", "Effect", "FenceIssued", "JobState", "Order", "Record"]
