"""What a metric of the Prometheus endpoint is: `telemetry.metric_table` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from telemetry.snapshot import HostSnapshot

S = TypeVar("S")
Value = float | int | None
Labelled = Mapping[Any, float | int]
"""By the value of the one label (a text), or the values of several (a tuple of texts)."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram's value: cumulative counts by upper bound, ending with ``+Inf``, and the sum."""

    counts: tuple[tuple[str, float], ...]
    sum: float


@dataclass(frozen=True, slots=True)
class MetricSpec(Generic[S]):
    """One metric.

    ``value`` gives a number, None for "not known" (no sample), with ``label`` set a number for each
    value of that label (of those labels, where it names several), or `Buckets` for a histogram.
    """

    name: str
    kind: str
    """counter, gauge or histogram."""
    text: str
    value: Callable[[S], Value | Labelled | Buckets]
    label: str | tuple[str, ...] = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its own labels."""
        return (self.label,) if isinstance(self.label, str) and self.label else tuple(self.label)


def host_metric(
    name: str,
    kind: str,
    text: str,
    value: Callable[[HostSnapshot], Value | Labelled],
    label: str | tuple[str, ...] = "",
) -> MetricSpec[HostSnapshot]:
    """A metric of the host: ``name`` without ``fabricd_``; the rest as of `MetricSpec`."""
    return MetricSpec(f"fabricd_{name}", kind, text, value, label)
