"""DeepSpeed with ZeRO 1 or 2, in a loop of one's own: lines marked `+` are all that it takes.

    fabric-run --standalone --nproc-per-node 2 --spares 1 examples/train_deepspeed.py

Kill any of its processes meanwhile: the job goes on at the same step, with the same bits.
"""

import argparse
import hashlib

import deepspeed
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fabric_train  # +
from fabric_train.frameworks.deepspeed import protect  # +

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_clipping": 1.0,
    "steps_per_print": 1 << 30,
}


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and their corners: a function of step and rank, so that it can be repeated."""
    random = torch.Generator().manual_seed(1_000_003 * step + rank)
    points = torch.randn(16, 2, generator=random)
    return points, (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--stage", type=int, default=2, choices=(1, 2))
    args, _ = parser.parse_known_args()
    torch.manual_seed(0)
    job = fabric_train.join(late=True)  # + instead of deepspeed.init_distributed()
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    config = CONFIG | {"zero_optimization": {"stage": args.stage}}
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    protect(job, engine)  # +
    for step in job.steps(args.steps):  # + instead of range(args.steps)
        with job.attempt():  # +
            points, corners = batch(step, job.rank)
            loss = cross_entropy(engine(points), corners)
            engine.backward(loss)
            engine.step()
        if job.applied and step % 20 == 0 and job.rank == 0:
            print(f"step {step:4}  loss {float(loss.detach()):.3f}", flush=True)
    weights = b"".join(one.numpy().tobytes() for one in net.state_dict().values())
    if job.rank == 0:
        print("SHA-256 of the weights:", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
