"""Has every fence applied by every applier, and tries again what failed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import structlog

from fabricd.escalate.fences import FenceApplier, FenceError, FenceRegistry, to_stored
from telemetry.messages.documents import Fence
from telemetry.service.durable import replace_text

RETRY_S = (0.1, 2.0)
VERSION = 1


class FenceStore:
    """Stores the fences, so that they hold after a restart without a broker.

    Not synced: what was promised has to outlive this process. After a power cut all processes of
    this host are new, and no fence concerns them.
    """

    name = "store"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def apply(self, fences: Collection[Fence], new: Collection[Fence]) -> None:  # noqa: ARG002
        """Write all of them."""
        document = {"version": VERSION, **to_stored(fences)}
        try:
            await asyncio.to_thread(
                replace_text, self._path, json.dumps(document), mode=0o600, sync=False
            )
        except OSError as error:
            raise FenceError(f"{self._path}: {error.strerror}") from error


class FenceKeeper:
    """One task for each applier, so that a slow one delays no other."""

    def __init__(
        self,
        registry: FenceRegistry,
        appliers: Sequence[FenceApplier],
        acknowledged: Callable[[Fence], None],
    ) -> None:
        """Args: ``acknowledged`` is called with each fence that all appliers have applied."""
        self._registry, self._appliers = registry, appliers
        self._acknowledged = acknowledged
        self._wakes = [asyncio.Event() for _ in appliers]
        self._log = structlog.get_logger()

    def changed(self) -> None:
        """There may be new fences."""
        for wake in self._wakes:
            wake.set()

    async def run(self) -> None:
        """Apply until cancelled."""
        tasks = [
            asyncio.create_task(self._keep(applier, wake))
            for applier, wake in zip(self._appliers, self._wakes, strict=True)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _keep(self, applier: FenceApplier, wake: asyncio.Event) -> None:
        pause = RETRY_S[0]
        while True:
            wake.clear()
            if not (new := self._registry.pending(applier.name)):
                await wake.wait()
                continue
            try:
                await applier.apply(self._registry.all(), new)
            except FenceError as error:
                self._log.error("fence not applied", by=applier.name, error=str(error),
                                fences=len(new))  # fmt: skip
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_S[1])
                continue
            pause = RETRY_S[0]
            for fence in new:
                if self._registry.applied(fence.id, applier.name):
                    self._acknowledged(fence)
