"""TorchTitan's own models and training step, whose ranks are taken over.

    fabric-run --standalone --backend nccl --nproc-per-node 4 --spares 1 \
        examples/train_torchtitan.py --module llama3 --config llama3_debugmodel \
        --training.disable_cuda_graphs --parallelism.spmd_backend partial_dtensor

Kill any of its processes meanwhile: the job goes on at the same step, with the same bits.
Arguments are those of TorchTitan 0.3.0. `ProtectedTrainer` is all that differs from its `train.py`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torchtitan
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

import fabric_train
from fabric_train.rank.job import Job

VERSION = "0.3.0"
Batch = tuple[dict[str, torch.Tensor], torch.Tensor]
"""What the model is given, and the labels."""


class Batches:
    """Batches of this rank, from a position that a takeover restores."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._iterator: Iterator[Batch] | None = None
        # Each iterator draws a seed for its workers: not from torch's generator, which a process
        # that makes one more would be ahead of the others with.
        trainer.dataloader.generator = torch.Generator()

    def __next__(self) -> Batch:
        """The next batch: asked for by TorchTitan's `train_step`."""
        if self._iterator is None:
            self._iterator = self._trainer.batch_generator(self._trainer.dataloader)
        return next(self._iterator)

    def state_dict(self) -> dict[str, Any]:
        """The position, as TorchTitan's checkpoints have it."""
        return self._trainer.dataloader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at that position: the loader makes another iterator."""
        self._trainer.dataloader.load_state_dict(state)
        self._iterator = None


class ProtectedTrainer(Trainer):
    """Trains as its base class does; each of its steps is an attempt of the job."""

    def __init__(self, config: Trainer.Config, job: Job) -> None:
        self._job = job
        self._noted: list[Callable[[], None]] = []
        refuse(config)
        super().__init__(config)

    def init_distributed(self) -> ParallelDims:
        """Torch's process group is there: `join()` has made it."""
        return ParallelDims.from_config(self.config.parallelism, self._job.world)

    def train(self) -> None:
        """`train_step` for each step that is left."""
        batches = Batches(self)
        self._job.protect(
            model=self.model_parts, optimizer=self.optimizers, schedule=self.lr_schedulers,
            local={"batches": batches, "trainer": self},
        )  # fmt: skip
        self._note(self.optimizers, "step")
        self._note(self.lr_schedulers, "step")
        self._note(self.metrics_processor, "log")
        for step in self._job.steps(self.config.training.steps, first=self.step):
            self._noted.clear()
            with self._job.attempt():
                self.step = step + 1
                self.gc_handler.run(self.step)
                self.train_step(batches)
                optimize, schedule, *log = self._noted
                optimize()
                schedule()
            if self._job.applied:
                for write in log:
                    write()

    def _note(self, part: object, name: str) -> None:
        """Let a method of `part` only be noted, with what it is given.

        `train_step` sums its metrics behind the optimizer's step, where a rank that is lost would
        be missed. So the step is made when all sums are there, and the log written when it counts.
        """
        method = getattr(part, name)

        def note(*args: object, **more: object) -> None:
            self._noted.append(partial(method, *args, **more))

        setattr(part, name, note)


def refuse(config: Trainer.Config) -> None:
    """Raise `ValueError` for what would not be exact, or fail after a takeover."""
    reasons = {
        f"this is for TorchTitan {VERSION}, not {torchtitan.__version__}": (
            torchtitan.__version__ != VERSION
        ),
        "checkpoint.enable: write checkpoints with job.checkpoint()": config.checkpoint.enable,
        "validator.enable: its collectives would lie between two attempts": config.validator.enable,
        "dataloader.infinite is off: the job ends with its steps, not with its data": (
            not getattr(config.dataloader, "infinite", True)
        ),
        "parallelism.spmd_backend: this is tested with partial_dtensor alone": (
            config.parallelism.spmd_backend != "partial_dtensor"
        ),
        "pipeline parallel is not tested": config.parallelism.pipeline_parallel_degree > 1,
        "a CUDA graph keeps the connections to a lost rank: set training.disable_cuda_graphs": (
            not config.training.disable_cuda_graphs
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(reason)


def run(
    config: Trainer.Config, kind: type[ProtectedTrainer] = ProtectedTrainer
) -> ProtectedTrainer:
    """Train; the processes of fabric-run each call this once."""
    job = fabric_train.join(late=True)
    trainer = kind(config, job)
    trainer.train()
    trainer.close()
    return trainer


if __name__ == "__main__":
    init_logger()
    run(ConfigManager().parse_args())
