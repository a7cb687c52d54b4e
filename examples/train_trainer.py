"""transformers' Trainer: a small GPT-2 with random weights. No line of it knows of fabric_train.

    fabric-run --standalone --transparent --nproc-per-node 2 --spares 1 examples/train_trainer.py

Kill any of its processes meanwhile: the job goes on at the same step, with the same bits.
"""

import argparse
import hashlib
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

CONTEXT = 32


class Bytes(torch.utils.data.Dataset):
    """Pieces of a text, byte by byte."""

    def __init__(self, text: bytes) -> None:
        self._pieces = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return len(self._pieces) // CONTEXT

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        piece = self._pieces[place * CONTEXT : (place + 1) * CONTEXT]
        return {"input_ids": piece, "labels": piece}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path("/usr/share/common-licenses/GPL-3"))
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(), max_steps=args.steps, per_device_train_batch_size=8,
            logging_steps=20, save_strategy="no", report_to=[], use_cpu=True, warmup_steps=10,
        ),
        train_dataset=Bytes(args.text.read_bytes()),
    )  # fmt: skip
    trainer.train()
    weights = b"".join(one.numpy().tobytes() for one in trainer.model.state_dict().values())
    if trainer.is_world_process_zero():
        print("SHA-256 of the weights:", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
