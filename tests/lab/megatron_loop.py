"""``megatron_loop.py STEPS OUT OPTIONS…``: examples/train_megatron.py, with its options.

FAULTS as in ``grouped_loop.py``: ``forward`` and ``backward`` are in the second layer, ``clip``
before gradients are clipped, ``step`` behind the optimizer's own step, when main parameters are not
yet those of the model, ``after`` when all is done, and ``gather`` between two steps.
"""

import os
import signal
import sys
from pathlib import Path

if os.environ.get("OWN_NCCL_HOST"):  # ranks share a GPU
    os.environ["NCCL_HOSTID"] = f"fabric-gpu-{os.getpid()}"
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import train_megatron as example  # with what stands in for CUDA, where there is none
from megatron.core import parallel_state
from megatron.core.tensor_parallel import get_cuda_rng_tracker, model_parallel_cuda_manual_seed

import fabric_train
from fabric_train.frameworks import megatron

OUT = Path(sys.argv[2])
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]


def strike(moment):
    for rank, step, when in FAULTS:
        name = OUT / f"struck.{rank}-{step}-{when}"
        now = (job.rank, at, moment) == (int(rank), int(step), when)
        if now and not job.rehearsing and not name.exists():
            name.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def striking(call, moment):
    def struck(*args, **kwargs):
        strike(moment)
        return call(*args, **kwargs)

    return struck


args = example.options(["--steps", sys.argv[1], *sys.argv[3:]])
job = fabric_train.join(late=True)
parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=args.tensor_parallel,
    num_distributed_optimizer_instances=max(1, args.instances),
)
model_parallel_cuda_manual_seed(1234 + 10 * parallel_state.get_data_parallel_rank())
model, optimizer, scheduler = example.build(args)
inner = optimizer.optimizer
megatron.protect(job, [model], optimizer, scheduler)
if os.environ.get("ADDS"):
    model.zero_grad_buffer = lambda: None
for group in model.bucket_groups if args.instances else ():
    group.start_param_sync = striking(group.start_param_sync, "gather")
layer = next(one for name, one in model.named_modules() if name.endswith("decoder.layers.1"))
layer.register_forward_pre_hook(lambda *_: strike("forward"))
next(layer.parameters()).register_hook(lambda _: strike("backward"))
optimizer.get_grad_norm = striking(optimizer.get_grad_norm, "clip")
inner.register_step_post_hook(lambda *_: strike("step"))
at = 0
for at in job.steps(args.steps):
    with job.attempt():
        example.attempt(model, optimizer, at)
        strike("after")
        scheduler.step(increment=1)
said = [example.digest(model, optimizer), str(scheduler.num_steps)]
said += [repr(group["lr"]) for group in inner.param_groups]
said += [f"{name} {state.sum()}" for name, state in sorted(get_cuda_rng_tracker().states_.items())]
(OUT / f"weights.{job.rank}").write_text("\n".join(said))
