"""All hosts and jobs of one fabric-compute. Pure: messages and the time go in, effects come out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from compute.decide.budget import ALL, FenceBudget
from compute.decide.decision import JobDecision, JobInput
from compute.decide.effects import Effect, FenceIssued, Order, Record, fence_record
from compute.decide.electorate import documents_of, is_out, proved, unconfirmed
from compute.decide.evidence import Judgement, Verdict, judge
from compute.decide.faults import Fault, JobFaults
from compute.decide.host_orders import HostOrders
from compute.decide.job import JobCore
from compute.decide.job_network import bench_of
from compute.decide.job_state import (
    MOST_RECOVERIES,
    job_state,
    recorded,
    recovery_of,
)
from compute.decide.known_job import (
    PROVED,
    DecisionContext,
    KnownAgent,
    KnownJob,
    Mode,
    check_sender,
    claims_of,
    held_of,
    is_progress,
    is_proved,
    is_vote,
    lost_of,
)
from compute.decide.observers import HostView, Observers
from compute.decide.owners import JobOwners, owner_of
from compute.decide.places import HostPlaces
from compute.decide.policy import Policy
from compute.decide.shown_states import STATE_S, ShownStates
from compute.decide.suspects import suspects
from fabric_train.messages.documents import AgentDocument, parse, to_data
from telemetry.messages.documents import (
    ComputeOrder,
    Fence,
    HostDocument,
    HostJob,
    HostObservations,
    HostStatus,
    fence_id,
    reads_users,
)
from telemetry.messages.envelope import Sender

POLL_S = 0.25  # while a job waits for something, limits are looked at so often
IDLE_S = 5.0  # a job in which nothing can run out is looked at so often without news


class Decider:
    """One fabric-compute. After any input call ``decide``; call it again at ``wake_at``."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self._policy = policy
        self._mode: Mode = "observe"
        self._stopped = ""
        self._observers = Observers()
        self._places = HostPlaces()
        self._owners = JobOwners()
        self._drained: dict[str, str] = {}
        self._jobs: dict[str, KnownJob] = {}
        self._stored: dict[str, list[Fence]] = {}
        self._budget = FenceBudget(policy)
        self._confirmed: list[Effect] = []
        """Of losses that were confirmed, and of new jobs, since the last decision."""
        self._judged = -1
        """Version of the observers that all jobs' evidence is of."""
        self._orders = HostOrders()
        self._shown = ShownStates()
        self._faults = JobFaults()
        self._wake_at: float | None = None
        self._news, self._urgent = True, False

    # -- input -------------------------------------------------------------------------------

    def restore(self, fences: list[Fence], now: float) -> None:
        """Fences of an earlier life of this process, from its store."""
        self._news = True
        for fence in fences:
            self._stored.setdefault(fence.job, []).append(fence)
            self._budget.spent(fence.host, now)

    def confirm_lost(self, host: str, reason: str, now: float) -> str:
        """Somebody knows that ``host`` is off: its loss needs no majority. Returns why not, or "".

        The agents that are known of it now are fenced, and leave the electorate of their jobs.
        """
        jobs = {name: job for name, job in self._jobs.items() if job.is_on(host)}
        if self._observers.is_live(host):
            return f"{host} is connected to the broker: it is not lost"
        if not jobs:
            return f"no job has a fabric-run on {host}"
        if self._mode != "migrate" or self._stopped:
            return f"stopped: {self._stopped}" if self._stopped else "mode observe: nothing is done"
        for name, job in sorted(jobs.items()):
            agent = job.agents[host]
            if agent.fence_id not in job.fences or agent.fence_id not in job.proved:
                why = f"{PROVED}: {reason}" if reason else PROVED
                self._confirmed += self._issue(name, job, host, why, now)
                job.proved.add(agent.fence_id)
                job.news = True
        self._news = True
        return ""

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
            self._places.remove(host)
        else:
            self._places.update(host, document)
        if self._orders.reads_users(host, yes=reads_users(document)):
            self._news = True

    def drain(self, host: str, now: float, *, to: str = "") -> None:
        """Move all ranks off ``host``, to host ``to`` if given, and use it as a spare no more."""
        del now
        self._drained[host] = to
        self._news = True

    def confirm_repaired(self, host: str, now: float) -> None:
        """``host`` is repaired: places of ranks on it may be used again."""
        del now
        for job in self._jobs.values():
            job.core.slots.clear(host)
            job.news = True
        self._news = True

    def confirm_broken(self, host: str, ranks: Collection[int], reason: str, now: float) -> str:
        """What these ranks run on there is broken: they move. Returns why not, or ""."""
        del now
        said = f"confirmed broken: {reason}" if reason else "confirmed broken"
        self._news = True
        named = [job for job in self._jobs.values() if job.leave_out(host, ranks, said)]
        return "" if named else f"no job has rank {', '.join(map(str, ranks))} on {host}"

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
        if news is None:
            for one in self._owners.leave(host, job):
                self._leave(host, one)
            return
        if not news.gone:
            if document is None:
                document = parse(AgentDocument, news.document)
            check_sender(document, job, host, news.incarnation)
        mine = self._job_of(host, job, news, document)
        known = self._jobs.get(mine)
        if known is None:
            if document is None:
                return
            former, is_new = self._shown.begin(mine)
            known = self._jobs[mine] = KnownJob.new(job, self._policy, former)
            if is_new:  # else it was told when it came first
                self._tell_namesake(mine, host, news)
            stored = self._stored.get(job, [])
            known.fences = {one.id: one for one in stored if one.is_of(news.uid)}
            known.proved = {one.id for one in known.fences.values() if is_proved(one)}
        before = known.agents.get(host)
        if document is None and before is not None and before.incarnation == news.incarnation:
            document = before.document
        agent = known.agents[host] = KnownAgent(
            news.incarnation, news.gone, document, fence_id(job, host, news.incarnation)
        )
        if before is not None and before.incarnation != agent.incarnation:
            known.absence.forget(host)
        if document is not None:
            self._news |= known.note_steps(document, now)
        if before is not None and is_progress(before, agent) and not known.lacks_witness:
            return
        known.judged, self._news = False, True
        known.news |= before is None or not is_vote(before, agent)
        self._urgent |= bool(known.evidence or known.votes.missed) or (
            document is not None and bool(document.misses)
        )
        if document is None or is_out(known, agent):
            known.votes.remove(host)
        else:
            known.votes.update(host, document.hears, document.misses)

    def job_of(self, host: str, job: str) -> str:
        """What the job is called here of which a host has a document under this name; "": none."""
        return self._owners.job_of(host, job)

    def name_of(self, job: str) -> str:
        """What the hosts of a job call it."""
        return self._owners.name_of(job)

    def is_home(self, host: str, job: str) -> bool:
        """A host has no document of another job with the same name: it may hear of ``job``."""
        return self._owners.job_of(host, self.name_of(job)) in ("", job)

    def _job_of(self, host: str, job: str, news: HostJob, document: AgentDocument | None) -> str:
        """Whose job it is. Of another one of this name the host's part is gone."""
        mine = self._owners.job_of(host, job)
        if document is None and mine and self._owners.is_of(mine, news.uid):
            return mine
        mine, left = self._owners.place(host, job, owner_of(news, document), is_over=self._is_over)
        if (before := self._jobs.get(left)) is not None and host in before.agents:
            # A host gives a name to another user only when the former run has ended.
            before.agents[host].gone = True
            before.votes.remove(host)
            before.judged, before.news, self._news = False, True, True
        return mine

    def _is_over(self, job: str) -> bool:
        known = self._jobs.get(job)
        return known is None or all(agent.gone for agent in known.agents.values())

    def _leave(self, host: str, job: str) -> None:
        if (known := self._jobs.get(job)) is not None:
            known.agents.pop(host, None)
            known.votes.remove(host)
            known.absence.forget(host)
            known.judged, known.news, self._news = False, True, True

    def _tell_namesake(self, job: str, host: str, news: HostJob) -> None:
        """A second job of one name, of another owner: a mistake, or somebody who wants in."""
        if others := self._owners.namesakes(job):
            fields = {"job": job, "others": others, "host": host, "uid": news.uid}
            self._confirmed.append(Record("namesake", fields))

    # -- output ------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """When ``decide`` is due without news; None: never."""
        return self._wake_at

    @property
    def pending(self) -> bool:
        """Something came after the last ``decide`` that may change what it said."""
        return self._news

    @property
    def faults(self) -> int:
        """Errors of our own, for each of which one job was held."""
        return self._faults.count

    @property
    def urgent(self) -> bool:
        """What is pending speaks against a host, or is of a job in which a host is in question."""
        return self._urgent

    def decide(self, now: float) -> list[Effect]:
        """Everything that has to be stored, published or recorded since the last call."""
        if not self._news and (self._wake_at is None or now < self._wake_at):
            return []
        self._wake_at, self._news, self._urgent = None, False, False
        effects, self._confirmed = self._confirmed, []
        faults: list[Fault] = []
        lost, claims = self._lost_hosts(now, faults)
        known = len(self._observers)
        refused = self._budget.refusal(lost, self._places.racks, known, now, claims)
        context = DecisionContext(self._mode, self._stopped, dict(self._drained), refused)
        for name, job in sorted(self._jobs.items()):
            held = self._faults.held_until(name, now) is not None
            if not held and self._is_due(job, context, now):
                with self._faults.guard(name, now, faults):
                    self._decide_job(name, job, context, now, effects)
        for fault in faults:
            effects += self._hold(fault, now)
        for job in self._jobs.values():
            due = job.due if job.verdict_due is None else min(job.due, job.verdict_due)
            self._wake_at = due if self._wake_at is None else min(self._wake_at, due)
        effects += self._changed_orders()
        return effects + self._forget(now)

    @staticmethod
    def _is_due(job: KnownJob, context: DecisionContext, now: float) -> bool:
        """Whether the last decision may not be the present one any more."""
        if job.last is None or job.news or now >= job.due or job.context != context:
            return True
        return bool(job.last[0].unconfirmed)  # an acknowledgement changes nothing of the job

    def _hold(self, fault: Fault, now: float) -> list[Effect]:
        """After an error in a job: begin anew with it in a while, and say so."""
        job = self._jobs[fault.job]
        job.core, job.last = JobCore(job.core.job, self._policy, job.core.how_it_ended), None
        job.due = self._faults.held_until(fault.job, now) or now
        job.verdict_due, job.judged, job.news = None, False, True
        if not self._faults.is_news(fault):
            return []
        fields = {"job": fault.job, "error": fault.error, "where": fault.where}
        return [Record("decision_failed", fields), *self._shown.hold(fault.job, fault.reason)]

    def _lost_hosts(self, now: float, faults: list[Fault]) -> tuple[dict[str, str], dict[str, str]]:
        """Host → why it is lost; and the user, of those that only that user's jobs call lost."""
        anew, self._judged = self._judged != self._observers.version, self._observers.version
        lost: dict[str, str] = {}
        claims: dict[str, str] = {}
        accused = self._observers.troubled
        for name, job in self._jobs.items():
            due = job.verdict_due is not None and now >= job.verdict_due
            news = anew and not (job.calm and accused.isdisjoint(job.agents))
            held = self._faults.held_until(name, now) is not None
            if not held and (due or news or not job.judged):
                with self._faults.guard(name, now, faults):
                    self._judge(job, now)
            claimed = dict.fromkeys(claims_of(job.evidence), self._owners.user_of(name))
            claims = {one: who for one, who in claims.items() if one not in lost_of(job.evidence)}
            claims |= {one: who for one, who in claimed.items() if one not in lost}
            lost |= lost_of(job.evidence)
        return lost, claims

    def _judge(self, job: KnownJob, now: float) -> None:
        job.judged = True
        before = job.evidence
        if job.core.generation is None:  # who decides is said by the newest one
            job.core.learn(documents_of(job), now)
        if job.votes.missed or not self._observers.troubled.isdisjoint(job.votes.agents):
            places = (self._places.addresses, self._places.linkless)
            bench = bench_of(job, self._observers, self._policy.maintenance, *places)
            found = judge(bench, job.absence, job.steps, self._policy, now)
        else:
            job.absence.calm(now)
            found = Judgement()
        job.evidence, job.verdict_due = found.verdicts, found.due
        job.votes.keep(job.evidence)
        job.calm = not job.evidence and not job.votes.missed
        if job.evidence == before:
            return
        # What one more vote changes is shown after a while; it is no reason to decide.
        job.news |= lost_of(job.evidence).keys() != lost_of(before).keys()
        job.news |= held_of(job.evidence) != held_of(before)
        job.stale_since = now if job.stale_since is None else job.stale_since
        job.due = min(job.due, job.stale_since + STATE_S)

    def _input(self, job: KnownJob, context: DecisionContext) -> JobInput:
        documents = documents_of(job)
        if job.core.is_new_run(documents) and documents:
            former = job.core.how_it_ended
            job.core, job.last = JobCore(job.core.job, self._policy, former), None
        lost = {host: why for host, why in lost_of(job.evidence).items() if host in documents}
        refused = context.refused
        return JobInput(
            documents,
            lost={host: why for host, why in lost.items() if host not in refused},
            held={host: refused[host] for host in lost if host in refused}
            | {host: why for host, why in held_of(job.evidence).items() if host in documents},
            unconfirmed=unconfirmed(job, self._observers),
            proved=proved(job),
            drained=context.drained,
            offline=frozenset(self._observers.last_wills),
            act=context.mode == "migrate",
            stopped=bool(context.stopped),
        )

    def _decide_job(
        self,
        name: str,
        job: KnownJob,
        context: DecisionContext,
        now: float,
        effects: list[Effect],
    ) -> None:
        news, job.context = self._input(job, context), context
        if job.last is not None and not job.news and job.last[0] == news and now < job.due:
            return
        decision = self._decision(job, news, now)
        # A fence that is issued is stored also if there is an error in what follows.
        for host, reason in sorted(decision.fence.items()):
            effects += self._issue(name, job, host, reason, now)
        effects += self._state(name, job, decision, context, now)
        effects += [recorded(name, one) for one in decision.records]
        fenced = {fence.host for fence in job.fences.values()}
        self._orders.update(name, decision.orders, job.agents.keys() | fenced)

    def _decision(self, job: KnownJob, news: JobInput, now: float) -> JobDecision:
        if not news.unconfirmed:
            job.core.fenced(now)
        decision = job.core.decide(news, now)
        decision.records += [*job.core.recovery(news.documents, now), *job.slow.take_records()]
        limits = job.core.has_limits(news.documents)
        job.last, job.due = (news, decision), now + (POLL_S if limits else IDLE_S)
        job.news = False
        return decision

    def _issue(self, name: str, job: KnownJob, host: str, reason: str, now: float) -> list[Effect]:
        """Fence the agent of ``host`` that is known now."""
        agent = job.agents[host]
        fence = Fence(
            id=agent.fence_id, job=job.core.job, host=host, incarnation=agent.incarnation,
            reason=reason, uid=self._owners.uid_of(name),
        )  # fmt: skip
        verdict = job.evidence.get(host, Verdict(True, reason, rule=reason))
        job.fences[fence.id], job.fenced[fence.id] = fence, verdict
        job.votes.remove(host)
        job.judged = False
        self._budget.spent(host, now, self._owners.user_of(name) if verdict.is_claim else ALL)
        return [FenceIssued(fence), fence_record(name, fence, verdict.votes)]

    def _state(
        self, name: str, job: KnownJob, decision: JobDecision, context: DecisionContext, now: float
    ) -> list[Effect]:
        generation = job.core.generation
        for record in decision.records:
            if (one := recovery_of(record, generation)) is not None:
                job.recoveries = [one, *job.recoveries][:MOST_RECOVERIES]
        agents = {
            host: None if is_out(job, one) else one.document for host, one in job.agents.items()
        }
        state = job_state(
            name, decision.phase, decision.reason, generation, agents,
            suspects(job, self._observers, context.refused), job.recoveries, job.slow.named,
        )  # fmt: skip
        return self._shown.update(name, job, state, now)

    def _changed_orders(self) -> list[Effect]:
        fences = [(job.agents, job.fences.values()) for job in self._jobs.values() if job.fences]
        changed: list[Effect] = []
        for host, issued, jobs in self._orders.changed(fences):
            mine = {}
            for job, one in jobs.items():
                if self.is_home(host, job):
                    mine[self.name_of(job)] = to_data(one)
            changed.append(Order(host, ComputeOrder(fences=issued, jobs=mine)))
        return changed

    def _forget(self, now: float) -> list[Effect]:
        """Jobs without an agent, and after a while what is shown of them."""
        effects: list[Effect] = []
        for name in [name for name, job in self._jobs.items() if not job.agents]:
            how = self._jobs.pop(name).core.how_it_ended
            self._orders.remove(name)
            effects += self._shown.end(name, how, now)
        effects += self._shown.expire(now)
        self._owners.sweep(self._jobs.keys() | self._shown.gone)
        self._faults.keep(self._jobs.keys())
        if (due := self._shown.wake_at()) is not None:
            self._wake_at = due if self._wake_at is None else min(self._wake_at, due)
        return effects
