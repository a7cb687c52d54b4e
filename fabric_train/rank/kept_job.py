"""A job whose loop runs each attempt once, also when a rank is lost in it.

What a rank gives to the collectives of an attempt is kept until the gate (``groups.kept_calls``).
A rank that is lost leaves the others waiting in a collective, or at their gate. A thread of each
process makes the next generation meanwhile, and sends a replacement the state in which the attempt
began: parameters and optimizers have not changed since, all else was captured. Then all ranks
repeat their collectives; only the replacement runs the loop's code anew. The optimizers' steps that
follow are made from gradients that all ranks compare, at the first gate after a recovery.

The training thread and that thread take turns: whoever holds ``_recovering`` owns the job's state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fabric_train.groups import backend
from fabric_train.groups.generation_group import GenerationGroup
from fabric_train.groups.kept_calls import KeptCalls
from fabric_train.messages import process as wire
from fabric_train.messages.link import AgentLostError
from fabric_train.rank.ending import end_at_once
from fabric_train.rank.job import Job
from fabric_train.rules.agreement import DisagreementError
from fabric_train.rules.loop import RunAgainError
from fabric_train.rules.step_rule import RecoveryPlan
from fabric_train.state.optimizer_groups import parameters_of
from fabric_train.state.rank_local import Stateful
from fabric_train.state.replicas import plain
from fabric_train.state.tensor_bytes import flat, memory

if TYPE_CHECKING:
    import torch


class KeptJob(Job):
    """One process of such a job."""

    def __init__(self, socket_path: str, agent_memory: int | None = None, *, late: bool) -> None:
        """Raises ``BackendError`` where a collective ends before its result is known."""
        if backend.chosen(os.environ) == "nccl":
            raise backend.BackendError(
                "join(kept=True) with NCCL: its collectives end before it is known whether they "
                "have failed, so there is nothing to repeat. Use gloo or the plugin"
            )
        self._calls = KeptCalls()
        self._recovering = threading.RLock()
        self._open = False  # an attempt is under way, and its gate not passed
        self._compares = False  # gradients, at the next gate
        self._keeper: threading.Thread | None = None
        super().__init__(socket_path, agent_memory, late=late)

    def _join(self, process: str, token: str) -> None:
        super()._join(process, token)
        self._group.kept = self._calls

    def protect(self, *, local: dict[str, Stateful] | None = None, **parts: Any) -> None:  # noqa: ANN401
        """As ``Job.protect``. Raises ``TypeError`` for shards, too."""
        super().protect(local=local, **parts)
        if sharded := self._own.state.sharded_parts():
            raise TypeError(f"join(kept=True) with shards ({sharded[0]}) is not supported")
        self._group.on_reduce = lambda: None  # the gate sends the rank-local state
        self._keeper = threading.Thread(target=self._keep, name="fabric-keeper", daemon=True)
        self._keeper.start()

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """One optimizer step; it is run once, except by a process that takes a rank over."""
        with super().attempt():
            if not self.rehearsing:
                self._begin()
            yield

    def _begin(self) -> None:
        self._own.state.begun = self._own.start.begun()
        self._calls.open()
        self._open = True
        self._link.notify()  # a rank may have been lost since the last gate

    def _pass_gate(self) -> None:
        super()._pass_gate()
        self._open = False
        self._calls.close()
        self._own.state.begun = None

    def _is_of_loss(self) -> bool:
        return False  # the loop never sees the result of a collective that has failed

    def _rewind(self) -> None:
        if not self._open:
            super()._rewind()

    def _gate(self) -> None:
        if self._applied or self.rehearsing:
            super()._gate()
            return
        with self._recovering:
            while not self._applied:
                with contextlib.suppress(RunAgainError):  # its collectives are under way again
                    super()._gate()

    def _vote(self, inner: GenerationGroup) -> tuple[int, bool]:
        if self._compares:
            try:
                check_gradients(inner, self._own.state.optimizers())
            except DisagreementError as error:
                raise self._give_up(str(error)) from None
        agreed = super()._vote(inner)
        self._compares = False
        return agreed

    def _leave(self, generation: int) -> NoReturn:
        self._link.send(wire.Ending(f"its rank has moved in generation {generation}"))
        end_at_once(f"this rank goes on in another process, in generation {generation}")

    def _recover(self, *, ready: bool, planned: bool = False) -> RecoveryPlan:
        with self._recovering:
            self._calls.suspend()
            plan = super()._recover(ready=ready, planned=planned)
            self._compares = True
            self._own.hand_over.again()
            if self.rank not in plan.apply:
                self._calls.replay()
            return plan

    def _take_part(self, inner: GenerationGroup, plan: RecoveryPlan, planned: bool) -> str:
        if self._open and inner.rank in plan.copies:
            self._link.send(wire.Ending("its state is missing in the middle of an attempt"))
            end_at_once("this rank would need the state of another one in the middle of an attempt")
        return super()._take_part(inner, plan, planned)

    def _keep(self) -> None:
        """Recover whenever a rank is lost in an attempt; on a thread of its own."""
        try:
            while True:
                self._link.wait(lambda: self._open and self._group.broken)
                with self._recovering:
                    if self._open and self._group.broken:
                        self._recover(ready=False)
        except (AgentLostError, SystemExit) as error:
            if not self._link.released:
                end_at_once(str(error))
        except BaseException as error:
            end_at_once(f"a recovery failed: {type(error).__name__}: {error}")
            raise

    def _end_generation(self, assignment: wire.Assignment) -> None:
        super()._end_generation(assignment)
        self._calls.wake()

    def _report_broken(self, generation: int, error: str) -> None:
        super()._report_broken(generation, error)
        self._calls.wake()
        self._link.notify()


def check_gradients(inner: GenerationGroup, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Compare the gradients of all ranks: that of a replacement are of an attempt run anew.

    Raises ``RuntimeError`` where the group is broken, ``DisagreementError`` where they differ.
    """
    found = hashlib.sha256()
    for optimizer in optimizers:
        for place, parameter in enumerate(parameters_of(optimizer)):
            if parameter.grad is not None:
                data = flat(plain(parameter.grad))
                found.update(f"{place} {data.dtype} {data.numel()} ".encode())
                found.update(memory(data))
    said = [json.loads(one) for one in inner.exchange(json.dumps(found.hexdigest()).encode())]
    for rank, digest in enumerate(said):
        if digest != said[0]:
            raise DisagreementError(
                f"after a takeover the gradients of ranks 0 and {rank} differ: an attempt that is "
                "run anew does not give what it gave before"
            )
