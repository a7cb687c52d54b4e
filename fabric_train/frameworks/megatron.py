"""Megatron-core: which of its state is where, and who holds the same.

::

    job = fabric_train.join(late=True)
    parallel_state.initialize_model_parallel(…)
    model, optimizer, scheduler = …  # Megatron's DDP, get_megatron_optimizer, its scheduler
    megatron.protect(job, [model], optimizer, scheduler)

What the state of a rank is, and how it comes to a replacement:

- parameters and buffers of the model: from a rank of the same data parallel group;
- main parameters, which no module has, and what optimizers keep: likewise; with the distributed
  optimizer, whose shards differ in that group, from the same place of another of its instances;
- the scheduler, the gradient scaler: likewise;
- the tracker of random generators: each rank has its own, kept by agents;
- gradients, in buffers of their own: never. What an attempt that does not count leaves of them is
  cleared, and so is how far their sums were;
- parameters that the distributed optimizer has just stepped: each rank has a part, and its
  all-gather behind the step is done at the start of the next one, when no rank can be missing.

Scratch memory (``GlobalMemoryBuffer``), timers and the state machine that repeats suspicious
results hold nothing that a step reads from the one before.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fabric_train.frameworks.refusal import RefusedTrainingError
from fabric_train.frameworks.versions import check_version
from fabric_train.state.structure import ChangedError

if TYPE_CHECKING:
    from fabric_train.rank.job import Job


def protect(
    job: Job, models: Sequence[Any], optimizer: Any, scheduler: Any = None, **more: Any
) -> None:
    """``job.protect`` of all that a Megatron training has; ``more`` as there.

    ``models``: each chunk of the model, a ``DistributedDataParallel`` of Megatron. ``optimizer``:
    of ``get_megatron_optimizer``. ``scheduler``: an ``OptimizerParamScheduler``, or None. Raises
    ``RefusedTrainingError`` where a takeover would not be exact, ``UntestedVersionError``.
    """
    check_version("megatron-core", importlib.import_module("megatron.core").__version__)
    chained = list(getattr(optimizer, "chained_optimizers", [optimizer]))
    if reason := _why_not(models, chained):
        raise RefusedTrainingError(f"this Megatron training cannot be taken over: {reason}")
    chunks = {f"model{place or ''}": model for place, model in enumerate(models)}
    optimizers = {
        f"optimizer{place or ''}": one.optimizer
        for place, one in enumerate(chained)
        if one.optimizer is not None
    }
    scalers = [getattr(one, "grad_scaler", None) for one in chained]
    beside = {f"scaler{at or ''}": one for at, one in enumerate(scalers) if one is not None}
    if scheduler is not None:
        beside["scheduler"] = SchedulerState(scheduler)
    sharded = any(model.ddp_config.use_distributed_optimizer for model in models)
    gather = _ParameterGather(models) if sharded else None
    job.protect(
        **chunks, **optimizers, **beside, buffers=GradientBuffers(models),
        replicas=replicas([*chunks], [*optimizers], sharded=sharded),
        local={"random generators of Megatron": RandomTracker(), **more.pop("local", {})},
        gather=gather, **more,
    )  # fmt: skip
    if gather is not None:
        gather.begin(job)


def replicas(models: Sequence[str], optimizers: Sequence[str], *, sharded: bool) -> dict[str, Any]:
    """Of each of these parts, this rank's group of those that hold the same.

    ``sharded``: the distributed optimizer is in use.
    """
    state = importlib.import_module("megatron.core.parallel_state")
    dist = importlib.import_module("torch.distributed")
    whole = state.get_data_parallel_group(with_context_parallel=True)
    instances = state.get_inter_distributed_optimizer_instance_group() if sharded else whole

    def ranks(group: Any) -> list[list[int]]:
        return [list(dist.get_process_group_ranks(group))]

    return {name: ranks(whole) for name in models} | {name: ranks(instances) for name in optimizers}


def _why_not(models: Sequence[Any], chained: Sequence[Any]) -> str:
    """What of this training is not supported; "": nothing."""
    for model in models:
        kind = type(model)
        if kind.__name__ != "DistributedDataParallel" or not kind.__module__.startswith("megatron"):
            return f"its model is a {kind.__module__}.{kind.__qualname__}, not Megatron's DDP"
        config = model.ddp_config
        if config.use_distributed_optimizer and config.overlap_param_gather:
            return "overlap_param_gather: a gather that fails would leave parameters of two steps"
        if config.use_distributed_optimizer and config.num_distributed_optimizer_instances < 2:
            return (
                "the distributed optimizer has one instance, so no other rank has a copy of a "
                "shard of it: num_distributed_optimizer_instances=2 or more"
            )
        if model.expert_parallel_buffers:
            return "experts are spread over ranks (not built)"
    if any(getattr(one.config, "optimizer_cpu_offload", False) for one in chained):
        return "optimizer_cpu_offload (not built)"
    return ""


class SchedulerState:
    """An ``OptimizerParamScheduler``, whose ``load_state_dict`` adds steps to those it has made."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        state: dict[str, Any] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be as the scheduler that gave ``state``: as many steps, and its own settings."""
        self._scheduler.__dict__.update(state)


