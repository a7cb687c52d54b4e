"""In which order DDP sums gradients: it says so itself, when it has ordered its buckets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor


class BucketOrder:
    """What DDP's reducer has broadcast of its buckets while ``rehearsing``."""

    def __init__(self, rehearsing: Callable[[], bool]) -> None:
        self._rehearsing = rehearsing
        self._order = hashlib.sha256()

    def note(self, tensor: Tensor) -> None:
        """DDP broadcasts ``tensor``: places of parameters are integers."""
        if self._rehearsing() and tensor.dtype == torch.int32:
            self._order.update(repr(tensor.tolist()).encode())

    @property
    def digest(self) -> str:
        """Alike where the buckets are."""
        return self._order.hexdigest()[:16]
