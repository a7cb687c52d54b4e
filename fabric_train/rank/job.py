"""The API of a training loop.

``docs/operate/train.md`` has the lines of a loop: ``protect``, ``steps``, ``attempt``.

When a rank is lost in an attempt, the survivors agree in which state the job goes on: they either
apply the gradients that they hold, or run it again, from the same state. The first optimizer step
of it is the gate (``step_rule``). Behind it are no collectives or random numbers until the next.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch.distributed as dist

from fabric_train.groups.bucket_order import BucketOrder
from fabric_train.groups.collectives import GenerationGroup, Use, connect
from fabric_train.groups.job_group import JobGroup
from fabric_train.groups.nccl_group import use_current_device
from fabric_train.groups.one_group import OneGroupStore
from fabric_train.messages import process as wire
from fabric_train.messages.link import AgentLink
from fabric_train.rank import recovery
from fabric_train.rank.after_recovery import AfterRecovery
from fabric_train.rank.compiled import before_optimizer_steps
from fabric_train.rank.ending import announce_early_end, end_at_once, watch_loop
from fabric_train.rank.job_info import JobInfo
from fabric_train.rank.own_parts import OwnParts
from fabric_train.rank.preparation import Preparation
from fabric_train.rank.progress import Progress
from fabric_train.rank.torchrun import tell_rank
from fabric_train.rank.waiting import await_assignment, await_rank, introduce
from fabric_train.rules.agreement import Beginning, DisagreementError, layout_of
from fabric_train.rules.coordinator import Limits
from fabric_train.rules.limits import timeout_s
from fabric_train.rules.loop import RuleError, RunAgainError
from fabric_train.rules.step_rule import RankReport, RecoveryPlan, UnrecoverableError
from fabric_train.shards.keeper import GradientLog
from fabric_train.state.containers import expanded
from fabric_train.state.later_part import LaterPart
from fabric_train.state.rank_local import Stateful
from fabric_train.state.replicas import Holders
from fabric_train.state.replicated import LayoutError
from fabric_train.state.transfer import CorruptStateError

_REHEARSALS = 2  # DDP orders its buckets anew before its second forward pass


class Job(JobInfo):
    """One process of a job. Used by the training thread alone."""

    def __init__(self, socket_path: str, memory: int | None = None, *, late: bool = False) -> None:
        # A spare that builds its model first is waited for as long as a recovery may take.
        self._timeout_s = max(timeout_s(os.environ), Limits().recovery_s if late else 0.0)
        self._late = late
        self._group = JobGroup(0, 1, late=late)
        self._link = AgentLink(socket_path, self._end_generation, memory)
        self._preparation = Preparation(
            self._link, self._timeout_s, lambda: self._group.ranks_of_groups
        )
        self._generation = 0
        self._spare, self._step = False, 0
        self._parts: OwnParts | None = None  # what is protected
        self._again = 0
        self._started = False  # steps() was called
        self._rehearsals, self._holds_state = 0, False
        self._captured = False  # the start of a step is captured, and its attempt has not begun
        self._in_attempt = False
        self._applied = False  # the gate of this attempt is passed
        self._uncommitted = False  # there is something of an attempt to take back
        self._changes_over = False  # to the prepared generation, after this attempt
        self._later: LaterPart | None = None
        self._name, self._run = "", secrets.token_hex(8)  # the job's: rank 0's, once all agree
        self._order = BucketOrder(lambda: self.rehearsing)
        self._progress = Progress(self._link)
        self.pause = self._progress.pauses.pause
        self._after = AfterRecovery()

    def protect(
        self, *, local: dict[str, Stateful] | None = None, replicas: object = None,
        gradient_log: GradientLog | None = None, gather: Callable[[], object] | None = None,
        **parts: Any,
    ) -> None:  # fmt: skip
        """Name what a replacement needs: modules, optimizers, schedulers, lists of them.

        ``local``: what differs between ranks, with a ``state_dict``. ``replicas``: a mesh, or lists
        of ranks that hold the same, where parts do not say so. ``gradient_log``: how shards without
        replicas are kept. ``gather``: makes parameters whole after a step, by collectives. Raises
        ``TypeError`` for what has no state, ``ValueError``, ``RuntimeError``.
        """
        if self._parts is not None:
            raise RuntimeError("protect() was called before: name all parts in one call")
        parts = expanded(parts)
        holders = Holders.of(parts, replicas, self._group.rank(), self.world, late=self._late)
        own = OwnParts.of(self._link, parts, local or {}, holders, gradient_log, gather)
        self._parts = own
        self._group.on_reduce = lambda: own.hand_over.send_early(self._group.rank(), self._step + 1)
        before_optimizer_steps(self._before_step)
        self._rehearsals = _REHEARSALS
        self._holds_state = not self._spare

    def steps(self, total: int, first: int = 0) -> Iterator[int]:
        """Yield each step until ``total`` steps are applied; run one ``attempt`` for each.

        ``first``: steps that the state already contains, alike on all ranks. Yields a step again
        when it has to be run again. A loop that is left early ends this process for its job:
        another one takes its rank.
        """
        return watch_loop(self._steps(total, first), self._announce_end)

    def _steps(self, total: int, first: int) -> Iterator[int]:
        if self._parts is None:
            raise RuntimeError("call protect() before steps()")
        if self._started:
            raise RuntimeError("steps() was called before: a job has one loop")
        self._started = self._group.closed = True
        self._step = first
        yield from self._rehearse()
        while True:
            while self._step < total:
                yield from self._offer_step()
            if self._finish(total):
                return

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """One optimizer step. Swallows what ends it early because a rank was lost."""
        if not self._captured:
            raise RuntimeError("one attempt() for each step of steps()")
        self._captured = self._applied = False
        self._in_attempt = self._uncommitted = True
        self._group.use = Use.LOCAL if self.rehearsing else Use.ATTEMPT
        self._own.hand_over.begin()
        try:
            with self._own.rules.ending():
                yield
            self._gate()  # a loop may skip the optimizer's step
            self._end_step()
        except RunAgainError:
            self._rewind()
            return
        except Exception:
            # An error of the loop that stems from a collective that failed, e.g. a check for NaN.
            if self.rehearsing or not self._is_of_loss() or (self._applied and not self._returns):
                raise
            self._holds_state &= not self._applied
            self._recover(ready=False)
            self._rewind()
            return
        finally:
            self._in_attempt = False
            self._group.use = Use.CLOSED
        self._step += 1
        self._progress.committed(self._generation, self._step)
        self._make_whole()

    def _join(self, process: str, token: str) -> None:
        welcome = introduce(self._link, process, token)
        self._spare, self._name = welcome.spare, welcome.job
        rank = await_rank(self._link, welcome.rank) if self._spare and self._late else 0
        self._group = JobGroup(rank, welcome.world, late=self._late)
        self._progress.watch(self._group)
        self._announce_end = announce_early_end(self._link, self._group)
        self._group.on_broken = self._report_broken
        self._group.on_ddp_broadcast = self._order.note
        dist.Backend.register_backend("fabric", self._group.for_torch, devices=["cpu", "cuda"])
        use_current_device()
        if not self._spare:
            assignment = await_assignment(self._link, self._generation)
            inner = connect(self._link, assignment, self._timeout_s)
            if inner is None:
                raise RuntimeError("the job starts again")
            self._adopt(inner)
            self._group.use = Use.SETUP
        dist.init_process_group(
            "fabric", store=OneGroupStore(), rank=self._group.rank(), world_size=welcome.world
        )

    def _rehearse(self) -> Iterator[int]:
        """Run the first step twice, alone, so that DDP's buckets have their final order.

        Their order decides in which order a sum is formed: it has to be the same in every step, and
        in a replacement. Nothing of the rehearsal is kept.
        """
        while self._rehearsals:
            yield from self._offer_step()
        own, said = self._own, self._own.statement()
        facts = {**own.layout(), "buckets of DDP": self._order.digest}
        if not self._spare:
            self._agree({**facts, **own.state.facts(), "first step": str(self._step)})
            self._after.compare()
            own.hand_over.store_first(self.rank, self._step)
        self._link.send(wire.Protected(layout_of(facts), said))
        if self._spare:
            self._recover(ready=False)

    def _with_all(self, work: Callable[[GenerationGroup], str]) -> str:
        """Do what takes all ranks; "" where it fails, which the gate sees. A disagreement ends."""
        assert self._group.inner is not None
        try:
            return work(self._group.inner)
        except DisagreementError as error:
            raise self._give_up(str(error)) from None
        except RuntimeError as error:
            self._report_broken(self._generation, str(error))  # a recovery, or another start
        return ""

    def _agree(self, facts: dict[str, str]) -> None:
        """Compare what all ranks begin with, and take over the name of this run of the job."""
        mine, meet = Beginning(self._run, facts), self._own.meet
        self._run = self._with_all(lambda inner: meet(inner, mine, self._step)) or self._run

    def _offer_step(self) -> Iterator[int]:
        """Keep what an attempt may change before its gate, and yield the step for one."""
        self._settle()
        self._capture()
        self._change_over()
        if self._returns and not self.rehearsing and not self._group.broken:
            self._with_all(self._give_copies)
        self._captured = True
        yield self._step
        if self._captured:
            raise RuleError(f"step {self._step} was run without attempt()")

    def _make_whole(self) -> None:
        """Behind a step: make what is made of all ranks' shards, whoever is lost meanwhile."""
        while self._own.makes and not self._changes_over:
            self._after.stepped()
            self._settle()
            if not self._group.broken:
                return
            self._recover(ready=False)

    def _settle(self) -> None:
        """Do what a step or a recovery has left for the start of this step."""
        if not self.rehearsing and not self._group.broken:
            now = (self._group, self._own, self._step)
            self._with_all(lambda _: self._after.settle(*now, leaves=self._changes_over))

    def _capture(self) -> None:
        self._own.rules.capture(0 if self.rehearsing else self.rank, self._step)

    def _change_over(self) -> None:
        """Become part of the prepared generation, now that all of the last step is done."""
        if self._changes_over:
            self._changes_over = False
            plan = self._recover(ready=False, planned=True)
            if self.rank in {*plan.copies, *plan.back}:
                self._capture()
            if self._own.makes:
                self._settle()
            self._after.gather(self._group, self._own, self._step)

    def _give_copies(self, inner: GenerationGroup) -> str:
        """Give buddies the state with which this step begins: who is lost in it gets it back."""
        self._group.on_start(())
        try:
            self._own.give_shards(inner, self._step)
        finally:
            self._group.on_end()
        return ""

    def _end_step(self) -> None:
        """All behind the gate is done. A step with collectives may have ended half done."""
        if self._returns and not self._group.settle(attempt=False):
            self._holds_state = False
            self._recover(ready=False)
            raise RunAgainError

    def _is_of_loss(self) -> bool:
        """An error of the loop may stem from a collective that failed."""
        return self._group.broken

    def _rewind(self) -> None:
        """Take back what an attempt has changed; nothing of it was applied."""
        self._own.start.forget_next()
        if self._uncommitted:
            self._uncommitted = False
            self._own.start.restore()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._own.rules.counts(
            optimizer, (*args[1:], kwargs.get("closure")), started=self._started,
            in_attempt=self._in_attempt,
        ):  # fmt: skip
            self._gate()

    def _pass_gate(self) -> None:
        """The step counts: nothing of this attempt is ever taken back."""
        self._applied, self._uncommitted = True, False
        self._group.use = Use.ATTEMPT if self._returns else Use.CLOSED

    def _gate(self) -> None:
        """Return when the optimizer may apply this attempt's gradients; else end the attempt."""
        if self._applied:
            return
        if self.rehearsing:
            if self._spare and self._rehearsals == 1:
                self._applied = True  # no gate stops these steps
                self._own.state.make_optimizer_state()
                self._applied = False
            self._rehearsals -= 1
            raise RunAgainError
        if not self._group.broken:
            self._own.rules.check()
        ready = self._group.settle() and self._finish_later()
        if ready:
            self._own.hand_over.complete(self.rank, self._step + 1)
            assert self._group.inner is not None
            try:
                agreed, equal = self._vote(self._group.inner)
            except RuntimeError as error:
                self._report_broken(self._generation, str(error))
            else:
                self._own.voted(equal=equal)
                self._changes_over = agreed > self._generation
                if self._changes_over and self._preparation.leaves:
                    self._leave(agreed)
                self._pass_gate()
                return
        plan = self._recover(ready=ready)
        if self.rank not in plan.apply:
            raise RunAgainError
        self._pass_gate()

    def _vote(self, inner: GenerationGroup) -> tuple[int, bool]:
        """To which generation all could change over, and whether all have the same digest."""
        number, digest = self._preparation.ready_for(), self._own.start.digest
        if not self._returns:
            self._own.give_shards(inner, self._step)
        return self._progress.vote(inner, number, digest, self._step)

    def _leave(self, generation: int) -> NoReturn:
        """Wait as a spare: another process takes the rank of this one over, by plan."""
        self._changes_over = self._holds_state = False
        self._own.forget_copy()
        self._generation = generation
        self._group.abort(generation)
        self._link.send(wire.Recovered(generation, self._step, "leave", {}))
        self._recover(ready=False)
        raise RunAgainError

    def _finish_later(self) -> bool:
        """Wait until the whole state has moved. False: the generation is broken before."""
        try:
            if self._later is not None and self._later.wait(lambda: not self._group.broken):
                self._later = None
        except RuntimeError as error:
            self._report_broken(self._generation, str(error))
        except CorruptStateError as error:
            end_at_once(f"the state that arrived is refused: {error}")
        return self._later is None

    def _recover(self, *, ready: bool, planned: bool = False) -> RecoveryPlan:
        """Become part of the newest generation, with the state in which it goes on."""
        self._progress.recovers()
        highest = 0  # steps that any rank had applied
        while True:
            assignment = await_assignment(self._link, self._generation)
            self._link.send(wire.Acknowledged(assignment.generation))
            spans: dict[str, float] = {}
            started = time.monotonic()
            self._group.abort(assignment.generation)
            if not self._group.wait_quiet(self._timeout_s):
                end_at_once("a collective of the last generation does not end")
            later, self._later = self._later, None
            self._holds_state &= later is None or later.drop(self._timeout_s)
            spans["quiet"] = recovery.since_ms(started)
            try:
                inner = self._preparation.connect(assignment)
                if inner is None:
                    continue
                spans["connected"] = recovery.since_ms(started)
                if inner.rank != self._group.rank():
                    # What differs between ranks is not here, however new the rest is.
                    self._holds_state = ready = False
                    self._own.forget_copy()
                self._adopt(inner)
                committed = self._step if self._holds_state else None
                report = RankReport(committed, ready)
                self._run, plan = recovery.agree_on_plan(inner, self._run, report, self._own)
                highest = max(highest, plan.step + plan.again)
                spans["agreed"] = recovery.since_ms(started)
                role = self._take_part(inner, plan, planned)
                inner.vote()
                recovery.receive_owed(inner, plan, self._own, self._link, self._timeout_s)
                spans["state"] = recovery.since_ms(started)
            except RuntimeError as error:
                # Connections of this generation failed, too: there will be another one.
                self._group.abort(assignment.generation + 1)
                self._report_broken(assignment.generation, str(error))
                self._generation = assignment.generation
                continue
            except UnrecoverableError as error:
                raise self._give_up(str(error)) from None
            except (CorruptStateError, LayoutError) as error:
                # Only this process is wrong: another one takes its rank.
                self._link.send(wire.Ending(f"the state that arrived is refused: {error}"[:500]))
                end_at_once(f"the state that arrived is refused: {error}")
            self._spare = False
            self._holds_state = True
            self._step = plan.step if role == "copy" else self._step
            self._progress.resumed()
            again = highest - plan.step
            self._again += again
            self._link.send(wire.Recovered(self._generation, plan.step, role, spans, again))
            return plan

    def _take_part(self, inner: GenerationGroup, plan: RecoveryPlan, planned: bool) -> str:
        """Send or receive what ``plan`` says; return this rank's part in it."""
        if inner.rank not in plan.apply:
            self._rewind()  # what it sends is the state between two steps
        if inner.rank in plan.copies:
            self._holds_state = False  # half of another one's, until all is here
            self._own.forget_copy()
        if inner.rank in plan.back:
            self._own.go_back()
            self._step, self._applied, self._holds_state = plan.step, False, True
        self._after.note(inner, plan)
        self._later = recovery.copy_states(
            inner, plan, self._own, self._link, self._timeout_s, split=planned
        )
        return recovery.role_of(inner.rank, plan)

    def _finish(self, total: int) -> bool:
        """Wait until all ranks have ended. False: a rank was lost meanwhile, and more is to do."""
        self._settle()
        self._change_over()
        if self._step < total:
            return False
        if self._finish_later() and not self._group.broken:
            self._link.send(wire.Finished(self._step))
            self._link.wait(lambda: self._link.released or self._link.newer_than(self._generation))
        if self._link.released:
            self._group.abort(sys.maxsize)  # so that no peer takes this end for a loss
            self._link.close()
            return True
        self._recover(ready=False)
        return False

    def _adopt(self, inner: GenerationGroup) -> None:
        self._generation = inner.generation
        self._group.adopt(inner)
        tell_rank(inner.assignment)
        news = self._link.assignment
        if news is not None:  # it may have arrived just before, and aborted only what was there
            self._group.abort(news.generation)

    def _end_generation(self, assignment: wire.Assignment) -> None:
        # On the reading thread: the training thread may be blocked in a collective.
        trains = self._started and not self.rehearsing and self._holds_state
        if trains and assignment.follows and assignment.follows == self._group.generation:
            self._preparation.begin(assignment)
            self._link.send(wire.Acknowledged(assignment.generation))
        else:
            self._group.abort(assignment.generation)

    def _report_broken(self, generation: int, error: str) -> None:
        self._group.broken = True
        self._link.send(wire.Suspect(generation, error[:500]))

    def _give_up(self, reason: str) -> SystemExit:
        self._link.send(wire.Failed(reason))
        return SystemExit(reason)
