"""``deepspeed_loop.py STEPS OUT``: ZeRO of DeepSpeed in a loop of one's own, and ranks that die.

STAGE: 1, 2 or 3. PRECISION: fp32 or bf16. MICRO: micro batches of a step.
PLAIN=1: without a line of ours, for torchrun. FAULTS as in ``grouped_loop.py``. What comes out is
each rank's partitions, all that the optimizer keeps for them, and the parameters of the model.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import deepspeed
import torch
from torch import nn

PLAIN = bool(os.environ.get("PLAIN"))
STAGE = int(os.environ.get("STAGE", "1"))
MICRO = int(os.environ.get("MICRO", "1"))
BF16 = os.environ.get("PRECISION") == "bf16"
STEPS, OUT = int(sys.argv[1]), Path(sys.argv[2])
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]
CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": MICRO,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": BF16},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8}},
    "zero_optimization": {
        "stage": STAGE, "reduce_bucket_size": 60, "stage3_param_persistence_threshold": 10,
    },
    "steps_per_print": 1 << 30,
}  # fmt: skip


def strike(moment):
    if PLAIN or job.rehearsing:
        return
    for rank, step, when in FAULTS:
        name = OUT / f"struck.{rank}-{step}-{when}"
        if (job.rank, at, moment) == (int(rank), int(step), when) and not name.exists():
            name.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def batch(step, micro):
    random = torch.Generator().manual_seed(100_000 * micro + 1000 * step + rank)
    return torch.randn(8, 7, generator=random)


def train(step):
    for micro in range(MICRO):
        x = batch(step, micro)
        strike("forward")
        loss = (engine(x.bfloat16() if BF16 else x).float() - x.sum(1, True).sin()).pow(2).mean()
        engine.backward(loss)
        strike("gate")
        engine.step()
    strike("behind")


# On CPUs DeepSpeed would compile this when the first group is made.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
torch.manual_seed(1)
net = nn.Sequential(
    nn.Linear(7, 13), nn.ReLU(), nn.Dropout(0.1), nn.Linear(13, 5), nn.ReLU(), nn.Linear(5, 1)
)
net[3].register_full_backward_hook(lambda *_: strike("backward"))
if PLAIN:
    deepspeed.init_distributed("gloo")
    engine, inner, *_ = deepspeed.initialize(model=net, config=CONFIG)
    rank = torch.distributed.get_rank()
    for at in range(STEPS):
        train(at)
else:
    import fabric_train
    from fabric_train.frameworks.deepspeed import protect

    job = fabric_train.join(late=True)
    rank = job.rank
    engine, inner, *_ = deepspeed.initialize(model=net, config=CONFIG)
    log = fabric_train.GradientLog(buddies=int(os.environ.get("BUDDIES", "1")), renew_steps=4)
    protect(job, engine, gradient_log=log)
    for at in job.steps(STEPS):
        with job.attempt():
            train(at)
digest = hashlib.sha256(repr((engine.global_steps, engine.get_lr())).encode())


def used(place, tensor):
    """Without what ZeRO 3 has behind the ends of parameters: memory that nobody has written."""
    if STAGE < 3 or not tensor.dim():
        return [tensor]
    found, rest = [], tensor
    for one in inner.fp16_groups[place]:
        size = one.ds_tensor.ds_numel
        found.append(rest[: max(0, min(size, one.ds_numel - rank * size))])
        rest = rest[size:]
    return found


flat = "single_partition_of_fp32_groups" if STAGE < 3 else "fp32_partitioned_groups_flat"
for place, part in enumerate(getattr(inner, flat)):
    kept = inner.optimizer.state[part]
    for tensor in (part, *(kept[key] for key in sorted(kept))):
        for piece in used(place, tensor.detach()):
            digest.update(piece.numpy().tobytes())
for one in net.parameters():
    mine = one.detach()
    if STAGE == 3:
        begin = rank * one.ds_tensor.ds_numel
        mine = one.ds_tensor.detach()[: max(0, one.ds_numel - begin)]
    digest.update(mine.contiguous().view(torch.uint8).numpy().tobytes())
(OUT / f"weights.{rank}").write_text(digest.hexdigest())
