"""A small GPT on a text file, protected by fabric_train: lines marked `+` are all that it takes.

    fabric-run --standalone --nproc-per-node 4 --spares 1 examples/train_gpt.py --steps 200

Kill any of its processes meanwhile: the job goes on at the same step, with the same bits.
"""

import argparse
import hashlib
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import fabric_train  # +

CONTEXT = 32
BATCH = 8


class Gpt(nn.Module):
    """Predicts the next byte of a text."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``[batch, place, 256]`` of int64 ``[batch, place]``."""
        x = self.tokens(tokens) + self.places.weight
        return self.head(self.layers(x, mask=self.mask, is_causal=True))


def batch(text: torch.Tensor, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of this step and rank: a function of both, so that it can be repeated."""
    random = torch.Generator().manual_seed(1_000_003 * step + rank)
    starts = torch.randint(0, len(text) - CONTEXT - 1, (BATCH,), generator=random)
    rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts]).long()
    return rows[:, :-1], rows[:, 1:]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path("/usr/share/common-licenses/GPL-3"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8)

    torch.manual_seed(0)
    job = fabric_train.join()  # + instead of init_process_group
    model = DistributedDataParallel(Gpt(args.width, args.layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer)  # +
    for step in job.steps(args.steps):  # + instead of range
        with job.attempt():  # +
            inputs, targets = batch(text, step, job.rank)
            loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if job.applied and job.rank == 0 and step % 20 == 0:
            print(f"step {step:5}  loss {loss.item():.3f}  generation {job.generation}", flush=True)
    if job.rank == 0:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(bytes(parameter.detach().flatten().view(torch.uint8).tolist()))
        print(f"weights: SHA-256 {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
