"""What fabric-run of one host promises, starts and reports. Pure: the time is a parameter.

A generation is proposed by a fabric-compute, accepted by hosts, and started once enough of them
have. An agent accepts a number at most once, never a lower one, and starts only what it accepted.
So two fabric-computes that disagree do no harm, and no order needs to arrive exactly once.

Each host starts ``nproc`` processes and ``standby`` more. Whether the former hold ranks is decided
by the first generation that this host starts: until then their ``Welcome`` is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from fabric_train.agent.hang_watch import HangWatch
from fabric_train.agent.hangs import Stillness
from fabric_train.host.effects import Assign, Effect, End, Greet, Note, Setup, Start
from fabric_train.host.known_process import KnownProcess
from fabric_train.host.orders import problem_of
from fabric_train.host.witness import is_witness
from fabric_train.messages.documents import AgentDocument, JobGeneration, JobOrder
from fabric_train.messages.progress_memory import Finished
from fabric_train.rules.coordinator import Kill, RecoveryRecord, ReleaseAll, Spawn

FAILURES = 3  # rounds of new processes that end before they are warm


class HostCore:
    """One host of one job. ``now`` is seconds, monotonic."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._processes: dict[str, KnownProcess] = {}
        self._hangs = HangWatch(setup.hang_s, setup.frozen_s)
        self._spawned = 0
        self._round = 0
        self._failures = 0
        self._accepted: JobGeneration | None = None
        self._running: JobGeneration | None = None
        self._begun_anew = 0  # the newest generation that has ended before the job had state
        self._phase = "waiting"
        self._reported = ""
        self._suspects = 0
        self._failed = ""
        self._fenced: set[tuple[str, str]] = set()
        self._looks = 0
        self._refused_layouts: set[str] = set()
        self._hears: tuple[str, ...] = ()
        self._misses: tuple[str, ...] = ()
        self._trouble: tuple[float, str] | None = None
        self._released = False
        self._over = False
        self._failure = ""
        self._records: list[RecoveryRecord] = []
        self.refused_orders = 0

    @property
    def accepted(self) -> JobGeneration | None:
        """The newest generation that this host has promised to follow."""
        return self._accepted

    @property
    def running(self) -> JobGeneration | None:
        """The newest generation that this host has started."""
        return self._running

    @property
    def records(self) -> tuple[RecoveryRecord, ...]:
        """Recoveries that this host was part of; times are those of this host's processes."""
        return tuple(self._records)

    def document(self) -> AgentDocument:
        """All that this host has to say of the job at present."""
        setup, key = self._setup, self._setup.key
        mine = setup.host, setup.incarnation, setup.address, setup.store, setup.token
        return AgentDocument(
            setup.job, setup.host, setup.incarnation, setup.nodes, setup.spares, setup.nproc,
            setup.address, setup.store, setup.token,
            [one.state() for one in self._processes.values()], setup.node_rank, self._accepted,
            self._running.number if self._running else 0, list(self._hears), list(self._misses),
            self._suspects, self._failed, self._looks,
            *((key.id, key.seal(*mine)) if key else ()),
        )  # fmt: skip

    def knows(self, process: str) -> bool:
        """``process`` is one of this host, alive or with a rank."""
        return process in self._processes

    def holds(self, process: str, rank: int) -> bool:
        """``process`` has ``rank`` in the running generation."""
        return self._running is not None and self._running.rank_of(process) == rank

    def has_changed_over(self, processes: Iterable[str], generation: int) -> bool:
        """None of ``processes`` is in a generation before ``generation`` any more."""
        known = (self._processes.get(name) for name in processes)
        return all(
            one is None or one.ended is not None or one.recovered >= generation for one in known
        )

    # What fabricd brings.

    def start(self) -> list[Effect]:
        """The first processes."""
        return self._fill()

    def order(self, compute: str, order: JobOrder, now: float) -> list[Effect]:
        """``order`` of the fabric-compute of that name; repeats and old ones change nothing."""
        if self._over:
            return []
        if self._is_old(order):
            return []
        if problem := problem_of(order, self._setup, self._processes):
            self.refused_orders += 1
            return [Note(f"an order of fabric-compute {compute} is refused: {problem}")]
        effects: list[Effect] = []
        for name in order.kill:
            effects += self._kill(name, order.reason or f"fabric-compute {compute} says so")
        self._phase = order.phase
        if order.phase in ("waiting", "held") and order.reason:
            effects += self._report_once(f"{order.phase}: {order.reason}")
        match order.phase:
            case "waiting":
                effects += self._start_again(order.generation)
            case "proposed":
                effects += self._accept(order.generation, now)
            case "running":
                effects += self._start(order.generation, now)
            case "ended":
                effects += self._release()
            case "failed":
                effects += self._end(order.reason or "the job has failed")
        return effects + self._greet_waiting() + self._fill()

    def stop(self, reason: str) -> list[Effect]:
        """This incarnation is fenced: nothing of it may go on."""
        return self._end(f"fenced: {reason}", at_once=True)

    def fence(self, host: str, incarnation: str) -> None:
        """No generation that gives that agent a rank is accepted any more."""
        self._fenced.add((host, incarnation))

    def heard(self, hears: Sequence[str], misses: Sequence[str], now: float) -> None:
        """Agents of the job with which heartbeats are, and are not, exchanged."""
        if fresh := set(misses) - set(self._misses):
            self._note_trouble(f"no heartbeats of {', '.join(sorted(fresh))}", now)
        self._hears, self._misses = tuple(sorted(hears)), tuple(sorted(misses))

    # What processes do.

    def joined(self, process: str, software: dict[str, str]) -> list[Effect]:
        """``process`` has said hello, with the versions of its ``software``."""
        one = self._processes[process]
        one.joined, one.software = True, software
        if self._released:
            return [Kill(process, "the job has ended")]
        return self._greet_waiting()

    def protected(self, process: str, layout: str) -> list[Effect]:
        """``process`` has built its model: ``layout`` is a hash of names, shapes and types."""
        self._processes[process].layout = layout
        if layout not in self._refused_layouts:
            self._failures = 0
        return self._fill()

    def lost(self, process: str, reason: str, now: float, *, clean: bool = False) -> list[Effect]:
        """``process`` is gone, or says that it soon will be. ``clean``: with status 0."""
        one = self._processes.get(process)
        if one is None or one.ended is not None or self._over:
            return []
        one.ended = one.killed_for or reason
        self._hangs.ended(process, one.still if one.killed_for else Stillness())
        one.still = Stillness()
        rank = self._rank(self._running, process)
        if self._released:
            if rank is not None and not clean:
                self._failure = self._failure or f"{process} {reason} after its last step"
            return self._end(self._failure) if self._all_ended() else []
        effects: list[Effect] = [Note(f"{self._name(process)}: {one.ended}")]
        if rank is not None:
            self._note_trouble(f"rank {rank}: {one.ended}", now)
        if rank is None and self._rank(self._accepted, process) is None:
            del self._processes[process]
        if one.layout is not None and one.killed_for and rank is None:
            self._refused_layouts.add(one.layout)  # of another model than the job's
        elif one.layout is not None or one.killed_for:
            return effects + self._fill()
        if one.round == self._round:
            effects += self._count_failure(one.ended)
        return effects + self._fill()

    def acknowledged(self, process: str, generation: int) -> None:
        """``process`` has heard of ``generation``."""
        one = self._processes[process]
        one.acknowledged = max(one.acknowledged, generation)

    def recovered(
        self, process: str, generation: int, step: int, now: float, again: int = 0
    ) -> list[Effect]:
        """``process`` holds the state after ``step`` steps in ``generation``.

        ``again``: applied steps that are run again.
        """
        one = self._processes[process]
        one.recovered = max(one.recovered, generation)
        one.step = max(one.step, step)
        if self._running and self._all_ranks(lambda mine: mine.recovered):
            self._amend(recovered_at=now, step=step, again=again)
        return self._fill()

    def committed(self, process: str, generation: int, step: int, now: float) -> None:
        """``process`` has applied ``step`` steps."""
        one = self._processes[process]
        one.committed = max(one.committed, generation)
        one.step = max(one.step, step)
        if self._running and self._all_ranks(lambda mine: mine.committed):
            self._amend(committed_at=now)

    def progressed(self, process: str, done: Finished, now: float, *, asked: bool = True) -> None:
        """``process`` has ``done`` so much, as it says in its memory.

        Unless the agent is ``asked`` whether the job steps, only own times are taken from there,
        and whether it stands.
        """
        one = self._processes.get(process)
        if one is None or one.ended is not None:
            return
        one.window = done.window or one.window  # it is just being written
        seen = self._hangs.look(process, done, now)
        one.still = Stillness() if one.finished is not None else seen
        if asked:
            one.step, one.collectives = max(one.step, done.step), done.collectives

    def looked(self) -> None:
        """All of ``ranks_here`` have progressed as far as they have until now."""
        self._looks += 1

    def bears_witness(self, silent: Collection[str]) -> bool:
        """Whether the job steps has to be known, and this host is one that says it.

        ``silent``: hosts that the probes of this host, or its agent, miss.
        """
        accepted, running = self._accepted, self._running
        if accepted is None or running is None:
            return False
        members = ((one.host, one.incarnation) for one in running.members)
        doubtful = {host for host, _ in self._fenced.intersection(members)}.union(silent)
        waits = accepted.number > running.number
        return is_witness(self._setup.host, running.hosts, doubtful, waits=waits)

    @property
    def ranks_here(self) -> list[str]:
        """Live processes of this host that hold ranks in the running generation."""
        running = self._running
        if running is None:
            return []
        return [one.name for one in self._ranks(running) if one.ended is None]

    def finished(self, process: str, step: int) -> None:
        """The training loop of ``process`` has ended after ``step`` steps."""
        one = self._processes[process]
        one.finished, one.step = step, max(one.step, step)

    def suspect(self, process: str, generation: int, error: str, now: float) -> None:
        """A collective of ``generation`` failed in ``process``."""
        self._suspects = max(self._suspects, generation)
        if self._running and generation == self._running.number:
            self._note_trouble(f"{self._name(process)}: {error}", now)

    def given_up(self, process: str, reason: str) -> None:
        """``process`` says that the job cannot go on."""
        self._failed = self._failed or f"{self._name(process)}: {reason}"

    # Generations.

    def _is_old(self, order: JobOrder) -> bool:
        """It orders a generation that this host has left behind."""
        running, wanted = self._running, order.generation
        return running is not None and wanted is not None and wanted.number < running.number

    def _accept(self, generation: JobGeneration | None, now: float) -> list[Effect]:
        assert generation is not None
        if self._accepted is not None and generation.number <= self._accepted.number:
            return []
        problem = ""
        if self._accepted is not None and generation.base < self._accepted.number:
            problem = f"it follows {generation.base}, and {self._accepted.number} is accepted here"
        if not generation.formed and any(one.committed for one in self._processes.values()):
            problem = "it starts from the beginning, and processes here have committed steps"
        for member in generation.members:
            if (
                member.host in generation.hosts
                and (member.host, member.incarnation) in self._fenced
            ):
                problem = f"incarnation {member.incarnation} of {member.host} is fenced"
        if problem:
            self.refused_orders += 1
            return self._report_once(f"generation {generation.number} is not accepted: {problem}")
        self._accepted = generation
        if generation.formed:
            self._note_trouble(
                generation.reason or f"generation {generation.number} is proposed", now
            )
        return []

    def _start(self, generation: JobGeneration | None, now: float) -> list[Effect]:
        assert generation is not None
        accepted, running = self._accepted, self._running
        if accepted is None or accepted.number != generation.number:
            return []
        if generation.number <= max(self._begun_anew, running.number if running else 0):
            return []
        if accepted.proposal != generation.proposal:
            self.refused_orders += 1
            return self._report_once(
                f"another generation {generation.number} was accepted here before"
            )
        self._running = accepted
        for name in [one.name for one in self._processes.values() if one.ended is not None]:
            if accepted.rank_of(name) is None:
                del self._processes[name]
        for one in self._processes.values():
            one.finished = None
        effects: list[Effect] = []
        if accepted.formed:
            lost_at, why = self._trouble or (now, "")
            why = accepted.reason or why or "connections failed"
            ranks = tuple(accepted.lost)
            self._records.append(RecoveryRecord(accepted.number, ranks, why, lost_at, now))
            what = f"rank {', '.join(map(str, ranks))} is taken over" if ranks else "all reconnect"
            effects.append(Note(f"generation {accepted.number}: {what}: {why}"))
        else:
            effects.append(Note(f"generation {accepted.number}: {self._describe(accepted)}"))
        self._trouble = None
        greeted = [one.name for one in self._processes.values() if one.welcomed]
        effects += [Assign(name, accepted) for name in greeted]
        return [*effects, *self._greet_waiting(), Start(accepted)]

    def _start_again(self, ended: JobGeneration | None) -> list[Effect]:
        """New processes instead of all: ``ended`` has lost a rank before the job had state."""
        running = self._running
        if ended is None or running is None or running.formed or running.number > ended.number:
            return []
        if running.number == ended.number and running.proposal != ended.proposal:
            return []  # that never ran here
        self._begun_anew = ended.number
        kills = [Kill(one.name, "the job starts again") for one in self._live()]
        self._processes.clear()
        self._running = None
        return [*kills]

    def _greet_waiting(self) -> list[Effect]:
        effects: list[Effect] = []
        for one in self._processes.values():
            if not one.joined or one.welcomed or one.ended is not None:
                continue
            if one.standby:
                spare = True
            elif self._phase == "waiting" or (self._running is None and self._phase != "held"):
                continue
            else:
                # A process without state cannot hold a rank of a job that has some.
                running = self._running
                spare = running is None or running.formed or running.rank_of(one.name) is None
            one.welcomed = True
            effects.append(Greet(one.name, spare))
            if self._running is not None:
                effects.append(Assign(one.name, self._running))
        return effects

    # Processes.

    def _fill(self) -> list[Effect]:
        """New processes in place of those that have ended."""
        if self._over or self._released or self._failures >= FAILURES or self._failed:
            return []
        if self._phase != "waiting" and self._running is not None:
            if self._is_recovering():
                return []
            missing = self._setup.nproc + self._setup.standby - len(self._live())
            return [self._spawn(standby=True) for _ in range(missing)]
        if self._phase in ("ended", "failed"):
            return []
        standby = sum(one.standby for one in self._live())
        main = len(self._live()) - standby
        return [
            *(self._spawn(standby=False) for _ in range(self._setup.nproc - main)),
            *(self._spawn(standby=True) for _ in range(self._setup.standby - standby)),
        ]

    def _is_recovering(self) -> bool:
        """The imports of a new process would slow a recovery that can go on without it."""
        assert self._running is not None
        ranks = [
            one for one in self._processes.values() if self._running.rank_of(one.name) is not None
        ]
        spares = [one for one in self._live() if one.layout is not None and one not in ranks]
        lost = [one for one in ranks if one.ended is not None]
        if lost:
            return len(spares) >= len(lost)
        if self._running.formed:
            return any(one.recovered < self._running.number for one in ranks)
        return any(one.layout is None for one in ranks)

    def _spawn(self, *, standby: bool) -> Spawn:
        name = f"{self._setup.host}/{self._setup.incarnation}/p{self._spawned}"
        self._spawned += 1
        self._processes[name] = KnownProcess(name, standby, self._round)
        return Spawn(name, standby)

    def _count_failure(self, reason: str) -> list[Effect]:
        self._round += 1  # others of the same round fail for the same reason
        self._failures += 1
        if self._failures < FAILURES:
            return []
        text = f"{FAILURES} times, new processes ended before they were warm; the last: {reason}"
        if self._running is None or (not self._running.formed and self._phase == "waiting"):
            self._failed = self._failed or text
        return [Note(f"no more processes are started: {text}")]

    def _kill(self, name: str, reason: str) -> list[Effect]:
        one = self._processes.get(name)
        if one is None or one.ended is not None or one.killed_for:
            return []
        one.killed_for = one.still.why or reason
        return [Kill(name, one.killed_for)]

    def _release(self) -> list[Effect]:
        running = self._running
        if running and any(one.finished is None for one in self._ranks(running)):
            return self._report_once(
                "ended is ordered, and not all ranks here have finished: ignored"
            )
        self._released = True
        late = [Kill(one.name, "the job has ended") for one in self._live() if not one.welcomed]
        ending = self._end("") if self._all_ended() else []
        return [ReleaseAll(), *late, *ending]

    def _end(self, reason: str, *, at_once: bool = False) -> list[Effect]:
        if self._over:
            return []
        self._over = True
        return [End(reason, at_once)]

    def _live(self) -> list[KnownProcess]:
        return [one for one in self._processes.values() if one.ended is None]

    def _ranks(self, generation: JobGeneration) -> list[KnownProcess]:
        """Those of this host's processes that hold ranks in ``generation``, alive or not."""
        return [one for one in self._processes.values() if generation.rank_of(one.name) is not None]

    def _all_ended(self) -> bool:
        return not self._live()

    @staticmethod
    def _rank(generation: JobGeneration | None, process: str) -> int | None:
        return None if generation is None else generation.rank_of(process)

    def _name(self, process: str) -> str:
        rank = self._rank(self._running, process)
        return f"process {process}" if rank is None else f"rank {rank} ({process})"

    # Texts and records.

    def _describe(self, generation: JobGeneration) -> str:
        ranks = [rank for rank, host in enumerate(generation.hosts) if host == self._setup.host]
        world = self._setup.world
        if not ranks:
            return f"this host is a spare of the {world} ranks"
        return f"rank {', '.join(map(str, ranks))} of {world} here"

    def _report_once(self, text: str) -> list[Effect]:
        """``text`` for people, once until there is another one."""
        if text == self._reported:
            return []
        self._reported = text
        return [Note(text)]

    def _note_trouble(self, reason: str, now: float) -> None:
        if self._running is not None and self._trouble is None:
            self._trouble = (now, reason)

    def _all_ranks(self, newest: Callable[[KnownProcess], int]) -> bool:
        running = self._running
        assert running is not None
        mine = self._ranks(running)
        return bool(mine) and all(newest(one) >= running.number for one in mine)

    def _amend(self, **fields: float | int) -> None:
        if self._records and self._running and self._records[-1].generation == self._running.number:
            self._records[-1] = self._records[-1].amended(**fields)
