"""The daemon's services around its `Host`, for status, metrics and requests."""

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
    """Each function is called when a view is made. The defaults stand for absent services.

    Attributes:
        start_wall_s: when the daemon began, CLOCK_REALTIME.
        source: of the configuration.
        escalation: the connection to the control fabric; None: no broker is configured.
        endpoint: state of the metrics endpoint.
        refused: service → count of inputs that it refused.
        receive_note: where the kernel's receive backlogs are read, or why they are not.
        payload_note: the same for the links' byte counters.
        ports_note: the same for the verbs ports.
        clock: counters of the clock service; they outlive its restarts.
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
