"""One job: formation, takeovers, limits, end. A function of the newest documents of its agents.

::

    waiting ─all joined─► proposed ─accepted─► running ─all finished─► ended
                             ▲                    │
                             └── rank lost ◄──────┤ (its host fenced first)
                                    │             └─ no spare ─► held ─ a spare is warm ─► proposed
                                    └─ no state, no progress, a limit ─► failed

What a generation needs before it may run: a majority of ``voters`` and every host with a rank have
accepted it, and nobody else's proposal of that number. An agent accepts each number once, so two
fabric-computes cannot both run one. What this object remembers besides the documents is of use for
time-outs and records only; after a restart the documents say the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compute.decide.arrivals import TOO_MANY, Arrivals
from compute.decide.choice import accepted_numbers, has_accepted, newest_generation
from compute.decide.decision import JobDecision, JobInput
from compute.decide.hangs import hung_ranks
from compute.decide.orders import ending, refusals, waiting
from compute.decide.parking import can_shrink, electors_of, parked_generation
from compute.decide.placement import (
    NoStateError,
    PlacementError,
    first_generation,
    late_misfits,
    misfits,
    next_generation,
    what_would_move,
)
from compute.decide.policy import Policy
from compute.decide.progress import GenerationProgress
from compute.decide.ranks import (
    HOST_LOST,
    all_finished,
    by_reason,
    dead_ranks,
    describe_dead,
    holds_rank,
    other_layouts,
    rank_processes,
)
from compute.decide.recovery import JobRecord, RecoveryLog
from compute.decide.slots import BrokenSlots
from fabric_train.messages.documents import AgentDocument, JobGeneration, JobOrder
from fabric_train.rules.agreement import LATE

TERMINAL = ("ended", "failed")


class JobCore:
    """Decides for one job. ``decide`` may be called at any time, any number of times."""

    def __init__(self, job: str, policy: Policy, former: str = "") -> None:
        """``former``: how the last run of a job of this name ended; "": not known."""
        self.job = job
        self._former = former
        self._policy = policy
        self._first_seen: float | None = None
        self._layout: str | None = None
        self._again: tuple[int, str] | None = None  # after which start the job starts again, why
        self._end: tuple[str, str] | None = None
        self._end_incarnations: frozenset[str] = frozenset()
        self._log = RecoveryLog()
        self._progress = GenerationProgress(policy, self._log)
        self.slots = BrokenSlots()
        self._arrivals = Arrivals()
        self._leaving: frozenset[str] = frozenset()  # drained hosts
        self._waits_since: float | None = None  # for fences that are not acknowledged yet
        self._steps: dict[str, int] = {}
        self._offline: frozenset[str] = frozenset()  # hosts whose word is old
        self._hung: frozenset[str] = frozenset()  # processes to end
        self._phase = "waiting"

    @property
    def phase(self) -> str:
        """As last decided."""
        return self._phase

    @property
    def generation(self) -> JobGeneration | None:
        """The newest generation that was proposed or accepted, as last decided."""
        return self._progress.generation

    @property
    def waits_for_acceptance(self) -> bool:
        """The newest generation, as last decided, may not run before all its hosts accept it."""
        generation = self.generation
        if generation is None or generation.parked:
            return False
        return not self._progress.was_chosen(generation)

    @property
    def electors(self) -> Sequence[str]:
        """Agents (``host/incarnation``) whose majority decides now."""
        generation = self.generation
        if generation is None:
            return ()
        return electors_of(generation, chosen=self._progress.was_chosen(generation))

    @property
    def step(self) -> int:
        """The newest step that any process has said to have applied."""
        return max(self._steps.values(), default=0)

    def decide(self, news: JobInput, now: float) -> JobDecision:
        """What to order now."""
        if self._first_seen is None:
            self._first_seen = now
        documents, self._offline = dict(news.documents), news.offline
        if self._end is not None:
            return self._ended(documents)
        decision = self._decide(documents, news, now)
        self._phase = decision.phase
        decision.records += self.slots.take_records()
        if decision.phase in TERMINAL and self._end is None:
            self._end = (decision.phase, decision.reason)
            self._end_incarnations = frozenset(one.incarnation for one in documents.values())
            decision.records.append(
                JobRecord(f"job_{decision.phase}", {"reason": decision.reason, "step": self.step})
            )
            if decision.phase == "failed":
                # At most: what a checkpoint has saved is not known here.
                decision.records[-1].fields["steps_lost"] = self.step
            decision.orders = self._ended(documents).orders
        return decision

    def fenced(self, now: float) -> None:
        """No fence is waited for."""
        self._log.fenced(now)

    def recovery(self, documents: Mapping[str, AgentDocument], now: float) -> list[JobRecord]:
        """A takeover that has ended since the last call."""
        generation = self.generation
        if generation is None:
            return []
        one = self._log.ended(generation, rank_processes(generation, documents), now)
        return [one] if one is not None else []

    def has_limits(self, documents: Mapping[str, AgentDocument]) -> bool:
        """Whether a limit may run out without news. ``documents``: as in the last decision."""
        if self._end is not None:
            return False
        return self._phase != "running" or self._progress.has_limits(documents)

    @property
    def over(self) -> bool:
        """The job has ended or failed."""
        return self._end is not None

    @property
    def how_it_ended(self) -> str:
        """For people; "" while it has not."""
        return f"{self._end[0]}: {self._end[1]}" if self._end is not None else ""

    def is_new_run(self, documents: Mapping[str, AgentDocument]) -> bool:
        """The run that this object knows is over, and all of its agents are gone."""
        return self._end is not None and not any(
            one.incarnation in self._end_incarnations for one in documents.values()
        )

    def _decide(
        self, documents: dict[str, AgentDocument], news: JobInput, now: float
    ) -> JobDecision:
        self._arrivals.note(documents)
        self._leaving = frozenset(news.drained)
        for host, one in sorted(documents.items()):
            self._steps |= {p.process: p.step for p in one.processes}
            if one.failed:
                return JobDecision("failed", f"{host}: {one.failed}")
        previous = self.learn(documents, now)
        if previous is None:
            return self._form(documents, news, now)
        if not previous.formed:
            lost = dead_ranks(previous, documents)
            if lost:
                why = describe_dead(lost)
                if not self._formed_since(previous, documents):
                    return self._start_again(previous, documents, news, why, now)
        return self._run(previous, documents, news, now)

    # -- formation ---------------------------------------------------------------------------

    def _form(self, documents: dict[str, AgentDocument], news: JobInput, now: float) -> JobDecision:
        wrong = misfits(documents)
        well = {host: one for host, one in documents.items() if host not in wrong}
        wanted = max((one.nodes + one.spares for one in well.values()), default=0)
        wrong |= dict.fromkeys(self._arrivals.surplus(well, wanted), TOO_MANY)
        well = {host: one for host, one in well.items() if host not in wrong}
        orders = refusals(documents, wrong)
        if not well or self._first_seen is None:
            return JobDecision("waiting", "no agent", orders)
        for host, one in well.items():
            for process in one.processes:
                if process.state == "ended" and not process.standby:
                    why = f"{host}: {process.process} {process.reason} before the job began"
                    return JobDecision("failed", why, orders)
        first = next(iter(well.values()))
        here = len(well)
        waited = now - self._first_seen > self._policy.formation_wait_s
        reason = f"{here} of {first.nodes} + {first.spares} hosts are here"
        if self._former and here < first.nodes and (
            now - self._first_seen > self._policy.late_s
        ):  # fmt: skip
            why = f"the last run of this job has {self._former}; for another, only {reason}"
            return JobDecision("failed", why, orders)
        if here < first.nodes or (here < wanted and not waited) or news.stopped:
            return self._waiting(well, orders, reason)
        try:
            generation = first_generation(well, first.nodes)
        except PlacementError as error:
            return self._waiting(well, orders, str(error))
        self._progress.follow(generation, now)
        return self._order_generation(generation, well, orders, now)

    def _start_again(
        self,
        previous: JobGeneration,
        documents: dict[str, AgentDocument],
        news: JobInput,
        why: str,
        now: float,
    ) -> JobDecision:
        """A rank was lost before the job had state: all begin anew, with new processes."""
        if self._again is None or self._again[0] != previous.number:
            self._again = previous.number, why
        why, hosts = self._again[1], set(previous.hosts)
        well = documents.keys() >= hosts and not news.lost.keys() & hosts
        if previous.number >= self._policy.starts or self.step or not well or not news.act:
            times = f", {previous.number} times" if previous.number > 1 else ""
            return JobDecision("failed", f"{why}, before the job had state{times}")
        reason = f"the job starts again: {why}"
        orders = waiting(documents, reason, previous)
        if news.stopped or any(one.running for one in documents.values()):
            return JobDecision("waiting", reason, orders)
        try:
            nodes = next(iter(documents.values())).nodes
            generation = first_generation(documents, nodes, previous)
        except PlacementError:
            return JobDecision("waiting", reason, orders)
        self._progress.follow(generation, now)
        return self._order_generation(generation, documents, {}, now)

    @staticmethod
    def _waiting(
        documents: Mapping[str, AgentDocument], orders: dict[str, JobOrder], reason: str
    ) -> JobDecision:
        return JobDecision("waiting", reason, orders | waiting(documents, reason))

    # -- a generation ------------------------------------------------------------------------

    def _run(
        self,
        previous: JobGeneration,
        documents: dict[str, AgentDocument],
        news: JobInput,
        now: float,
    ) -> JobDecision:
        wrong = late_misfits(previous, documents)
        orders = refusals(documents, wrong)
        for host in wrong:
            del documents[host]
        self._learn_layout(previous, documents)
        if ended := all_finished(previous, documents):
            return JobDecision(*ended, orders)
        dead = dead_ranks(previous, documents)
        self._hung = frozenset()
        fence = {
            host: why
            for host, why in news.lost.items()
            if news.act and holds_rank(documents.get(host), previous)
        }
        here = {rank: why for rank, why in dead.items() if not why.endswith(HOST_LOST)}
        if here:
            all_of_them = (p for one in documents.values() for p in one.processes)
            stepped = {one.process for one in all_of_them if one.committed}
            self.slots.update(previous, here, stepped)
        if dead or fence:
            self._log.lost(previous, dead, fence, self.step, now)
        if news.stopped:
            return self._keep(previous, documents, orders, "stopped by an operator", now)
        if not news.act:
            return self._observe(previous, documents, orders, dead, news, now)
        self._hung = frozenset(hung_ranks(previous, documents, self._offline).values())
        decision = self._next(previous, documents, orders, dead, news, now)
        decision.fence = fence
        return decision

    def _next(
        self,
        previous: JobGeneration,
        documents: dict[str, AgentDocument],
        orders: dict[str, JobOrder],
        dead: Mapping[int, str],
        news: JobInput,
        now: float,
    ) -> JobDecision:
        held = {
            host: why
            for host, why in news.held.items()
            if holds_rank(documents.get(host), previous)
        }
        if held and not dead:
            why = by_reason(held)
            return self._keep(previous, documents, orders, why, now, phase="held")
        unconfirmed = news.unconfirmed & set(previous.hosts)
        reason = describe_dead(dead)
        if unconfirmed:
            # A generation with a host that is being fenced would be refused.
            why = f"fence of {', '.join(sorted(unconfirmed))} is not acknowledged yet"
            self._waits_since = now if self._waits_since is None else self._waits_since
            phase = "held" if now - self._waits_since > self._policy.accept_s else ""
            return self._keep(previous, documents, orders, why, now, phase=phase)
        self._waits_since = None
        reason = reason or self._progress.failure(previous, documents, now, self._offline)
        if not reason:
            return self._move(previous, documents, orders, news, now)
        self._log.lost(previous, dead, {}, self.step, now)
        if self._log.attempts >= self._policy.recoveries_without_progress:
            return JobDecision(
                "failed",
                f"{self._policy.recoveries_without_progress} recoveries without a step forward "
                f"from step {self.step}; the last: {reason}",
                orders,
            )
        number = max([previous.number, *(accepted_numbers(documents))]) + 1
        # A drained host keeps the ranks that it has, and gives no spare.
        barred = {*news.lost, *(news.drained.keys() - set(previous.hosts))}
        usable = {host: one for host, one in documents.items() if host not in barred}
        try:
            generation = next_generation(
                previous, number, usable, self._layout or "", reason, proved=news.proved,
                electors=self.electors, left_out=self.slots.left_out,
            )  # fmt: skip
        except NoStateError as error:
            return JobDecision("failed", f"{error} ({reason})", orders)
        except PlacementError as error:
            why = f"{error} ({reason})"
            left = {host: one for host, one in documents.items() if host not in news.lost}
            if can_shrink(self.electors, left) and not self._progress.is_parking(now):
                previous = parked_generation(
                    previous, number, left, self.electors, why, news.proved
                )
                self._progress.follow(previous, now)
            return self._keep(previous, documents, orders, why, now, phase="held")
        return self._propose(generation, documents, orders, now)

    def _propose(
        self,
        generation: JobGeneration,
        documents: Mapping[str, AgentDocument],
        orders: dict[str, JobOrder],
        now: float,
    ) -> JobDecision:
        """Order a generation that nobody has seen before."""
        self._progress.propose(generation, self.step, now)
        return self._order_generation(generation, documents, orders, now)

    def _move(
        self,
        previous: JobGeneration,
        documents: dict[str, AgentDocument],
        orders: dict[str, JobOrder],
        news: JobInput,
        now: float,
    ) -> JobDecision:
        """Move ranks off drained hosts, then off broken places, while all is well."""
        homes = enumerate(previous.hosts)
        drained = {rank: f"{host} is drained" for rank, host in homes if host in news.drained}
        broken = {} if drained else self.slots.misplaced(previous)
        if not (causes := drained or broken):
            return self._order_generation(previous, documents, orders, now)
        cause = ", ".join(dict.fromkeys(causes.values()))
        if not self._is_settled(previous, documents, now):
            why = f"{cause}, and waits for the recovery under way"
            return self._keep(previous, documents, orders, why, now)
        usable = {host: one for host, one in documents.items() if host not in news.drained}
        reason = f"planned: {cause}"
        try:
            generation = next_generation(
                previous, previous.number + 1, usable, self._layout or "", reason,
                {host: to for host, to in news.drained.items() if to}, planned=True,
                left_out=self.slots.left_out, leaving=broken,
            )  # fmt: skip
        except PlacementError as error:
            return self._keep(previous, documents, orders, f"{cause}, but there is {error}", now)
        moved = {rank: causes.get(rank, cause) for rank in generation.lost}
        self._log.lost(previous, moved, {}, self.step, now, planned=True)
        return self._propose(generation, documents, orders, now)

    def _is_settled(
        self, generation: JobGeneration, documents: Mapping[str, AgentDocument], now: float
    ) -> bool:
        """All ranks have committed a step in this generation."""
        states = rank_processes(generation, documents)
        return self._progress.is_chosen(generation, documents, now) and all(
            one.committed >= generation.number for one in states
        )

    def _observe(
        self,
        previous: JobGeneration,
        documents: dict[str, AgentDocument],
        orders: dict[str, JobOrder],
        dead: Mapping[int, str],
        news: JobInput,
        now: float,
    ) -> JobDecision:
        """Say what would be done. Without it a job that has lost a rank ends, as it always did."""
        reason = describe_dead(dead)
        if not reason:
            lost = {host: why for host, why in news.lost.items() if host in previous.hosts}
            plan = [f"would fence {host}: {why}" for host, why in sorted(lost.items())]
            hung = hung_ranks(previous, documents, self._offline).items()
            plan += [f"would end {one}, rank {rank}, which hangs" for rank, one in sorted(hung)]
            return self._keep(previous, documents, orders, "; ".join(plan), now)
        would = what_would_move(previous, documents, self._layout or "", reason)
        return JobDecision("failed", f"{reason}; in observe mode, {would}", orders)

    def _keep(
        self,
        generation: JobGeneration,
        documents: Mapping[str, AgentDocument],
        orders: dict[str, JobOrder],
        reason: str,
        now: float,
        *,
        phase: str = "",
    ) -> JobDecision:
        """Change nothing; say why."""
        decision = self._order_generation(generation, documents, orders, now)
        for host, order in decision.orders.items():
            if phase == "held" and order.phase == "proposed" and not generation.parked:
                # A late spare would refuse a generation with a fenced host, and is needed warm.
                decision.orders[host] = replace(order, phase="held", reason=reason)
        return JobDecision(phase or decision.phase, reason, decision.orders)

    def _order_generation(
        self,
        generation: JobGeneration,
        documents: Mapping[str, AgentDocument],
        orders: dict[str, JobOrder],
        now: float,
    ) -> JobDecision:
        chosen = self._progress.is_chosen(generation, documents, now)
        silent = self._progress.silent_processes(documents, generation, now, self._offline)
        voters = set(generation.voters)
        late = self._arrivals.not_needed(generation, documents, self._leaving)
        orders |= waiting({host: documents[host] for host in late if host not in orders}, TOO_MANY)
        for host, one in documents.items():
            if host in orders:
                continue
            # Who has not accepted it yet, e.g. a spare that came later, has to do so first.
            accepts = has_accepted(one, generation)
            phase = "running" if chosen and accepts else "proposed"
            if generation.parked and (accepts or f"{host}/{one.incarnation}" not in voters):
                phase = "held"
            kill = [name for p in one.processes if (name := p.process) in silent | self._hung]
            kill += other_layouts(one, generation, self._layout)
            orders[host] = JobOrder(one.incarnation, phase, generation.reason, generation, kill)
        phase = "held" if generation.parked else "running" if chosen else "proposed"
        return JobDecision(phase, generation.reason, orders)

    # -- what the documents say --------------------------------------------------------------

    def learn(self, documents: Mapping[str, AgentDocument], now: float) -> JobGeneration | None:
        """The generation to go on from: the newest one that is known; None: none is."""
        known = newest_generation(self.generation, documents)
        before = self.generation
        if known is not None and (before is None or known.proposal != before.proposal):
            self._progress.follow(known, now)
        return known

    def _formed_since(
        self, generation: JobGeneration, documents: Mapping[str, AgentDocument]
    ) -> bool:
        """All ranks of generation 1 that are left have protected their state."""
        self._learn_layout(generation, documents)
        left = rank_processes(generation, documents)
        return bool(left) and all(one.state == "warm" for one in left) and self.step > 0

    def _learn_layout(
        self, generation: JobGeneration, documents: Mapping[str, AgentDocument]
    ) -> None:
        if self._layout is None:
            layouts = (one.layout for one in rank_processes(generation, documents))
            self._layout = next((one for one in layouts if one and one != LATE), None)

    def _ended(self, documents: Mapping[str, AgentDocument]) -> JobDecision:
        assert self._end is not None
        orders = ending(documents, self._end_incarnations, *self._end)
        return JobDecision(*self._end, orders)
