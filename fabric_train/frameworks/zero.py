"""What ZeRO of DeepSpeed keeps of a step in one process, by its stages.

Their step prepares, clips and applies the gradient of one flat partition after the other, between
collectives. Here it prepares all of them first. Then comes the gate, and one step of the optimizer
for all. What it makes of an element is what it makes in theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fabric_train.state.flat_shards import FlatShards
from fabric_train.state.structure import ChangedError

if TYPE_CHECKING:
    from fabric_train.rank.job import Job

_MODULE = "deepspeed.runtime.zero.stage_1_and_2"
_TRACES = "deepspeed.runtime.zero.partitioned_param_coordinator"


class ZeroShards(FlatShards):
    """The flat partitions that one rank trains: ``parts``, in the order of their groups."""

    def __init__(
        self, engine: Any, job: Job, parts: Sequence[Tensor], frozen: Mapping[str, Tensor],
        made: Sequence[Tensor],
    ) -> None:  # fmt: skip
        shards = {f"partition {place}": one for place, one in enumerate(parts)}
        super().__init__({**shards, **frozen}, (job.rank,), made)
        self._of = (engine, engine.optimizer)  # a tuple: an engine is a module, and none of ours
        self._parts = list(parts)
        self._holding = False  # their step is under way, and applies nothing
        self._stepping = False
        theirs = engine.optimizer.step
        engine.optimizer.step = lambda *_, **__: self._step(theirs)

    @property
    def zero(self) -> Any:
        """DeepSpeed's ZeRO optimizer."""
        return self._of[1]

    def _step(self, theirs: Callable[[], object]) -> None:
        """In place of ``theirs``, the step of the ZeRO optimizer."""
        held: dict[int, Tensor | None] = {}

        def hold(place: int) -> None:
            held[place] = self._parts[place].grad

        self.zero._optimizer_step = hold
        self._holding = True
        try:
            theirs()
        finally:
            self._holding = False
            del self.zero._optimizer_step  # that of its class again
        if not held:  # an overflow: their step is skipped, on all ranks
            return
        for place, gradient in held.items():
            self._parts[place].grad = gradient
        self._stepping = True
        try:
            self.zero.optimizer.step()  # begins with the gate
        finally:
            self._stepping = False
        for one in self._parts:
            one.grad = None
        self._link_states()

    def _link_states(self) -> None:
        """Parameters find what the optimizer keeps for them, where DeepSpeed wants that."""

    def check(self) -> None:
        """An attempt has all micro batches of a step. Raises ``ChangedError``."""
        engine, zero = self._of
        if engine.managed_gradient_accumulation():
            left = engine.micro_steps % engine.gradient_accumulation_steps()
        else:
            left = engine._unmanaged_backward_count
        left = left or any(one is not None for one in zero.averaged_gradients.values())
        if left and not self._stepping:
            raise ChangedError(
                "an attempt ends with gradients that DeepSpeed has not applied: they would be "
                "missing after a takeover. Run all gradient_accumulation_steps, forward, backward "
                "and engine.step(), inside of one attempt"
            )

    def forget_attempt(self) -> None:
        """No gradient is left, and no pass is under way."""
        engine, zero = self._of
        zero.zero_grad()
        hooks = zero._backward_hook_state
        hooks.reset_for_new_step()
        hooks.backward_active_depth = hooks.remaining_grad_acc_hooks = 0
        engine._running_engine_backward, engine._running_engine_backward_count = False, 0
        for one in self._parts:
            one.grad = None


