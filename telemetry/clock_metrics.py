"""Metrics of fabric time, TAI and PTP masters (`telemetry.metric_table` has the others)."""

from __future__ import annotations

from collections.abc import Callable

from telemetry.metric_spec import MetricSpec, Value, host_metric
from telemetry.snapshot import HostSnapshot, PtpSnapshot


def _of(snapshot: HostSnapshot, value: Callable[[PtpSnapshot], Value]) -> Value:
    """Of a host with PTP masters; else nothing."""
    return None if snapshot.clock.ptp is None else value(snapshot.clock.ptp)


CLOCK_METRICS: tuple[MetricSpec[HostSnapshot], ...] = (
    host_metric("clock_up", "gauge", "1 while fabric-clock runs.", lambda s: int(s.clock.up)),
    host_metric(
        "clock_state",
        "gauge",
        "Fabric time: 0 unsynchronized, 1 locked, 2 holdover.",
        lambda s: s.clock.state,
    ),
    host_metric(
        "clock_bound_seconds",
        "gauge",
        "How far off fabric time may be on this host now.",
        lambda s: s.clock.bound_s,
    ),
    host_metric(
        "clock_is_reference",
        "gauge",
        "1 while fabric time is this host's own.",
        lambda s: int(s.clock.is_reference),
    ),
    host_metric(
        "clock_reference_info",
        "gauge",
        "Always 1; the label is the id of the host that gives fabric time.",
        lambda s: {s.clock.reference: 1} if s.clock.reference else None,
        "reference",
    ),
    host_metric(
        "clock_residual_seconds",
        "gauge",
        "Weighted mean of how far the neighbours' mesh times are from this host's.",
        lambda s: s.clock.residual_s,
    ),
    host_metric(
        "clock_offset_seconds",
        "gauge",
        "How far the neighbours' mesh times were ahead of this host's, weighted mean.",
        lambda s: s.clock.offset_s,
    ),
    host_metric(
        "clock_skew_ratio",
        "gauge",
        "How fast the bound grows without news: what the rate may be wrong by.",
        lambda s: s.clock.skew,
    ),
    host_metric(
        "clock_root_delay_seconds",
        "gauge",
        "Least round trip to the reference along the mesh, to a tenth.",
        lambda s: s.clock.root_delay_s,
    ),
    host_metric(
        "clock_frequency_ratio",
        "gauge",
        "Rate of fabric time over the host's raw clock, less one.",
        lambda s: s.clock.frequency,
    ),
    host_metric(
        "clock_paths",
        "gauge",
        "Paths that fabric time rests on here.",
        lambda s: s.clock.paths,
    ),
    host_metric(
        "clock_references_lost_total",
        "counter",
        "References of fabric time that were given up.",
        lambda s: s.clock.references_lost,
    ),
    host_metric(
        "clock_takeovers_total",
        "counter",
        "Times that this host became the reference.",
        lambda s: s.clock.takeovers,
    ),
    host_metric(
        "clock_refused_messages_total",
        "counter",
        "Messages of neighbours' clock services that made no sense.",
        lambda s: s.clock.refused_messages,
    ),
    host_metric(
        "clock_refused_words_total",
        "counter",
        "Deprecated name of fabricd_clock_refused_messages_total; gone with the next release.",
        lambda s: s.clock.refused_messages,
    ),
    host_metric(
        "clock_paths_asymmetric",
        "gauge",
        "Paths known to be longer one way than the other; they count for next to nothing.",
        lambda s: s.clock.asymmetric,
    ),
    host_metric(
        "clock_path_surplus_seconds",
        "gauge",
        "The most that a path says beyond the mesh: half of what its two ways differ by.",
        lambda s: s.clock.surplus_s,
    ),
    host_metric(
        "clock_path_moves_total",
        "counter",
        "Times that a path was to be probed from another source port.",
        lambda s: s.clock.moves,
    ),
    host_metric(
        "clock_path_delay_min_seconds",
        "gauge",
        "One-way delay in fabric time, the least of all paths; tx: ours, rx: to us.",
        lambda s: s.clock.way_min_s,
        "direction",
    ),
    host_metric(
        "clock_path_delay_median_seconds",
        "gauge",
        "One-way delay in fabric time, the median of the paths' least; tx: ours, rx: to us.",
        lambda s: s.clock.way_median_s,
        "direction",
    ),
    host_metric(
        "clock_joins_total",
        "counter",
        "Times that this host took over a mesh's time; each is another epoch.",
        lambda s: s.clock.joins,
    ),
    host_metric(
        "clock_tai_state",
        "gauge",
        "TAI: 0 unknown, 1 locked, 2 holdover.",
        lambda s: s.clock.tai.state,
    ),
    host_metric(
        "clock_tai_bound_seconds",
        "gauge",
        "How far off TAI may be on this host now.",
        lambda s: s.clock.tai.bound_s,
    ),
    host_metric(
        "clock_tai_utc_offset_seconds",
        "gauge",
        "TAI less UTC, by the grandmaster.",
        lambda s: s.clock.tai.utc_offset_s,
    ),
    host_metric(
        "clock_tai_traceable",
        "gauge",
        "1 while the grandmaster says that its time is traceable to a primary reference.",
        lambda s: None if s.clock.tai.traceable is None else int(s.clock.tai.traceable),
    ),
    host_metric(
        "clock_tai_steps_removed",
        "gauge",
        "Boundary clocks between the grandmaster and us.",
        lambda s: s.clock.tai.steps_removed,
    ),
    host_metric(
        "clock_tai_clock_class",
        "gauge",
        "clockClass of the grandmaster (IEEE 1588, 7.6.2.5).",
        lambda s: s.clock.tai.clock_class,
    ),
    host_metric(
        "clock_tai_steps_total",
        "counter",
        "Times that TAI turned out to be another than it was; each is another epoch.",
        lambda s: s.clock.tai.steps,
    ),
    host_metric(
        "clock_ptp_tracking",
        "gauge",
        "1 while the best PTP master of this host is tracked.",
        lambda s: _of(s, lambda p: int(p.tracking)),
    ),
    host_metric(
        "clock_ptp_masters",
        "gauge",
        "PTP masters of this host that are heard.",
        lambda s: _of(s, lambda p: p.masters),
    ),
    host_metric(
        "clock_ptp_root_delay_seconds",
        "gauge",
        "Round trip to the best PTP master.",
        lambda s: _of(s, lambda p: p.root_delay_s),
    ),
    host_metric(
        "clock_ptp_root_dispersion_seconds",
        "gauge",
        "What else its time may be off by than half of the round trip.",
        lambda s: _of(s, lambda p: p.root_dispersion_s),
    ),
    host_metric(
        "clock_ptp_master_changes_total",
        "counter",
        "Times that another PTP master was best.",
        lambda s: _of(s, lambda p: p.changes),
    ),
    host_metric(
        "clock_ptp_masters_lost_total",
        "counter",
        "Times that a PTP master fell silent.",
        lambda s: _of(s, lambda p: p.lost),
    ),
    host_metric(
        "clock_ptp_master_steps_total",
        "counter",
        "Times that a PTP master's time stepped.",
        lambda s: _of(s, lambda p: p.steps),
    ),
    host_metric(
        "clock_ptp_grants_denied_total",
        "counter",
        "Requests that PTP masters denied.",
        lambda s: _of(s, lambda p: p.denied),
    ),
    host_metric(
        "clock_ptp_refused_messages_total",
        "counter",
        "Datagrams on the PTP ports that made no sense, or were for others.",
        lambda s: _of(s, lambda p: p.refused),
    ),
)
