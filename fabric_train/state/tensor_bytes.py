"""The bytes of a tensor, to be sent or hashed."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def flat(tensor: Tensor) -> Tensor:
    """Its bytes in host memory: the tensor's own where it lies there, and in order."""
    return tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8)


def memory(chunk: Tensor) -> memoryview:
    """The bytes of what `flat` has made; ``chunk`` has to live as long."""
    # Not Tensor.numpy(): numpy need not be installed.
    return memoryview((ctypes.c_ubyte * chunk.numel()).from_address(chunk.data_ptr())).cast("B")
