"""``torchtitan_loop.py STEPS OUT``: TorchTitan's debug models by ``examples/train_torchtitan.py``.

KIND: fsdp, hsdp (2 × 2) or moe (expert parallel 2). FAULTS: rank:step:moment, each strikes once,
not in a rehearsal. OUT has ``tokenizer`` and ``texts``, as the test has made them.
"""

import hashlib
import importlib
import os
import signal
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

if torch.cuda.is_available():
    os.environ["NCCL_HOSTID"] = f"{os.getpid()}"  # else NCCL refuses two ranks on one GPU
    torch.cuda.init()
else:
    import torchtitan_cpu  # noqa: F401

from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.tools.logging import init_logger

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
train_torchtitan = importlib.import_module("train_torchtitan")

STEPS, OUT = int(sys.argv[1]), Path(sys.argv[2])
KIND = os.environ["KIND"]
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]


class DyingTrainer(train_torchtitan.ProtectedTrainer):
    """Dies at the moments of FAULTS."""

    def strike(self, moment):
        job = self._job
        for rank, step, when in FAULTS:
            name = OUT / f"struck.{rank}-{step}-{when}"
            now = (job.rank, self.step - 1, moment) == (int(rank), int(step), when)
            if now and not job.rehearsing and not name.exists():
                name.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def train(self):
        middle = self.model_parts[0].layers["2"]

        def forward(_module, _inputs, output):
            self.strike("forward")
            if output.requires_grad:
                output.register_hook(lambda _grad: self.strike("backward"))

        middle.register_forward_hook(forward)
        for one in self.optimizers:
            one.register_step_post_hook(lambda *_: self.strike("optimizer"))
        super().train()

    def train_step(self, batches):
        super().train_step(batches)
        self.strike("gate")


def config():
    made = {"moe": deepseek_v3_debugmodel}.get(KIND, llama3_debugmodel)()
    made.hf_assets_path = str(OUT / "tokenizer")
    made.dump_folder = str(OUT)
    made.dataloader.dataset_path = str(OUT / "texts")
    made.training.steps = STEPS
    made.training.seq_len, made.training.local_batch_size = 64, 2
    made.training.disable_cuda_graphs = True
    made.validator.enable = made.checkpoint.enable = False
    made.comm.trace_buf_size = 0
    made.parallelism.spmd_backend = "partial_dtensor"  # others need a later torch
    made.debug.seed = 1
    made.metrics.log_freq = 5
    made.parallelism.data_parallel_replicate_degree = 2 if KIND == "hsdp" else 1
    made.parallelism.expert_parallel_degree = 2 if KIND == "moe" else 1
    return made


def digest(trainer):
    found = hashlib.sha256(str(trainer.lr_schedulers.get_metrics()).encode())
    # Not state_dict(): TorchTitan gathers fused weights for it.
    tensors = [one for part in trainer.model_parts for one in (*part.parameters(), *part.buffers())]
    for optimizer in trainer.optimizers:
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            state = optimizer.state[parameter]
            tensors += [state[key] for key in sorted(state)]
    for tensor in (*tensors, torch.get_rng_state()):
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        found.update(own.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


init_logger()
done = train_torchtitan.run(config(), DyingTrainer)
(OUT / f"weights.{done._job.rank}").write_text(f"{digest(done)} {done.ntokens_seen}")
