"""What a training job imports, and ``fabric-run``, which launches it.

A rank that dies is replaced at the same rank, with the state of a healthy replica, and the job goes
on at the step where it was. ``docs/operate/train.md`` has the ten lines that a training loop needs.

- ``membership``: which process holds which rank. Pure.
- ``step_rule``: at which step a job continues after a loss, and who copies from whom. Pure.
- ``coordinator``: the phases of a job: forming, running, recovering, held. Pure.
- ``messages``: what a process and its agent say to each other over a Unix socket.
- ``agent``: the process ``fabric-run``: spawns ranks, watches them, runs the coordinator.
- ``collectives``: the process group that outlives generations. ``gloo_group`` and ``plugin_group``
  are what is inside it.
- ``state``, ``transfer``, ``local_state``: what a replacement receives.
- ``checkpoint``, ``guard``: checkpoints that no outdated writer can publish.
- ``job``: the API of the training loop.

This package imports torch and the standard library only, and nothing of the house. Importing it
does not import torch: ``job``, ``collectives``, ``state`` and ``transfer`` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric_train.checkpoint import Checkpoint, CheckpointRefusedError, newest_checkpoint

if TYPE_CHECKING:
    from fabric_train.job import Job

__all__ = ["Checkpoint", "CheckpointRefusedError", "join", "newest_checkpoint"]


def join() -> Job:
    """Become a rank or a spare of the job whose fabric-run started this process; see ``job``."""
    from fabric_train import job

    return job.join()
