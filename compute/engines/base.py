"""The one interface of all engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from telemetry.messages.documents import ComputeOrder


@dataclass(frozen=True)
class Action:
    """Something that was decided and stored. ``kind``: of the record, e.g. ``fence``.

    ``id`` is the same when the action is given again.
    """

    id: str
    kind: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Decided:
    """What one decision leaves to be carried out.

    ``orders``: host → all that it shall do from now on; they replace earlier ones.
    """

    orders: dict[str, ComputeOrder] = field(default_factory=dict)
    actions: Sequence[Action] = ()


class Engine(Protocol):
    """Carries out decisions. ``name`` is a label of metrics and logs."""

    name: str

    def apply(self, decided: Decided) -> None:
        """Begin to carry out. Returns at once and raises nothing."""

    def pause(self, paused: bool) -> None:
        """While paused nothing is begun; what waits goes on afterwards."""

    async def run(self) -> None:
        """Work until cancelled."""
