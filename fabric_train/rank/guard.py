"""The guard of a job's checkpoints: only who holds the newest generation publishes one.

Two checks, and either is enough where the other one is blind. The agent asks the agents of the
job's other hosts; the file system has the fencing tokens of ``checkpoint``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from fabric_train.messages.link import AgentLink, AgentLostError
from fabric_train.messages.process import NEWEST_S, NewestAnswer, NewestRequest
from fabric_train.state.checkpoint import CheckpointDirectory, CheckpointRefusedError, Token
from fabric_train.state.full_disk import full

_QUESTIONS = itertools.count(1)


@contextlib.contextmanager
def guarded_checkpoint(
    checkpoints: CheckpointDirectory,
    link: AgentLink,
    rank: int,
    step: int,
    timeout_s: float,
    *,
    repeats: bool = False,
) -> Iterator[Path]:
    """A private directory to write the state after ``step`` steps into, published at the end.

    ``repeats``: the step may have been run before, and published. Raises
    ``CheckpointRefusedError``, and ``OSError`` of the file system, of which ``CheckpointFullError``
    is one; nothing is published then, nor when the caller's block raises.
    """
    if link.released:
        raise RuntimeError("the job has ended: write its last checkpoint inside of steps()")

    def newest_generation() -> int:
        return _newest_generation(link, rank, timeout_s)

    try:
        token = checkpoints.claim(newest_generation(), newest_generation)
        staging = checkpoints.stage(token)
    except OSError as error:
        raise full(checkpoints.directory, None, error) or error from None
    try:
        try:
            yield staging.path
        except Exception as error:
            if no_room := full(checkpoints.directory, staging.path, error):
                raise no_room from error
            checkpoints.check(token)  # is the directory gone?
            raise
        while True:
            checkpoints.seal(staging, step)
            newest = newest_generation()
            if newest == token.generation:
                break
            # Another rank was lost meanwhile, and this one goes on in the newest generation.
            staging = checkpoints.restage(staging, Token(token.run, newest))
            token = checkpoints.claim(newest, newest_generation)
        checkpoints.publish(staging, step, repeats=repeats)
    except OSError as error:
        no_room = full(checkpoints.directory, staging.path, error)
        checkpoints.discard(staging)
        if no_room is not None and no_room is not error:
            raise no_room from error
        raise
    except BaseException:
        checkpoints.discard(staging)
        raise


def _newest_generation(link: AgentLink, rank: int, timeout_s: float) -> int:
    """The newest generation, in which this process holds ``rank``."""
    try:
        request = NewestRequest(next(_QUESTIONS), rank)
        answer = link.ask(request, timeout_s + NEWEST_S)  # the agent takes that long itself
    except AgentLostError as error:
        raise CheckpointRefusedError(f"rank {rank}: {error}") from None
    assert isinstance(answer, NewestAnswer)
    if answer.problem:
        raise CheckpointRefusedError(f"rank {rank}: {answer.problem}")
    return answer.generation
