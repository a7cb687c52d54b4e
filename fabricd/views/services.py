"""What the daemon serves around its `Host`, as the views ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fabricd.clock.counts import ClockCounts
from fabricd.config.source import ConfigSource
from telemetry.metrics_server import EndpointState

if TYPE_CHECKING:
    from fabricd.escalate.service import Escalation


def _unread() -> str:
    return "not read"


@dataclass(frozen=True, slots=True)
class Services:
    """Asked each time; by default there is none of them.

    Attributes:
        start_wall_s: when the daemon began, CLOCK_REALTIME.
        source: of the configuration.
        escalation: the connection to the control fabric; None: there is none.
        endpoint: of the metrics.
        refused: service → inputs that it refused.
        receive_note: where the kernel's backlogs are read, or why not.
        payload_note: likewise the links' byte counters.
        ports_note: likewise the verbs ports.
        clock: counters of the clock service, whose restarts they outlive.
    """

    start_wall_s: float = 0.0
    source: ConfigSource | None = None
    escalation: Callable[[], Escalation | None] = lambda: None
    endpoint: Callable[[], EndpointState] = EndpointState
    refused: Mapping[str, Callable[[], int]] = field(default_factory=dict)
    receive_note: Callable[[], str] = _unread
    payload_note: Callable[[], str] = _unread
    ports_note: Callable[[], str] = lambda: ""
    clock: ClockCounts = field(default_factory=ClockCounts)
