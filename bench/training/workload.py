"""The model that every loop trains: about 50 MB of weights and optimizer state.

Dropout draws random numbers, batch norm keeps statistics of each rank, and the learning rate
changes: what a takeover has to restore is all there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.training.samples import SAMPLES
from bench.training.trace import Phase, Trace

FEATURES = 256
WIDTH = int(os.environ.get("BENCH_WIDTH", "1408"))
"""Of the hidden layers: makes the state larger or smaller."""
CLASSES = 10
REPEAT = int(os.environ.get("BENCH_REPEAT", "1"))
"""How often a batch is computed in one step: makes a step longer, and nothing else."""


class Net(nn.Module):
    """A perceptron of 4.3 million parameters, with the default ``WIDTH``."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH)
        self.rest = nn.Sequential(
            nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES),
        )  # fmt: skip

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``[batch, CLASSES]`` of ``[batch, FEATURES]``."""
        logits: Tensor = self.rest(self.first(features))
        return logits


class Data:
    """All samples in memory, a function of the seed alone."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(7)
        self._features = torch.randn(SAMPLES, FEATURES, generator=random)
        self._labels = torch.randint(0, CLASSES, (SAMPLES,), generator=random)

    def loss(self, model: nn.Module, samples: Sequence[int]) -> Tensor:
        """The mean loss of ``model`` over ``samples``."""
        rows = torch.tensor(samples).repeat(REPEAT)
        return cross_entropy(model(self._features[rows]), self._labels[rows])


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW: two more tensors for each parameter."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def make_scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A learning rate that falls every 10 steps."""
    return torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.99)


def record_phases(trace: Trace, net: Net, optimizer: torch.optim.Optimizer) -> None:
    """Let the process record where it is inside a step; call it after ``job.protect``."""

    def reduced(_parameter: Tensor) -> None:
        trace.phase(Phase.COLLECTIVE)

    def applying(*_: object) -> None:
        trace.phase(Phase.OPTIMIZER)

    # Gradients are computed from the last layer to the first.
    net.first.weight.register_post_accumulate_grad_hook(reduced)
    optimizer.register_step_pre_hook(applying)


def corrupt(net: Net, phase: Phase) -> None:
    """Flip a bit of one parameter of this process; in ``Phase.GATE`` of one reduced gradient."""
    tensor = net.first.weight.grad if phase is Phase.GATE else net.first.weight.data
    assert tensor is not None
    tensor.view(-1).view(torch.int32)[:1] ^= 1 << 22


def state_digest(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
) -> str:
    """SHA-256 of weights, buffers, optimizer state and learning rate."""
    digest = hashlib.sha256()
    for name, tensor in _tensors(model, optimizer):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
    rates = [group["lr"] for group in optimizer.param_groups]
    digest.update(repr((rates, scheduler.last_epoch)).encode())
    return digest.hexdigest()


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, Tensor]]:
    yield from sorted(model.state_dict().items())
    for place, parameter in enumerate(model.parameters()):
        for key, value in sorted(optimizer.state[parameter].items()):
            yield f"{place}/{key}", value
