"""What TorchTitan 0.3.0 asks of a GPU, answered by a CPU: imported before TorchTitan is.

Nothing else of it is changed: models, parallelize functions, loss, optimizers, schedules, loaders
and ``train_step`` are its own. Where there is a GPU none of this is needed.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import scaled_dot_product_attention


class CpuDevice(types.ModuleType):
    """The device module, ``torchtitan.tools.utils.device_module``: `torch.cpu` and what it lacks.

    ``components/metrics.py`` reads name and memory of the device for its log alone.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    @staticmethod
    def get_device_name(_device: object) -> str:
        """No GPU that ``get_peak_flops`` knows: it assumes one."""
        return "cpu"

    @staticmethod
    def get_device_properties(_device: object) -> types.SimpleNamespace:
        """A size that is no 0: it is divided by."""
        return types.SimpleNamespace(total_memory=1 << 30)

    @staticmethod
    def memory_stats(_device: object) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    @staticmethod
    def reset_peak_memory_stats() -> None:
        """Nothing is counted."""

    @staticmethod
    def empty_cache() -> None:
        """Nothing is cached."""


def choose_device() -> None:
    """``tools/utils.py`` takes "cuda" where torch finds no accelerator."""
    module = CpuDevice("torch.cpu")
    utils: Any = torch._utils
    utils._get_available_device_type = lambda: "cpu"
    utils._get_device_module = lambda _kind: module


class NoKernels(types.ModuleType):
    """``distributed/minimal_async_ep/kernels.py``, which imports triton: a CPU build has none.

    A dispatcher launches them that nothing here uses; others import it with their own.
    """

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def dense_attention(q: Any, k: Any, v: Any, **how: Any) -> tuple[torch.Tensor, None]:
    """FlexAttention: torch has no backward pass of it on a CPU.

    The same mask, as a tensor of all places. Shapes are ``[batch, heads, places, width]``.
    """
    mask = how["block_mask"]
    places = create_mask(mask.mask_mod, q.shape[0], 1, q.shape[2], k.shape[2], device=q.device)
    return scaled_dot_product_attention(
        q, k, v, attn_mask=places, scale=how["scale"], enable_gqa=how["enable_gqa"]
    ), None


def sums_not_means() -> None:
    """FSDP2 asks for a mean where it may; gloo has none. TorchTitan itself divides by tokens."""
    from torch.distributed.fsdp import FSDPModule

    titan: Any = importlib.import_module("torchtitan.distributed.fsdp")
    before = titan.disable_fsdp_gradient_division

    def also_sum(model: torch.nn.Module) -> None:
        before(model)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)

    titan.disable_fsdp_gradient_division = also_sum


def replace() -> None:
    """All of the above."""
    choose_device()
    kernels = "torchtitan.distributed.minimal_async_ep.kernels"
    sys.modules[kernels] = NoKernels(kernels)
    attention: Any = importlib.import_module("torchtitan.models.common.attention")
    attention.FlexAttention._compiled_flex_attn = dense_attention
    # Compiled by torch, it takes a C++ compiler and half a minute in each process.
    attention._compiled_create_block_mask = attention.create_block_mask
    sums_not_means()


replace()