class Stage1And2(ZeroShards):
    """Parameters of the model lie in flat buffers, of which each rank makes a part anew."""

    def __init__(self, engine: Any, job: Job) -> None:
        zero = engine.optimizer
        made = [one for group in zero.bit16_groups for one in group]
        super().__init__(engine, job, zero.single_partition_of_fp32_groups, {}, made)
        module: Any = sys.modules[_MODULE]
        theirs = module.all_gather_dp_groups

        def gather(*args: Any, **named: Any) -> None:
            if not self._holding:
                theirs(*args, **named)

        module.all_gather_dp_groups = gather

    def _link_states(self) -> None:
        self.zero._lazy_init_hp_params_optimizer_state()

    def forget_attempt(self) -> None:
        """As of all stages."""
        super().forget_attempt()
        zero = self.zero
        for bucket in zero.ipg_buckets.values():
            bucket.clear()
        for kept in (zero.averaged_gradients, zero.all_grad_tensors):
            for place in kept:
                kept[place] = None
        for params in zero.previous_reduced_grads.values():
            params.clear()
        zero.extra_large_param_to_reduce.clear()
        zero.params_already_reduced[:] = [False] * len(zero.params_already_reduced)
        zero._release_ipg_buffers()
        zero.reset_partition_gradient_structures()
        zero.micro_step_id = sys.modules[_MODULE].INITIAL_MICRO_STEP_ID

    def make_whole(self, group: Any, rank: int) -> None:
        """Each rank gives its part of the parameters, in their own precision."""
        zero = self.zero
        for place, part in enumerate(self._parts):
            parts = [one.data for one in zero.parallel_partitioned_bit16_groups[place]]
            parts[rank].copy_(part.data)
            outputs = [one.view(torch.uint8) for one in parts]
            group.allgather([outputs], [outputs[rank].clone()]).wait()
            zero._update_model_bit16_weights(place)
        zero._hp_optimizer_states_linked = False  # a takeover may have made them anew
        if all(zero.optimizer.state.get(part) for part in self._parts):
            zero._lazy_init_hp_params_optimizer_state()


class Stage3(ZeroShards):
    """Parameters are partitioned, too, and gathered for each layer in each pass."""

    def __init__(self, engine: Any, job: Job) -> None:
        zero = engine.optimizer
        trained = {id(one) for group in zero.fp16_groups for one in group}
        named = list(engine.module.named_parameters())
        frozen = {
            f"frozen {place}": one.ds_tensor
            for place, (_, one) in enumerate(named)
            if id(one) not in trained
        }
        zero._clear_fp32_optimizer_param_groups()
        zero._set_fp32_optimizer_param_groups()  # they do so for each step
        zero.persistent_parameters = []  # gathered when a pass needs them, as all others
        for part, padding in _paddings(zero, job.rank):
            part.data[padding] = (
                0  # no value that is used; but as it is, it may be equal to nothing
            )
        made = [one for _, one in named]
        super().__init__(engine, job, zero.fp32_partitioned_groups_flat, frozen, made)
        module: Any = sys.modules[_TRACES]
        theirs = module.assert_ints_same_as_other_ranks

        def compare(ints: Any) -> None:
            if not job.rehearsing:  # each process is alone then, and traces its passes
                theirs(ints)

        module.assert_ints_same_as_other_ranks = compare

    def forget_attempt(self) -> None:
        """As of all stages; parameters that were gathered are released."""
        super().forget_attempt()
        engine, zero = self._of
        for bucket in zero.ipg_buckets.values():
            bucket.clear_params()
        zero.averaged_gradients = {}
        for name in zero.params_already_reduced:
            zero.params_already_reduced[name] = False
        zero.inf_or_nan_tracker.zero_()
        zero.parameter_offload.release_backward_leftovers()
        zero._partition_all_parameters()
        zero._get_param_coordinator().hierarchy = 0
        for one in _ordered(engine.module):
            one._in_forward = False

    def make_whole(self, _group: Any, _rank: int) -> None:
        """The partitions of parameters follow those of 32 bits; all else is gathered in a pass."""
        for place in range(len(self._parts)):
            self.zero._reassign_or_swap_out_partitioned_parameters(place)


def _paddings(zero: Any, rank: int) -> Iterator[tuple[Tensor, slice]]:
    """What of each partition is behind the end of a parameter: memory that nobody has written."""
    for params, part in zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True):
        begin = 0
        for one in params:
            size = one.ds_tensor.ds_numel
            used = min(size, max(0, one.ds_numel - rank * size))
            yield part, slice(begin + used, begin + size)
            begin += size


def _ordered(module: torch.nn.Module) -> Iterator[Any]:
    """What DeepSpeed keeps the parameters of each module in."""
    for one in module.modules():
        if hasattr(one._parameters, "_in_forward"):
            yield one._parameters
