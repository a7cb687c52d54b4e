"""`telemetry.metric_table` over the daemon's current snapshot, in Prometheus' formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from telemetry.link_metrics import LINK_METRICS
from telemetry.metric_spec import Buckets, Labelled, MetricSpec, Value
from telemetry.metric_table import HOST_METRICS
from telemetry.service.shown import escaped
from telemetry.snapshot import HostSnapshot

OPENMETRICS = "application/openmetrics-text"


class FabricCollector(Collector):
    """Turns a `HostSnapshot` into metric families."""

    def __init__(self, snapshot: HostSnapshot) -> None:
        """Args: snapshot: what is shown."""
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        snapshot = self._snapshot
        for link_spec in LINK_METRICS:
            samples = [
                ([link.netdev, str(link.rail)], link_spec.value(link)) for link in snapshot.links
            ]
            yield _family(link_spec, ["link", "rail"], samples)
        for host_spec in HOST_METRICS:
            yield _family(host_spec, [], [([], host_spec.value(snapshot))])

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not need a snapshot."""
        return []


_Sample = Value | Labelled | Buckets


def _family(
    spec: MetricSpec[Any], labels: list[str], samples: list[tuple[list[str], _Sample]]
) -> Metric:
    if spec.kind == "histogram":
        histogram = HistogramMetricFamily(spec.name, spec.text, labels=labels)
        for values, sample in samples:
            if isinstance(sample, Buckets):
                histogram.add_metric(values, buckets=list(sample.counts), sum_value=sample.sum)
        return histogram
    maker = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    family = maker(spec.name, spec.text, labels=[*labels, *spec.labels])
    for values, sample in samples:
        if isinstance(sample, Mapping):
            for key, number in sorted(sample.items()):
                own = [key] if isinstance(key, str) else list(key)
                # Names of switches and hosts are what others say.
                family.add_metric([*values, *map(escaped, own)], float(number))
        elif sample is not None and not isinstance(sample, Buckets):
            family.add_metric(values, float(sample))
    return family


def render(snapshot: HostSnapshot, accept: str = "") -> tuple[bytes, str]:
    """All metrics in the format that a scraper asks for.

    Args:
        snapshot: what is shown.
        accept: the request's Accept field: Prometheus' text format unless it asks for OpenMetrics.

    Returns:
        The body and its content type.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FabricCollector(snapshot))
    encode, content_type = choose_encoder(OPENMETRICS if OPENMETRICS in accept else "")
    return encode(registry), content_type
