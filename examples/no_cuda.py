"""What Megatron-core 0.16.1 asks of torch.cuda, answered by the CPU. Import it before Megatron.

Megatron names the device "cuda" in its own code, so without a GPU it does not even build a model.
Here "cuda" is the CPU. Nothing of Megatron is changed, and no result is made up: each call does on
the CPU what it would do on a GPU, or orders work between streams, of which a CPU has one.
For trying out and for tests; places are those of 0.16.1, below megatron/core.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

# jit.py compiles small functions by torch.compile: for kernels of a GPU, and for a C++ compiler.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class CudaIsTheCpu(TorchFunctionMode):
    """Of torch's functions that are told a device, or asked for one."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        # torch.tensor(…, device="cuda"): optimizer/optimizer.py 481, 485; optimizer/clip_grads.py
        # 103; transformer/utils.py (the causal mask); optimizer/grad_scaler.py.
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
        # tensor.cuda(): models/common/language_module, optimizer/grad_scaler.py 140.
        if func is Tensor.cuda:
            return args[0]
        # param.type() == "torch.cuda.FloatTensor": optimizer/optimizer.py 671 to 699,
        # optimizer/distrib_optimizer.py 361 to 435 and 582, optimizer/clip_grads.py 167.
        if func is Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


class Stream:
    """The one order of work that a CPU has.

    distributed/distributed_data_parallel.py 230 makes one for gradients, with several instances of
    the distributed optimizer.
    """

    def __init__(self, *_place: object, **_options: object) -> None:
        """Any device, any priority."""

    def wait_stream(self, _other: Stream) -> None:
        """All before is done: distributed/param_and_grad_buffer.py 422, 529."""


ONLY_STREAM = Stream()


@contextlib.contextmanager
def stream(_stream: Stream) -> Iterator[None]:
    """Work goes to another stream: distributed/param_and_grad_buffer.py 417."""
    yield


def at_once(call: Callable[[], None], **_options: object) -> None:
    """What waits for CUDA's start: tensor_parallel/random.py sets states of generators in one."""
    call()


def generator_state(device: object = None) -> Tensor:  # noqa: ARG001
    """Of "the GPU's" generator: tensor_parallel/random.py 55, 235, 238; dropout draws from it."""
    return torch.get_rng_state()


def set_generator_state(state: Tensor, device: object = None) -> None:  # noqa: ARG001
    """Of the same."""
    torch.set_rng_state(state)


def nothing(*_arguments: object, **_options: object) -> None:
    """There is nothing to wait for: torch.cuda.synchronize, nvtx ranges (utils.py 2186)."""


def install() -> None:
    """Put all of it in place, for this process's training thread."""
    cuda: Any = torch.cuda
    # device=torch.cuda.current_device(): tensor_parallel/layers.py, distributed/
    # param_and_grad_buffer.py 783 to 806, utils.py 631 (GlobalMemoryBuffer) and most others.
    cuda.current_device = lambda: CPU
    # tensor_parallel/random.py 66, 103: the generator of that device.
    cuda.default_generators = {CPU: torch.default_generator}
    cuda.manual_seed = torch.manual_seed  # tensor_parallel/random.py 237, 422
    cuda.get_rng_state = cuda.random.get_rng_state = generator_state
    cuda.set_rng_state = cuda.random.set_rng_state = set_generator_state
    cuda._lazy_call = at_once  # noqa: SLF001
    cuda._lazy_init = nothing  # noqa: SLF001
    cuda.synchronize = nothing
    cuda.nvtx.range_push = cuda.nvtx.range_pop = nothing
    cuda.Stream, cuda.stream = Stream, stream
    cuda.default_stream = cuda.current_stream = lambda *_device: ONLY_STREAM
    # Said with each dropout, for the CPU's generator is "the GPU's": tensor_parallel/random.py.
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
    CudaIsTheCpu().__enter__()


install()
