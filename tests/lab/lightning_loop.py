"""``lightning_loop.py STEPS OUT``: Lightning's Trainer, as it is without fabric_train.

FAULTS: rank:step:moment, each strikes once; the step counts what ``Trainer`` has counted before.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

STEPS, OUT = int(sys.argv[1]), Path(sys.argv[2])
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]


def strike(moment):
    rank, at = int(os.environ["RANK"]), trainer.global_step
    for fault in FAULTS:
        if (str(rank), str(at), moment) == tuple(fault):
            name = OUT / f"struck.{rank}-{at}-{moment}"
            if not name.exists():
                name.touch()
                os.kill(os.getpid(), signal.SIGKILL)


class Points(Dataset):
    """Random points, each by its index."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        numbers = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=numbers), index % 5


class Net(pl.LightningModule):
    """A classifier with dropout and batch norm."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5)
        )
        self.seen = []
        self.net[1].register_forward_hook(lambda *_: strike("forward") if self.training else None)
        self.net[2].register_full_backward_hook(lambda *_: strike("backward"))

    def training_step(self, batch, index):
        points, kinds = batch
        self.seen.append(index)
        loss = cross_entropy(self.net(points), kinds)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("alone", loss.detach() * 2, on_step=True)
        return {"loss": loss, "twice": 2 * loss.detach()}

    def validation_step(self, batch, _index):
        points, kinds = batch
        self.log("val_loss", cross_entropy(self.net(points), kinds), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Strikes(pl.Callback):
    """Kills where it is told to, and counts what this process does."""

    def on_train_batch_start(self, trainer, *_):
        with (OUT / f"attempts.{os.getpid()}").open("a") as attempts:
            attempts.write(f"{os.environ['RANK']}:{trainer.global_step}\n")

    def on_before_optimizer_step(self, *_):
        strike("gate")

    def on_train_batch_end(self, trainer, _module, outputs, *_):
        assert torch.equal(outputs["twice"], 2 * outputs["loss"] * trainer.accumulate_grad_batches)
        strike("end")

    def on_validation_end(self, *_):
        strike("validation")

    def on_train_epoch_end(self, *_):
        strike("epoch")

    def on_train_end(self, *_):
        strike("last")


def digest():
    found = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        found.update(name.encode() + tensor.numpy().tobytes())
    for state in trainer.optimizers[0].state_dict()["state"].values():
        for value in state.values():
            found.update(value.numpy().tobytes())
    metrics = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
    rate = trainer.lr_scheduler_configs[0].scheduler.get_last_lr()
    best = trainer.checkpoint_callback.best_model_score
    return json.dumps([found.hexdigest(), rate, metrics, float(best)])


pl.seed_everything(5)
module = Net()
trainer = pl.Trainer(
    accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")), strategy="ddp",
    max_steps=STEPS, accumulate_grad_batches=2, gradient_clip_val=1.0, log_every_n_steps=1,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=OUT, logger=False,
    callbacks=[Strikes(), ModelCheckpoint(OUT / "checkpoints", monitor="val_loss")],
    check_val_every_n_epoch=1,
)  # fmt: skip
world = int(os.environ.get("WORLD_SIZE", "1"))
loaders = DataLoader(Points(9 * 4 * world), 4, shuffle=True), DataLoader(Points(8 * world), 4)


def main():
    trainer.fit(module, *loaders)
    (OUT / f"weights.{os.environ['RANK']}").write_text(digest())


if __name__ == "__main__":
    main()
