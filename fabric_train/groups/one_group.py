"""The store of torch's process groups in a job, where the default group is the only one."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

REFUSAL = "process groups besides the default one are not protected"

_kept: list[dist.Store] = []  # torch keeps the half of a store that is not Python's


class OneGroupStore(dist.Store):
    """Serves ``init_process_group``, and refuses what another group would need after that.

    Each process has its own: a group of another backend would wait here for its peers in vain.
    """

    def __init__(self) -> None:
        super().__init__()
        _kept.append(self)
        self._store = dist.HashStore()

    def _open(self) -> dist.Store:
        if dist.is_initialized():
            raise RuntimeError(REFUSAL)
        return self._store

    # What torch calls. Names and arguments are those of Store.

    def set(self, key: str, value: str | bytes) -> None:
        """As that of ``HashStore``, as all below; raises ``RuntimeError`` after the start."""
        self._open().set(key, value)

    def get(self, key: str) -> bytes:
        """The value of ``key``, when it is there."""
        value: bytes = self._open().get(key)
        return value

    def add(self, key: str, amount: int) -> int:
        """Count up."""
        count: int = self._open().add(key, amount)
        return count

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        there: bool = self._open().check(keys)
        return there

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        """Return when all are there."""
        self._open().wait(keys, *timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """How long to wait."""
        self._store.set_timeout(timeout)