class RandomTracker:
    """Megatron's states of random generators: of tensor parallel layers, of experts, of data."""

    def __init__(self) -> None:
        random = importlib.import_module("megatron.core.tensor_parallel.random")
        self._tracker = random.get_cuda_rng_tracker()

    def state_dict(self) -> dict[str, Any]:
        """All states, by name."""
        return dict(self._tracker.get_states())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be as the tracker that gave ``state``."""
        self._tracker.set_states({name: one.clone() for name, one in state.items()})


class GradientBuffers:
    """Gradients of ``models``: nothing of them is kept, and none is left of a lost attempt."""

    def __init__(self, models: Sequence[Any]) -> None:
        self._models = models
        made = (one for model in models for one in model.modules())
        # Made of the configuration alone, and read by each attention.
        self._covered = {id(one.inv_freq) for one in made if hasattr(one, "inv_freq")}
        # The optimizer has copies or parts of these, or another rank's has them.
        trained = [one for model in models for one in model.params_with_grad]
        self._covered |= {id(one) for one in trained}
        self._least = min(trained, key=lambda one: one.numel(), default=None)
        self._begins = False
        for model in models:
            model.register_forward_pre_hook(self._check)

    def state_dict(self) -> dict[str, Any]:
        """Nothing. It is asked for when an attempt begins."""
        self._begins = True
        return {}

    def _check(self, *_: object) -> None:
        begins, self._begins = self._begins, False
        if begins and self._least is not None and bool(self._least.main_grad.any()):
            raise ChangedError(
                "a backward pass adds to gradients of the attempt before: they would be missing "
                "after a takeover. Call model.zero_grad_buffer() before it"
            )

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        """Nothing."""

    def forget_attempt(self) -> None:
        """Clear gradients, and what is known of sums that were under way.

        Megatron would take an outstanding one for its own, and half a count for that of a step.
        """
        for model in self._models:
            for group in model.bucket_groups:
                group.grad_reduce_handle = None
                if len(group.per_param_grad_ready_counts) < len(group.params):
                    group.per_param_grad_ready_counts = {}
            # Whole counts of the first attempt stay, here and in a replacement's rehearsal: from
            # then on sums begin in the order of the backward pass, which all ranks have to share.
            model.zero_grad_buffer()

    def covers(self, one: object) -> bool:
        """Parameters that a protected optimizer trains by other tensors, and constants."""
        return id(one) in self._covered


class _ParameterGather:
    """The all-gather behind the distributed optimizer's step, at the start of the next step."""

    def __init__(self, models: Sequence[Any]) -> None:
        self._gathers = [model.start_param_sync for model in models]
        self._models = models

    def begin(self, job: Job) -> None:
        """From now on what the optimizer asks for behind its step waits for the next one."""
        for model, gather in zip(self._models, self._gathers, strict=True):

            def later(*_: Any, gather: Any = gather, **options: Any) -> None:
                if not job.applied:
                    gather(**options)

            model.start_param_sync = later

    def __call__(self) -> None:
        """Gather, on all ranks."""
        for gather in self._gathers:
            gather()
