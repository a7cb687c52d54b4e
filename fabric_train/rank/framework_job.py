"""A job whose loop is a framework's: it calls us where its own hooks are.

::

    job.protect(...)
    job.begin_loop(rehearse)
    job.begin_attempt()
    # the framework: forward, backward, optimizer.step(), and what it counts then
    job.end_attempt()
    job.begin_attempt()
    ...
    job.end_loop()

The next attempt begins as soon as a step is counted, so the collectives of logging, evaluation and
checkpoints that follow it are kept, too. The last attempt has no gate: it ends with the loop.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from fabric_train.groups.object_calls import answer_objects_alone, say_gloo
from fabric_train.groups.torch_calls import Use
from fabric_train.messages import process as wire
from fabric_train.rank.kept_job import KeptJob
from fabric_train.rules.loop import RuleError
from fabric_train.rules.step_rule import RecoveryPlan


class FrameworkJob(KeptJob):
    """One process of such a job. A spare has its rank before the script goes on."""

    def __init__(self, socket_path: str, agent_memory: int | None = None) -> None:
        self._recoveries = 0
        self._told = 0  # recoveries before the agent was told that all is done
        self._offered: Iterator[int] | None = None
        self._attempt: contextlib.AbstractContextManager[None] | None = None
        super().__init__(socket_path, agent_memory, late=True)

    def _join(self, process: str, token: str) -> None:
        super()._join(process, token)
        answer_objects_alone(lambda: self._group.use is Use.LOCAL)
        say_gloo()

    @property
    def replaces(self) -> bool:
        """This process takes a rank over, and has no state yet; before ``begin_loop``."""
        return self._spare

    @property
    def before_gate(self) -> bool:
        """An attempt is under way, whose optimizer's step has not begun."""
        return self._open

    @property
    def has_loop(self) -> bool:
        """Its training loop has begun."""
        return self._started

    def refuse_own_loops(self, text: str) -> None:
        """End the job with ``text`` where an optimizer steps before its loop has begun."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        def refuse(*_: Any) -> None:  # noqa: ANN401
            if not self._started:
                raise RuleError(text)

        register_optimizer_step_pre_hook(refuse)

    def give_up(self, reason: str) -> NoReturn:
        """End the job, for a reason that each of its processes has."""
        raise self._give_up(reason)

    def begin_loop(self, rehearse: Callable[[], None]) -> int:
        """Rehearse, and take a rank over if this process is to. Returns the steps applied so far.

        ``rehearse`` runs forward and backward passes of any batch, as the loop does.
        """
        if self._parts is None:
            raise RuntimeError("call protect() before begin_loop()")
        if self._started:
            raise RuleError("a job has one training loop, and this is the second one")
        self._started = self._group.closed = True
        for _ in self._rehearse():
            with self.attempt():
                rehearse()
        return self._step

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Collectives inside are answered at once, as if this process were alone."""
        before, self._group.use = self._group.use, Use.LOCAL
        try:
            yield
        finally:
            self._group.use = before

    def stay_alone(self) -> None:
        """As ``alone``, until an attempt begins: a replacement finds its place."""
        self._group.use = Use.LOCAL

    def begin_attempt(self) -> None:
        """The state of the present step is complete: keep its start."""
        self._offered = self._offer_step()
        next(self._offered)
        self._attempt = self.attempt()
        self._attempt.__enter__()

    def end_attempt(self) -> None:
        """The optimizer has stepped, and that is counted wherever the framework counts it."""
        assert self._attempt is not None
        assert self._offered is not None
        self._attempt.__exit__(None, None, None)
        next(self._offered, None)
        self._attempt = None

    def end_loop(self) -> None:
        """All is done, in an attempt without a step: return when that holds for all ranks."""
        while not self._link.released:
            self._told = self._recoveries
            self._link.send(wire.Finished(self._step))
            self._link.wait(lambda: self._link.released or self._recoveries != self._told)
        self._open = False
        self._group.use = Use.CLOSED
        self._group.abort(sys.maxsize)  # so that no peer takes this end for a loss
        self._link.close()

    def _recover(self, **how: Any) -> RecoveryPlan:  # noqa: ANN401
        plan = super()._recover(**how)
        self._recoveries += 1
        self._link.notify()
        return plan
