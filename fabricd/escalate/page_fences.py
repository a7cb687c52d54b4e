"""Tells the NCCL plugin of the fences: it ends and refuses every connection to a fenced process."""

from __future__ import annotations

import time
from collections.abc import Collection

from fabricd.escalate.fences import FenceError
from fabricd.steer.page import PageError, SteerPage
from telemetry.messages.documents import Fence


class PageFences:
    """A `FenceApplier`. Plugins on this host read the steer page within milliseconds."""

    name = "steer page"

    def __init__(self, page: SteerPage) -> None:
        """Args: ``page``: published once already; written to in this thread."""
        self._page = page

    async def apply(self, fences: Collection[Fence], new: Collection[Fence]) -> None:  # noqa: ARG002
        """Write all of them. Raises `FenceError`."""
        try:
            self._page.set_fences([fence.incarnation for fence in fences], time.monotonic_ns())
        except PageError as error:
            raise FenceError(str(error)) from error
