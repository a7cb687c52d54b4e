"""Metrics of a host's jobs together, from the stats pages of their plugins."""

from __future__ import annotations

from telemetry.metric_spec import MetricSpec, host_metric
from telemetry.snapshot import HostSnapshot

PLUGIN_METRICS: tuple[MetricSpec[HostSnapshot], ...] = (
    host_metric(
        "plugin_processes",
        "gauge",
        "Job processes alive that use the plugin.",
        lambda s: s.plugin.processes,
    ),
    host_metric(
        "plugin_following_processes",
        "gauge",
        "Of these, the ones that follow the steer page.",
        lambda s: s.plugin.following_steer,
    ),
    host_metric(
        "plugin_foreign_rails",
        "gauge",
        "Rails of these that no link of this host is called by: neither counted nor steered.",
        lambda s: s.plugin.foreign_rails,
    ),
    host_metric(
        "plugin_errors_total",
        "counter",
        "Errors that plugins returned to NCCL, as their pages claim.",
        lambda s: s.plugin.errors,
    ),
    host_metric(
        "plugin_confirmed_errors_total",
        "counter",
        "Such errors that two users or root claim, or that a fault seen by this host explains.",
        lambda s: s.plugin.confirmed_errors,
    ),
    host_metric(
        "plugin_error_claim_uid",
        "gauge",
        "The user who claimed an error that nothing has confirmed, for five minutes.",
        lambda s: s.plugin.error_claim_uid,
    ),
    host_metric(
        "plugin_refused_peers_total",
        "counter",
        "Connections that plugins dropped: bad secret, proof, version or shape.",
        lambda s: s.plugin.refused_peers,
    ),
    host_metric(
        "plugin_refused_fenced_total",
        "counter",
        "Connections that plugins refused because one end is fenced.",
        lambda s: s.plugin.refused_fenced,
    ),
    host_metric(
        "plugin_steer_rejected_total",
        "counter",
        "Steer pages that plugins refused: corrupt, of a wrong size or version, or not trusted.",
        lambda s: s.plugin.steer_rejected,
    ),
)
