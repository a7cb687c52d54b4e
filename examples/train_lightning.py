"""Lightning's Trainer: a small network. No line of it knows of fabric_train.

    fabric-run --standalone --transparent --nproc-per-node 2 --spares 1 examples/train_lightning.py

Kill any of its processes meanwhile: the job goes on at the same step, with the same bits.
"""

import argparse
import hashlib
import os

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    """Finds in which of four corners a point lies."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))

    def training_step(self, batch: list[torch.Tensor], _place: int) -> torch.Tensor:
        """The loss of a batch."""
        points, corners = batch
        loss = cross_entropy(self.net(points), corners)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    pl.seed_everything(0)
    points = torch.randn(4096, 2)
    corners = (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long()
    module = Net()
    trainer = pl.Trainer(
        accelerator="cpu", strategy="ddp", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        max_steps=args.steps, logger=False, enable_progress_bar=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(points, corners), 16, shuffle=True))
    weights = b"".join(one.numpy().tobytes() for one in module.state_dict().values())
    if trainer.is_global_zero:
        print("SHA-256 of the weights:", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
