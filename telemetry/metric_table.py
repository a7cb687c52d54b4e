"""The vocabulary of the Prometheus endpoint: one table of metrics over a `HostSnapshot`.

docs/reference/metrics.md describes each, and those of `telemetry.link_metrics` (a test compares
both). Base units; counters end in ``_total``.
"""

from __future__ import annotations

from telemetry.broker_metrics import BROKER_METRICS
from telemetry.clock_metrics import CLOCK_METRICS
from telemetry.metric_spec import MetricSpec, host_metric
from telemetry.plugin_metrics import PLUGIN_METRICS
from telemetry.snapshot import HostSnapshot

MODES = ("observe", "steer", "migrate")

HOST_METRICS: tuple[MetricSpec[HostSnapshot], ...] = (
    host_metric(
        "build_info",
        "gauge",
        "Always 1; the version is in the label.",
        lambda s: {s.daemon.version or "unknown": 1},
        "version",
    ),
    host_metric(
        "mode",
        "gauge",
        "1 for the mode in effect, 0 for the others.",
        lambda s: {mode: int(s.daemon.mode == mode) for mode in MODES},
        "mode",
    ),
    host_metric(
        "group_steering",
        "gauge",
        "1 while the links of the group are steered, 0 while they are observed.",
        lambda s: {name: int(on) for name, on in s.daemon.groups.items()},
        "group",
    ),
    host_metric(
        "peer_silent",
        "gauge",
        "1 while nothing is heard of that probed host on any rail, and it sent no bye.",
        lambda s: {peer: int(silent) for peer, silent in s.silent_peers.items()},
        "peer",
    ),
    host_metric(
        "located",
        "gauge",
        "Always 1; a fault that lasts, and where it is by all that this host sees and is told.",
        lambda s: {(x.part, x.element, x.direction): 1 for x in s.located},
        ("part", "element", "direction"),
    ),
    host_metric(
        "config_info",
        "gauge",
        "Always 1; the label stands for the whole configuration in effect.",
        lambda s: {s.daemon.config_hash or "unknown": 1},
        "hash",
    ),
    host_metric(
        "config_policy_info",
        "gauge",
        "Always 1; the label stands for what hosts should have in common.",
        lambda s: {s.daemon.policy_hash or "unknown": 1},
        "hash",
    ),
    host_metric(
        "config_last_reload_successful",
        "gauge",
        "1 unless the last reload was refused.",
        lambda s: int(s.daemon.config_ok),
    ),
    host_metric(
        "config_last_load_timestamp_seconds",
        "gauge",
        "Unix time at which the configuration in effect was read.",
        lambda s: s.daemon.config_loaded_wall_s,
    ),
    host_metric(
        "detector_enabled",
        "gauge",
        "0 while the detector is switched off.",
        lambda s: {name: int(on) for name, on in s.daemon.detectors.items()},
        "detector",
    ),
    host_metric(
        "start_time_seconds",
        "gauge",
        "Unix time at which the daemon began.",
        lambda s: s.daemon.start_wall_s,
    ),
    host_metric(
        "last_cycle_timestamp_seconds",
        "gauge",
        "Unix time of the last full cycle of reading and judging.",
        lambda s: s.daemon.last_cycle_wall_s,
    ),
    host_metric(
        "steer_page_generation",
        "gauge",
        "Generation of the steer page last published.",
        lambda s: s.daemon.steer_generation,
    ),
    host_metric(
        "timeline_events_total",
        "counter",
        "Events stored in the timeline since the start.",
        lambda s: s.daemon.timeline_events,
    ),
    host_metric(
        "timeline_append_failures_total",
        "counter",
        "Failed attempts to store events (each is tried again).",
        lambda s: s.daemon.timeline_failures,
    ),
    host_metric(
        "timeline_dropped_events_total",
        "counter",
        "Events given up because too many waited or the store refused them for good.",
        lambda s: s.daemon.timeline_dropped,
    ),
    host_metric(
        "timeline_waiting_events",
        "gauge",
        "Events not stored yet.",
        lambda s: s.daemon.timeline_waiting,
    ),
    host_metric(
        "timeline_size_bytes",
        "gauge",
        "Bytes of the timeline in use.",
        lambda s: s.daemon.timeline_bytes,
    ),
    host_metric(
        "timeline_max_bytes",
        "gauge",
        "Bytes above which rows of the timeline are deleted, whatever their age.",
        lambda s: s.daemon.timeline_max_bytes,
    ),
    host_metric(
        "plugin_events_left_out_total",
        "counter",
        "Events of jobs' pages that became no rows of the timeline: their owners had too many.",
        lambda s: s.daemon.plugin_events_left_out,
    ),
    host_metric(
        "verdicts_held_total",
        "counter",
        "Verdicts of silence that waited: the kernel's receive path was behind, or payload moved.",
        lambda s: s.daemon.verdicts_held,
    ),
    host_metric(
        "refused_inputs_total",
        "counter",
        "Inputs refused as malformed or not allowed, by source.",
        lambda s: s.daemon.refused,
        "source",
    ),
    host_metric(
        "stats_scan_complete",
        "gauge",
        "0 while there may be stats pages of jobs that were not read.",
        lambda s: int(s.daemon.stats_complete),
    ),
    host_metric(
        "stats_directory_entries",
        "gauge",
        "Names of whatever kind in the directory of jobs' stats pages.",
        lambda s: s.daemon.stats_entries,
    ),
    host_metric(
        "metrics_bind_failures_total",
        "counter",
        "Times that this endpoint could not bind its address; it tries again, every 30 s at last.",
        lambda s: s.daemon.metrics_bind_failures,
    ),
    host_metric(
        "prober_up", "gauge", "1 while the prober's heartbeat is fresh.", lambda s: int(s.prober.up)
    ),
    host_metric(
        "prober_heartbeat_age_seconds",
        "gauge",
        "Age of the prober's last heartbeat.",
        lambda s: s.prober.heartbeat_age_s,
    ),
    host_metric(
        "prober_restarts_total",
        "counter",
        "New incarnations of the prober seen.",
        lambda s: s.prober.restarts,
    ),
    host_metric(
        "prober_stalls_total",
        "counter",
        "Scheduling gaps of the prober that made verdicts inconclusive.",
        lambda s: s.prober.stalls,
    ),
    host_metric(
        "prober_stall_seconds_total",
        "counter",
        "Time lost in such gaps.",
        lambda s: s.prober.stall_s,
    ),
    host_metric(
        "prober_refused_packets_total",
        "counter",
        "Packets on the probe port refused, by reason.",
        lambda s: s.prober.refused,
        "reason",
    ),
    host_metric(
        "prober_synchronized",
        "gauge",
        "1 while probes go by fabric time; 0: by the wall clock.",
        lambda s: int(s.prober.synchronized),
    ),
    host_metric(
        "prober_refused_due_times_total",
        "counter",
        "Due times told by peers that did not fit the pace of their packets.",
        lambda s: s.prober.due_times_refused,
    ),
    host_metric(
        "prober_refused_promises_total",
        "counter",
        "Deprecated name of fabricd_prober_refused_due_times_total; gone with the next release.",
        lambda s: s.prober.due_times_refused,
    ),
    host_metric(
        "prober_clock_read_seconds",
        "gauge",
        "Least time of late to read two clocks together; software stamps are off by up to half.",
        lambda s: s.prober.clock_read_s,
    ),
    *PLUGIN_METRICS,
    *BROKER_METRICS,
    *CLOCK_METRICS,
)
