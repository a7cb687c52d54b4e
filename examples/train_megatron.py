"""A small GPT of Megatron-core, split over ranks, that survives the loss of any rank.

    fabric-run --standalone --nproc-per-node 4 --spares 1 examples/train_megatron.py

Tensor parallel 2 x data parallel 2; with --instances 2 data parallel 4, whose distributed optimizer
has two instances of two shards. Lines marked `+` are all that it takes. Kill any of its processes
meanwhile: the job goes on at the same step, with the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

if not torch.cuda.is_available():
    import no_cuda  # noqa: F401  # Megatron asks for one everywhere

from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

import fabric_train  # +
from fabric_train.frameworks import megatron  # +

LENGTH, WORDS, BATCH = 16, 64, 4


def build(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The model, its optimizer and scheduler, as Megatron makes them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.bfloat16 if args.bf16 else torch.float32
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, bf16=args.bf16, params_dtype=kind,
        pipeline_dtype=kind, tensor_model_parallel_size=args.tensor_parallel,
        gradient_accumulation_fusion=False, masked_softmax_fusion=False,
        bias_activation_fusion=False, bias_dropout_fusion=False,
    )  # fmt: skip
    net: Any = GPTModel(
        config, get_gpt_layer_local_spec(), vocab_size=WORDS, max_sequence_length=LENGTH,
        position_embedding_type="rope",
    ).to(device)  # fmt: skip
    if args.bf16:
        net = Float16Module(config, net)
    sharded = args.instances > 0
    model = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, overlap_grad_reduce=args.overlap, bucket_size=8192,
            use_distributed_optimizer=sharded,
            num_distributed_optimizer_instances=max(1, args.instances),
        ),
        net,
    )  # fmt: skip
    model.broadcast_params()
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=1e-2, min_lr=1e-4, weight_decay=0.1, clip_grad=1.0, bf16=args.bf16,
            params_dtype=kind, use_distributed_optimizer=sharded,
        ),
        [model],
    )  # fmt: skip
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=1e-2, min_lr=1e-4, lr_warmup_steps=4,
        lr_decay_steps=args.steps, lr_decay_style="cosine", start_wd=0.1, end_wd=0.1,
        wd_incr_steps=args.steps, wd_incr_style="constant",
    )  # fmt: skip
    return model, optimizer, scheduler


def batch(step: int, group: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and the words that follow: a function of the step and the data parallel rank."""
    random = torch.Generator().manual_seed(1_000_003 * step + group)
    start = torch.randint(WORDS, (BATCH, 1), generator=random)
    words = (start + 7 * torch.arange(LENGTH + 1)) % WORDS
    return words[:, :-1].to(device), words[:, 1:].to(device)


def tensors(model: Any, optimizer: Any) -> Iterator[torch.Tensor]:
    """Parameters, main parameters, and what the optimizer keeps, of this rank."""
    yield from model.parameters()
    for one in optimizer.chained_optimizers:
        for group in one.optimizer.param_groups:
            for parameter in group["params"]:
                state = one.optimizer.state[parameter]
                yield from (parameter, *(state[key] for key in sorted(state)))


def digest(model: Any, optimizer: Any) -> str:
    """SHA-256 of all `tensors`."""
    found = hashlib.sha256()
    for one in tensors(model, optimizer):
        found.update(one.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def options(argv: list[str]) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tensor-parallel", type=int, default=0, help="default: 2, or 1")
    parser.add_argument("--instances", type=int, default=0, help="of the distributed optimizer")
    parser.add_argument("--bf16", action="store_true", help="with main parameters of 32 bits")
    parser.add_argument("--overlap", action="store_true", help="gradients with the backward pass")
    args = parser.parse_args(argv)
    args.tensor_parallel = args.tensor_parallel or (1 if args.instances else 2)
    return args


def attempt(model: Any, optimizer: Any, step: int) -> torch.Tensor:
    """One step of training, as Megatron's `train_step`."""
    model.zero_grad_buffer()
    optimizer.zero_grad()
    words, labels = batch(
        step, parallel_state.get_data_parallel_rank(), model.buffers[0].grad_data.device
    )
    places = torch.arange(LENGTH, device=words.device).expand(BATCH, LENGTH)
    loss = model(words, places, None, labels=labels).float().mean()
    loss.backward()
    finalize_model_grads([model])
    optimizer.step()
    return loss.detach()


def main() -> None:
    """Train."""
    args = options(sys.argv[1:])
    job = fabric_train.join(late=True)  # + instead of init_process_group
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor_parallel,
        num_distributed_optimizer_instances=max(1, args.instances),
    )
    # Dropout differs between the ranks of a data parallel group.
    model_parallel_cuda_manual_seed(1234 + 10 * parallel_state.get_data_parallel_rank())
    model, optimizer, scheduler = build(args)
    megatron.protect(job, [model], optimizer, scheduler)  # +
    for step in job.steps(args.steps):  # + instead of range(args.steps)
        with job.attempt():  # +
            loss = attempt(model, optimizer, step)
            scheduler.step(increment=1)
        if job.applied and step % 20 == 0 and job.rank == 0:
            print(f"step {step:4}  loss {float(loss):.3f}", flush=True)
    print(f"rank {job.rank}: SHA-256 of its state: {digest(model, optimizer)}", flush=True)


if __name__ == "__main__":
    main()
