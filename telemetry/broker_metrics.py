"""Metrics of the connection to the broker; no samples where none is configured."""

from __future__ import annotations

from collections.abc import Callable

from telemetry.metric_spec import Labelled, MetricSpec, Value, host_metric
from telemetry.snapshot import BrokerSnapshot, HostSnapshot


def _broker(
    name: str,
    kind: str,
    text: str,
    value: Callable[[BrokerSnapshot], Value],
) -> MetricSpec[HostSnapshot]:
    return host_metric(
        f"broker_{name}", kind, text, lambda s: None if s.broker is None else value(s.broker)
    )


def _refused(snapshot: HostSnapshot) -> Labelled:
    return {} if snapshot.broker is None else snapshot.broker.refused


def _oversize(snapshot: HostSnapshot) -> Labelled:
    return {} if snapshot.broker is None else snapshot.broker.oversize_bytes


def _conflicts(snapshot: HostSnapshot) -> Labelled:
    return {} if snapshot.broker is None else snapshot.broker.address_conflicts


BROKER_METRICS: tuple[MetricSpec[HostSnapshot], ...] = (
    _broker("connected", "gauge", "1 while the broker is connected.", lambda b: int(b.connected)),
    _broker(
        "connections_total",
        "counter",
        "Times that the broker was connected.",
        lambda b: b.connections,
    ),
    _broker(
        "outbox_messages",
        "gauge",
        "Events on disk that the broker has not acknowledged yet.",
        lambda b: b.outbox_messages,
    ),
    _broker(
        "outbox_unstored_messages",
        "gauge",
        "Events that wait for the disk; they are lost if the daemon is killed.",
        lambda b: b.outbox_unstored,
    ),
    _broker(
        "outbox_dropped_total",
        "counter",
        "Events given up because the outbox was full; kept across restarts of the daemon.",
        lambda b: b.outbox_dropped,
    ),
    _broker(
        "rejected_messages_total",
        "counter",
        "Messages that the broker refused, as by its access list (MQTT 5 says so).",
        lambda b: b.rejected,
    ),
    _broker(
        "packet_limit_bytes",
        "gauge",
        "Largest packet that the broker takes, as it announced or as was found out.",
        lambda b: b.packet_limit_bytes,
    ),
    host_metric(
        "broker_oversize_state_bytes",
        "gauge",
        "Size of a state that is not sent, for the broker does not take it; by kind of message.",
        _oversize,
        "kind",
    ),
    host_metric(
        "broker_refused_messages_total",
        "counter",
        "Messages of the broker and lines of the job socket refused, by reason.",
        _refused,
        "reason",
    ),
    _broker("jobs", "gauge", "Jobs whose fabric-run is on this host.", lambda b: b.jobs),
    _broker("fences", "gauge", "Fences that are applied on this host.", lambda b: b.fences),
    host_metric(
        "peer_address_conflicts",
        "gauge",
        "Addresses that the documents of two hosts both name, by those hosts.",
        _conflicts,
        ("peer", "other"),
    ),
)
