"""The rules of a training loop: who breaks one hears of it at once, in a healthy run.

A process that takes over a rank runs the same script and would break the same rule. So the job
ends with the rule's text, instead of with recoveries that lead nowhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator

from fabric_train.messages.link import AgentLink, AgentLostError
from fabric_train.messages.plain_text import say
from fabric_train.messages.process import Failed
from fabric_train.rank.compiled import CompiledGraphs, anew, keep_out_of_graphs
from fabric_train.rank.hand_over import HandOver
from fabric_train.rules.loop import RuleError
from fabric_train.state.gradients import LeftGradients
from fabric_train.state.replicated import ReplicatedState
from fabric_train.state.step_start import StepStart
from fabric_train.state.unprotected import Finds

_NAMED = 8
_MOST = 2000  # characters of a reason


class LoopRules:
    """What one process checks at the start of a step, and before the optimizer's step."""

    def __init__(
        self, link: AgentLink, state: ReplicatedState, start: StepStart, hand_over: HandOver
    ) -> None:
        self._link = link
        self._state = state
        self._start = start
        self._hand_over = hand_over
        self._gradients = LeftGradients(state.optimizers())
        self._finds: Finds | None = None
        self._steps = 0
        self._warned: frozenset[str] = frozenset()
        self._failed = False
        self._graphs = CompiledGraphs()
        keep_out_of_graphs()

    def begin(self, finds: Finds) -> list[str]:
        """The rehearsal is over. Returns what ``finds`` sees that is unprotected by now."""
        self._state.begin()
        self._finds = finds
        return finds.now()

    def capture(self, rank: int, step: int) -> None:
        """Keep the start of ``step``. Raises as ``StepStart.capture``; ``AgentLostError``."""
        keep_out_of_graphs()
        with self.ending():
            self._start.capture()
            self._gradients.mark()
        if self._finds is None:
            return
        self._hand_over.store_late(rank, step)
        if graphs := self._graphs.count_new():
            warn_unprotected(anew(graphs, rank))
        self._steps += 1
        with self.ending():
            new = self._finds.new() if self._finds.is_due(self._steps) else []
        unkept = self._start.unkept - self._warned
        self._warned |= unkept
        if rank:
            return
        for text in new:
            warn_unprotected(f"{text}; it was made in the loop")
        if unkept:
            warn_unprotected(
                f"{in_short(unkept)}: they change behind optimizer.step(), differ between ranks "
                "and are too large to be kept. A replacement gets those of another rank"
            )

    def counts(
        self, optimizer: object, arguments: Iterable[object], *, started: bool, in_attempt: bool
    ) -> bool:
        """Whether a call of an optimizer's step, with these ``arguments``, is one of the job's.

        Raises ``RuleError`` where it is none that a replacement could do likewise.
        """
        if optimizer not in self._state.optimizers():
            if started:
                self._state.check_covers(optimizer)
            return False
        if any(one is not None for one in arguments):
            raise RuleError("optimizer.step(closure) is not supported: it runs collectives")
        if not in_attempt:
            raise RuleError("optimizer.step() outside of attempt()")
        return True

    def check(self) -> None:
        """Before the optimizer's step. Raises ``ChangedError``."""
        with self.ending():
            self._state.check()

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """End the job for who breaks a rule inside."""
        try:
            yield
        except RuleError as error:
            if not self._failed:
                self._failed = True
                with contextlib.suppress(AgentLostError):
                    self._link.send(Failed(str(error)[:_MOST]))
            raise


def warn_unprotected(text: str) -> None:
    """Say on this process's standard error what a replacement does not get."""
    say(f"fabric_train: UNPROTECTED: {text}")


def in_short(names: Collection[str]) -> str:
    """Some of ``names``, for people."""
    rest = len(names) - _NAMED
    return ", ".join(sorted(names)[:_NAMED]) + f" and {rest} more" * (rest > 0)
