"""The Prometheus endpoint: serves `telemetry.metric_table` over the daemon's current snapshot."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from telemetry.metric_spec import Buckets, Labelled, MetricSpec, Value
from telemetry.metric_table import HOST_METRICS, LINK_METRICS
from telemetry.snapshot import HostSnapshot


class FabricCollector(Collector):
    """Turns the current `HostSnapshot` into metric families at each scrape."""

    def __init__(self, source: Callable[[], HostSnapshot]) -> None:
        """Args: source: gives the snapshot; called in the server's thread."""
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        snapshot = self._source()
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
    names = [*labels, spec.label] if spec.label else labels
    family = maker(spec.name, spec.text, labels=names)
    for values, sample in samples:
        if isinstance(sample, Mapping):
            for key, number in sorted(sample.items()):
                family.add_metric([*values, key], float(number))
        elif sample is not None and not isinstance(sample, Buckets):
            family.add_metric(values, float(sample))
    return family


def parse_listen(listen: str) -> tuple[str, int]:
    """``"127.0.0.1:9464"`` or ``"[::1]:9464"`` as (address, port); port 0 lets the kernel choose.

    Raises:
        ValueError: neither.
    """
    address, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{listen!r}: expected ADDRESS:PORT")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address or not address:
        raise ValueError(f"{listen!r}: expected ADDRESS:PORT, an IPv6 address in brackets")
    return address, int(port)


class MetricsServer:
    """Serves ``/metrics`` from a thread of its own until closed."""

    def __init__(self, listen: str, source: Callable[[], HostSnapshot]) -> None:
        """Bind and begin to serve.

        Args:
            listen: as `parse_listen`.
            source: gives the current snapshot; must be safe to call from another thread (return
                an immutable object that the daemon replaces).

        Raises:
            ValueError: ``listen`` is malformed.
            OSError: the address cannot be bound.
        """
        address, port = parse_listen(listen)
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(FabricCollector(source))
        self._server: WSGIServer
        self._thread: threading.Thread
        self._server, self._thread = start_http_server(port, address, registry=self.registry)
        self.port = int(self._server.server_port)
        self._address = (address, self.port)

    def close(self) -> None:
        """Stop serving and free the port."""
        stopping = threading.Thread(target=self._server.shutdown)
        stopping.start()
        # The server's thread looks for it twice a second; a connection wakes it at once.
        while stopping.is_alive():
            with contextlib.suppress(OSError):
                socket.create_connection(self._address, timeout=1).close()
            stopping.join(0.02)
        self._server.server_close()
        self._thread.join(timeout=5)
