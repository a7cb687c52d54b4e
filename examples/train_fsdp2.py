"""The GPT of ``train_gpt.py`` in shards (FSDP2): lines marked `+` are all that it takes.

    fabric-run --standalone --nproc-per-node 4 --spares 1 examples/train_fsdp2.py --steps 200

No rank has what another one has: `--mesh 4`, and a rank that is killed is rebuilt from what the
next one keeps of it. `--mesh 2x2`: two replicas of two shards each (HSDP), and its replica gives
it back. Kill any of its processes meanwhile: the job goes on at the same step, with the same bits.
"""

import argparse
import hashlib
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from train_gpt import Gpt, batch

import fabric_train  # +

NAMES = {1: ("shard",), 2: ("replicate", "shard")}


class Logits(Gpt):
    """Its output is no view of another tensor: FSDP2 warns of those."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """As that of ``Gpt``."""
        return super().forward(tokens).clone()


def make_model(sizes: tuple[int, ...]) -> nn.Module:
    """A small GPT in shards over a mesh of these sizes, on CPUs."""
    model = Logits(64, 2)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=NAMES[len(sizes)])
    for layer in model.layers.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.set_force_sum_reduction_for_comms(True)  # gloo has no mean
    return model


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 of what this rank alone has: its shards, and what the optimizer keeps for them."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter, *optimizer.state[parameter].values()):
            own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            found.update(own.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path("/usr/share/common-licenses/GPL-3"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--mesh", default="4", help="4: FSDP2; 2x2: HSDP (default: %(default)s)")
    args = parser.parse_args()
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8)

    job = fabric_train.join(late=True)  # + a spare waits here until it has a rank
    torch.manual_seed(0)
    model = make_model(tuple(int(one) for one in args.mesh.split("x")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer)  # +
    for step in job.steps(args.steps):  # + instead of range
        with job.attempt():  # +
            inputs, targets = batch(text, step, job.rank)
            loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if job.applied and job.rank == 0 and step % 20 == 0:
            print(f"step {step:5}  loss {loss.item():.3f}  generation {job.generation}", flush=True)
    print(f"shards of rank {job.rank}: SHA-256 {digest(model, optimizer)}", flush=True)


if __name__ == "__main__":
    main()
