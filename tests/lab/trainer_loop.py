"""``trainer_loop.py STEPS OUT``: transformers' Trainer, as it is without fabric_train.

FAULTS: rank:step:moment, each strikes once; the step counts what ``Trainer`` has counted before.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

STEPS, OUT = int(sys.argv[1]), Path(sys.argv[2])
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]


def strike(moment):
    rank, at = int(os.environ["RANK"]), trainer.state.global_step
    for fault in FAULTS:
        if (str(rank), str(at), moment) == tuple(fault):
            name = OUT / f"struck.{rank}-{at}-{moment}"
            if not name.exists():
                name.touch()
                os.kill(os.getpid(), signal.SIGKILL)


class Texts(torch.utils.data.Dataset):
    """Random texts, each by its index."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        numbers = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 64, (12 + index % 3,), generator=numbers)
        tokens = torch.nn.functional.pad(tokens, (0, 14 - len(tokens)))
        return {"input_ids": tokens, "labels": tokens}


class Strikes(TrainerCallback):
    """Kills where it is told to, and counts what this process does."""

    def on_step_begin(self, args, state, control, **_):
        with (OUT / f"attempts.{os.getpid()}").open("a") as attempts:
            attempts.write(f"{os.environ['RANK']}:{state.global_step}\n")
        strike("begin")

    def on_pre_optimizer_step(self, *_, **__):
        strike("gate")

    def on_optimizer_step(self, *_, **__):
        strike("optimizer")

    def on_log(self, *_, **__):
        strike("log")

    def on_evaluate(self, *_, **__):
        strike("evaluate")

    def on_save(self, *_, **__):
        strike("save")

    def on_epoch_end(self, *_, **__):
        strike("epoch")

    def on_train_end(self, *_, **__):
        strike("end")


def digest():
    found = hashlib.sha256()
    for name, tensor in trainer.model.state_dict().items():
        found.update(name.encode() + tensor.numpy().tobytes())
    for state in trainer.optimizer.state_dict()["state"].values():
        for value in state.values():
            found.update(value.numpy().tobytes())
    timed = ("runtime", "per_second")
    log = [
        {key: value for key, value in line.items() if not key.endswith(timed)}
        for line in trainer.state.log_history
    ]
    return json.dumps([found.hexdigest(), trainer.lr_scheduler.state_dict()["_last_lr"], log])


torch.manual_seed(3)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
model.transformer.h[0].register_forward_hook(lambda *_: strike("forward"))
model.transformer.h[1].register_full_backward_hook(lambda *_: strike("backward"))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=str(OUT / "checkpoints"), use_cpu=True, max_steps=STEPS, logging_steps=2,
        per_device_train_batch_size=2, gradient_accumulation_steps=2, warmup_steps=3, seed=5,
        eval_strategy="steps", eval_steps=5, save_strategy="steps", save_steps=7, report_to=[],
        disable_tqdm=True, learning_rate=1e-3,
    ),
    train_dataset=Texts(7 * 4 * int(os.environ.get("WORLD_SIZE", "1"))),
    eval_dataset=Texts(10),
    callbacks=[Strikes()],
)  # fmt: skip


def main():
    trainer.train()
    (OUT / f"weights.{os.environ['RANK']}").write_text(digest())


if __name__ == "__main__":
    main()
