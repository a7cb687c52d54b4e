"""What the fabric-computes want of this host, merged. Pure.

Each fabric-compute says all that it wants in one message, so the newest one of each counts. While
an operator's ``stop`` stands, what was in force stays in force and nothing new comes into force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from telemetry.messages.documents import ComputeOrder, Fence
from telemetry.messages.envelope import BadMessageError

MOST_COMPUTES = 8
"""Two are usual. More owners of order topics are somebody's mistake."""


class Orders:
    """Orders by the name of the fabric-compute that gives them.

    Attributes:
        stopped: an operator's stop stands.
        stop_reason: why.
    """

    def __init__(self) -> None:
        self.stopped = False
        self.stop_reason = ""
        self._newest: dict[str, ComputeOrder] = {}
        self._in_force: dict[str, ComputeOrder] = {}

    def update(self, compute: str, order: ComputeOrder) -> bool:
        """Take an order; True: what is in force has changed.

        Raises:
            BadMessageError: from too many fabric-computes; nothing has changed.
        """
        if compute not in self._newest and len(self._newest) >= MOST_COMPUTES:
            known = ", ".join(sorted(self._newest))
            raise BadMessageError(
                f"order of {compute:.80}: there are {MOST_COMPUTES}: {known:.300}"
            )
        self._newest[compute] = order
        return self._apply()

    def remove(self, compute: str) -> bool:
        """A fabric-compute's order was cleared; True: what is in force has changed."""
        self._newest.pop(compute, None)
        return self._apply()

    def stop(self, *, stopped: bool, reason: str = "") -> bool:
        """An operator's stop, or its end; True: what is in force has changed."""
        self.stopped, self.stop_reason = stopped, reason if stopped else ""
        return self._apply()

    def _apply(self) -> bool:
        if self.stopped or self._in_force == self._newest:
            return False
        self._in_force = dict(self._newest)
        return True

    @property
    def computes(self) -> list[str]:
        """The fabric-computes whose orders are known."""
        return sorted(self._newest)

    def fences(self) -> dict[str, Fence]:
        """All fences in force, by id. The same id of two fabric-computes is the same fence.

        One of the two may not say whose it is, being of the version before.
        """
        fences: dict[str, Fence] = {}
        for _, order in sorted(self._in_force.items()):
            for fence in order.fences:
                if fence.id not in fences or fences[fence.id].uid is None:
                    fences[fence.id] = fence
        return fences

    def job_orders(self, job: str) -> Mapping[str, dict[str, Any]]:
        """Fabric-compute → its ``JobOrder`` for a job of this host."""
        return {
            compute: order.jobs[job]
            for compute, order in self._in_force.items()
            if job in order.jobs
        }
