"""What a training loop may ask its job."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fabric_train.groups.job_group import JobGroup
from fabric_train.messages import process as wire
from fabric_train.messages.link import AgentLink
from fabric_train.rank.guard import guarded_checkpoint
from fabric_train.rank.own_parts import OwnParts
from fabric_train.rank.progress import Progress
from fabric_train.rules.protection import Protection
from fabric_train.state.checkpoint import CheckpointDirectory


class JobInfo:
    """The answers of a `Job`, which sets what is declared here."""

    _group: JobGroup
    _link: AgentLink
    _progress: Progress
    _timeout_s: float
    _late: bool
    _generation: int
    _step: int
    _started: bool
    _rehearsals: int
    _in_attempt: bool
    _applied: bool
    _name: str
    _run: str
    _again: int
    _parts: OwnParts | None

    @property
    def _own(self) -> OwnParts:
        assert self._parts is not None
        return self._parts

    @property
    def rank(self) -> int:
        """This process's rank, inside ``steps``; of a spare that only rehearses, 0.

        Raises ``RuntimeError`` before, unless the job is ``late``: a spare has no rank then.
        """
        if not self._started and not self._late:
            raise RuntimeError("a spare has no rank yet: use job.rank inside steps()")
        return self._group.rank()

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self._group.size()

    @property
    def generation(self) -> int:
        """Number of the generation that this process is part of; 0: of none."""
        return self._generation

    @property
    def applied(self) -> bool:
        """The last attempt counts: it was no rehearsal, and is not run again."""
        return self._applied

    @property
    def rehearsing(self) -> bool:
        """The present attempt only warms up; nothing of it is kept."""
        return self._rehearsals > 0

    @property
    def steps_again(self) -> int:
        """Applied steps that the job has run again since this process has had its rank.

        Only where shards are copied whole: who is lost behind a step takes all back before it.
        """
        return self._again

    def protection(self) -> Protection:
        """What is protected, by whom, and what is not. Inside ``steps``, after the rehearsal."""
        if not self._started or self.rehearsing:
            raise RuntimeError("protection() after the rehearsal, inside steps()")
        answer = self._link.ask(wire.ProtectionRequest(), self._timeout_s)
        assert isinstance(answer, wire.ProtectionAnswer)
        return Protection.decode(answer.body)

    def checkpoint(
        self, directory: str | os.PathLike[str]
    ) -> contextlib.AbstractContextManager[Path]:
        """A private directory for the protected state as it is now; published at the block's end.

        Call it on one rank, after an attempt that is ``applied``. ``newest_checkpoint`` finds it,
        and says how many steps are in it: ``step + 1`` after step ``step``. Raises
        ``CheckpointRefusedError`` where this process does not hold its rank any more.
        """
        if self._in_attempt or not self._applied or not self._started:
            raise RuntimeError("checkpoint() after an attempt that job.applied says counts")
        self._own.check_whole()
        checkpoints = CheckpointDirectory(Path(directory), self._name, self._run)
        return self._progress.pauses.during(
            guarded_checkpoint(
                checkpoints, self._link, self.rank, self._step, self._timeout_s,
                repeats=self._returns,
            )
        )  # fmt: skip

    @property
    def _returns(self) -> bool:
        """Who is lost behind a step takes all ranks back before it."""
        return self._parts is not None and self._parts.goes_back
