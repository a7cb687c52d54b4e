"""DeepSpeed with ZeRO in a loop of one's own: buddies keep what each rank holds alone.

::

    job = fabric_train.join(late=True)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=CONFIG)
    protect(job, engine)
    for step in job.steps(1000):
        with job.attempt():
            engine.backward(loss(engine(batch(step, job.rank))))
            engine.step()

ZeRO keeps what a rank trains in flat partitions, one for each group of parameters. It makes the
model's parameters of those of all ranks: stages 1 and 2 behind each step, stage 3 in each pass. So
partitions, and what the optimizer keeps for them, are all that a replacement has to get.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from fabric_train.frameworks.refusal import RefusedTrainingError
from fabric_train.frameworks.versions import check_version
from fabric_train.frameworks.zero import Stage1And2, Stage3

if TYPE_CHECKING:
    from fabric_train.rank.job import Job

_STAGES = {
    "DeepSpeedZeroOptimizer": Stage1And2,
    "DeepSpeedZeroOptimizer_Stage3": Stage3,
}
_COUNTERS = (
    "global_steps", "global_samples", "micro_steps", "skipped_steps", "_unmanaged_backward_count",
    "_step_applied", "_running_engine_step", "_is_gradient_accumulation_boundary",
)  # fmt: skip
_SCALE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def protect(job: Job, engine: Any, **options: Any) -> None:
    """As ``job.protect``, for ``engine``, which ``deepspeed.initialize`` gave, and its schedule.

    ``options``: those of ``job.protect``, and further parts. Raises as that does,
    ``UntestedVersionError``, ``RefusedTrainingError``.
    """
    import deepspeed

    check_version("deepspeed", deepspeed.__version__)
    for text in refusals(engine, job.world):
        raise RefusedTrainingError(f"DeepSpeed with {text}: this is not taken over")
    zero = engine.optimizer
    parts = {
        "model": engine.module, "optimizer": zero.optimizer, "counters": EngineCounters(engine),
        "shards": _STAGES[type(zero).__name__](engine, job),
    }  # fmt: skip
    if engine.lr_scheduler is not None:
        parts["schedule"] = engine.lr_scheduler
    job.protect(**parts, **options)


def refusals(engine: Any, world: int) -> Iterator[str]:
    """What of ``engine`` cannot be taken over exactly, or was not tested."""
    zero = engine.optimizer
    if type(engine).__name__ != "DeepSpeedEngine":
        yield f"a {type(engine).__name__}"
    if type(zero).__name__ not in _STAGES:
        yield f"{type(zero).__name__} instead of ZeRO 1, 2 or 3"
        return
    if any(getattr(zero, one, False) for one in ("cpu_offload", "offload_optimizer")):
        yield "an optimizer that is offloaded"
    if getattr(zero, "offload_param", False):
        yield "parameters that are offloaded"
    if engine.has_moe_layers:
        yield "experts (MoE)"
    if any(dist.get_world_size(group) != world for group in _groups(zero)):
        yield "partitions over fewer ranks than the job has (tensor or sequence parallel, MiCS)"
    if engine.zero_hpz_partition_size() > 1:
        yield "zero_hpz_partition_size"
    if any((
        engine.zero_quantized_weights(), engine.zero_quantized_nontrainable_weights(),
        engine.zero_quantized_gradients(),
    )):  # fmt: skip
        yield "quantized weights or gradients (ZeRO++)"
    if zero.torch_autocast_gradscaler is not None:
        yield "torch_autocast of 16-bit floats"
    if engine.is_deepcompile_enabled():
        yield "DeepCompile"


def _groups(zero: Any) -> list[Any]:
    if hasattr(zero, "real_dp_process_group"):
        return [zero.dp_process_group, *zero.real_dp_process_group]
    groups = [zero._get_sub_group_process_group(one) for one in range(len(zero.fp16_groups))]
    return [zero.dp_process_group, *groups]


class EngineCounters:
    """What the engine counts, and its scale of the loss."""

    def __init__(self, engine: Any) -> None:
        self._of = {
            "engine": (engine, [one for one in _COUNTERS if hasattr(engine, one)]),
            "scale": (
                engine.optimizer.loss_scaler,
                [one for one in _SCALE if hasattr(engine.optimizer.loss_scaler, one)],
            ),
        }

    def state_dict(self) -> dict[str, Any]:
        """By name."""
        return {
            f"{of}/{name}": getattr(owner, name)
            for of, (owner, names) in self._of.items()
            for name in names
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be as ``state_dict`` said."""
        for of, (owner, names) in self._of.items():
            for name in names:
                setattr(owner, name, state[f"{of}/{name}"])
