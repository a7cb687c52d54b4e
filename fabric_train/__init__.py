"""What a training job imports, and ``fabric-run``, which launches it.

A rank that dies is replaced at the same rank, with the state of a healthy replica, and the job goes
on at the step where it was. ``docs/operate/train.md`` has the ten lines that a training loop needs.

- ``rules``: who holds which rank, the phases of a job, where it goes on after a loss. Pure.
- ``messages``: what processes, agents and fabric-compute say to each other.
- ``run``: the program ``fabric-run``; ``agent`` on one host, ``host`` on several.
- ``rank``: what runs in a process of the job, with the API of the training loop (``rank.job``).
- ``groups``: collectives that outlive generations, over gloo, NCCL or the network plugin.
- ``frameworks``: training loops of others: transformers, Lightning.
- ``state``: what a replacement receives, and checkpoints that no outdated writer can publish.

This package imports torch and the standard library only, and no other package of the repository.
Importing it does not import torch: ``rank``, ``groups`` and ``state`` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric_train.state.checkpoint import Checkpoint, CheckpointRefusedError, newest_checkpoint
from fabric_train.state.full_disk import CheckpointFullError

if TYPE_CHECKING:
    from fabric_train.rank.framework_job import FrameworkJob
    from fabric_train.rank.job import Job
    from fabric_train.shards.keeper import GradientLog

__all__ = [
    "Checkpoint", "CheckpointFullError", "CheckpointRefusedError", "GradientLog", "carry", "join",
    "join_framework", "newest_checkpoint",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """``GradientLog`` is made of torch, which this package does not import by itself."""
    if name != "GradientLog":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fabric_train.shards import keeper

    return keeper.GradientLog


def carry(cls: type) -> type:
    """Let instances of ``cls`` be part of a protected state: ``state.plain_values``."""
    from fabric_train.state import plain_values

    return plain_values.carry(cls)


def join(*, late: bool = False, kept: bool = False) -> Job:
    """Become a rank or a spare of the job whose fabric-run started this process: ``rank.job``.

    ``late``: a spare gets its rank before it builds its model, so the job may have further process
    groups. ``kept``: a rank that lives runs each attempt once, also when another one is lost in it.
    """
    from fabric_train.frameworks.running import refuse_second_join
    from fabric_train.rank import joining

    refuse_second_join()
    return joining.join(late=late, kept=kept)


def join_framework() -> FrameworkJob:
    """As ``join``, for a script whose training loop is that of transformers or Lightning.

    A spare waits for its rank. What it returns is for ``frameworks.hugging_face.takeover`` or
    ``frameworks.lightning.takeover``.
    """
    from fabric_train.frameworks.running import refuse_second_join
    from fabric_train.rank import joining

    refuse_second_join()
    return joining.join_framework()
