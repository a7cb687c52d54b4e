"""Metrics of one link: one table over a `LinkSnapshot` (`telemetry.metric_table` has the host's).

A link has at most `MAX_LINK_SERIES` series, and there is never a label per queue pair, queue, GID
or probe path.
"""

from __future__ import annotations

from collections.abc import Callable

from telemetry.events import ProbeState
from telemetry.metric_spec import Buckets, Labelled, MetricSpec, Value
from telemetry.snapshot import LinkSnapshot
from telemetry.statspage import Latency

MAX_LINK_SERIES = 60
"""Bounds what a host of 8 rails costs Prometheus: 480 series, and some 100 of the host."""

DELIVERY_BOUNDS = (6, 10, 14, 18, 21)
"""Powers of two of microseconds: 64 µs, 1 ms, 16 ms (no failover takes less), 262 ms (a black hole
without the daemon takes less), 2.1 s. Five, as each is a series of every link; `fabricctl top` has
all the 28 of the stats page."""


def delivery_buckets(latency: Latency) -> Buckets:
    """The stats page's 28 buckets as the few that are exported."""
    counts = [
        (repr(2**bound / 1e6), float(sum(latency.buckets[: bound + 1])))
        for bound in DELIVERY_BOUNDS
    ]
    counts.append(("+Inf", float(latency.count)))
    return Buckets(tuple(counts), latency.sum_ns / 1e9)


def _link(
    name: str,
    kind: str,
    text: str,
    value: Callable[[LinkSnapshot], Value | Labelled | Buckets],
    label: str | tuple[str, ...] = "",
) -> MetricSpec[LinkSnapshot]:
    return MetricSpec(f"fabricd_link_{name}", kind, text, value, label)


LINK_METRICS: tuple[MetricSpec[LinkSnapshot], ...] = (
    _link(
        "state",
        "gauge",
        "0 unknown, 1 up, 2 suspect, 3 down, 4 hold, 5 probation, 6 degraded, 7 admin.",
        lambda s: int(s.state),
    ),
    _link(
        "info",
        "gauge",
        "Always 1; what the link is, in the labels; empty where not known.",
        lambda s: {
            (i.element, i.device, i.rdma_device, i.speed, i.driver, i.leaf): 1 for i in (s.info,)
        },
        ("element", "device", "rdma_device", "speed", "driver", "leaf"),
    ),
    _link(
        "carrier",
        "gauge",
        "1 while the port has carrier.",
        lambda s: None if s.carrier is None else int(s.carrier),
    ),
    _link(
        "down_reason",
        "gauge",
        "1 for why the port has no carrier, where its driver says it: no_cable, remote_fault.",
        lambda s: {s.down_reason: 1} if s.down_reason else {},
        "reason",
    ),
    _link(
        "flaps_total",
        "counter",
        "Carrier losses, each one counted; kept across restarts of the daemon.",
        lambda s: s.flaps,
    ),
    _link(
        "flaps_exact",
        "gauge",
        "0 when the port's own counter and its events disagree, or that is at its end.",
        lambda s: None if s.flaps_exact is None else int(s.flaps_exact),
    ),
    _link(
        "outages_total",
        "counter",
        "Times that the link went out of service (state down), whatever the evidence.",
        lambda s: s.outages,
    ),
    _link(
        "errors_total",
        "counter",
        "Events of the NIC's counters that have a rule, by its class: hard, soft, congestion.",
        lambda s: s.errors,
        "class",
    ),
    _link(
        "counters_up",
        "gauge",
        "1 while the NIC's counters are read.",
        lambda s: int(s.counters_fresh),
    ),
    _link(
        "speed_ratio",
        "gauge",
        "Negotiated speed by the best that the link had (or that is configured), to 1.",
        lambda s: s.speed_ratio,
    ),
    _link(
        "failure_risk",
        "gauge",
        "Risk that the link fails soon, 0 to 1, by its optics, errors and flaps.",
        lambda s: s.risk,
    ),
    _link(
        "last_change_timestamp_seconds",
        "gauge",
        "Unix time of the last change of state.",
        lambda s: s.last_change_wall_s,
    ),
    _link("probe_packets_sent_total", "counter", "Probe packets sent.", lambda s: s.probe.sent),
    _link(
        "probe_packets_received_total",
        "counter",
        "Probe packets received and accepted.",
        lambda s: s.probe.received,
    ),
    _link(
        "probe_packets_lost_total",
        "counter",
        "Probe packets lost while link and path were up; tx: ours, by the peer's report; rx: its.",
        lambda s: {"tx": s.probe.lost_tx, "rx": s.probe.lost_rx},
        "direction",
    ),
    _link(
        "probe_state",
        "gauge",
        "1 for the state of the link's probing: heard, never_heard, unbound or off.",
        lambda s: {state.value: int(s.probe_state is state) for state in ProbeState},
        "state",
    ),
    _link(
        "interface_present",
        "gauge",
        "1 while the host has an interface of that name.",
        lambda s: None if s.present is None else int(s.present),
    ),
    _link(
        "mtu_black_hole",
        "gauge",
        "1 while packets of the link's MTU do not arrive, and small ones do.",
        lambda s: int(s.mtu_black_hole),
    ),
    _link(
        "probe_rtt_seconds",
        "gauge",
        "Smoothed round trip of probes, the median over the link's paths that are heard.",
        lambda s: s.probe.rtt_s,
    ),
    _link(
        "probe_rtt_min_seconds",
        "gauge",
        "Least round trip of probes on the link's paths that are heard.",
        lambda s: s.probe.rtt_min_s,
    ),
    _link(
        "queueing_delay_seconds",
        "gauge",
        "Median time that probes of the last second waited in queues; tx: ours, rx: to us.",
        lambda s: s.queueing_s,
        "direction",
    ),
    _link(
        "slow",
        "gauge",
        "1 while jobs' messages take longer on it than on its sibling rails, queues apart.",
        lambda s: None if s.slow is None else int(s.slow),
    ),
    _link(
        "slow_claim_uid",
        "gauge",
        "The user whose job alone says that its messages take longer on it than on its siblings.",
        lambda s: s.slow_claim_uid,
    ),
    _link(
        "probe_silent_paths",
        "gauge",
        "Paths of the link on which nothing is heard now.",
        lambda s: s.probe.paths_silent,
    ),
    _link(
        "transport_broken",
        "gauge",
        "1 while probes of that transport (ip, rdma) say that it alone is broken. With RDMA only.",
        lambda s: (
            {"ip": int(s.rdma.ip_broken), "rdma": int(s.rdma.broken and s.weight > 0)}
            if s.rdma
            else {}
        ),
        "transport",
    ),
    _link(
        "transport_weight_ratio",
        "gauge",
        "Share of its capacity that a transport (ip, rdma) may use, 0 to 1. With RDMA only.",
        lambda s: {"ip": s.weight, "rdma": s.rdma.weight} if s.rdma else {},
        "transport",
    ),
    _link(
        "rdma_port_open",
        "gauge",
        "1 while the prober has a queue pair on the verbs port behind the link.",
        lambda s: int(s.rdma.port_open) if s.rdma else None,
    ),
    _link(
        "rdma_probe_packets_sent_total",
        "counter",
        "RDMA probe packets sent.",
        lambda s: s.rdma.sent if s.rdma else None,
    ),
    _link(
        "rdma_probe_packets_received_total",
        "counter",
        "RDMA probe packets received.",
        lambda s: s.rdma.received if s.rdma else None,
    ),
    _link(
        "rdma_probe_packets_lost_total",
        "counter",
        "RDMA probe packets lost while link and path were up; tx: ours, rx: the peers'.",
        lambda s: {"tx": s.rdma.lost_tx, "rx": s.rdma.lost_rx} if s.rdma else {},
        "direction",
    ),
    _link(
        "rdma_probe_rtt_seconds",
        "gauge",
        "Smoothed round trip of RDMA probes, the median over the paths that are heard.",
        lambda s: s.rdma.rtt_s if s.rdma else None,
    ),
    _link(
        "rdma_probe_silent_paths",
        "gauge",
        "Paths to peers with a queue pair on which no RDMA probe is heard now.",
        lambda s: s.rdma.paths_silent if s.rdma else None,
    ),
    _link(
        "damping_penalty",
        "gauge",
        "Damping penalty now; it decays exponentially.",
        lambda s: s.penalty,
    ),
    _link(
        "weight_ratio",
        "gauge",
        "Share of its capacity that traffic may use, 0 to 1.",
        lambda s: s.weight,
    ),
    _link(
        "wanted_weight_ratio",
        "gauge",
        "The share that the daemon holds right, 0 to 1; in observe traffic may use all the same.",
        lambda s: s.wanted_weight,
    ),
    _link(
        "maintenance",
        "gauge",
        "1 while an operator works on it: a maintenance window, or drained (state admin).",
        lambda s: int(s.maintenance or s.drained),
    ),
    _link(
        "plugin_transmit_bytes_total",
        "counter",
        "Payload bytes that jobs sent on the rail, retransmits included.",
        lambda s: s.plugin.tx_bytes,
    ),
    _link(
        "plugin_receive_bytes_total",
        "counter",
        "Payload bytes that jobs accepted on the rail.",
        lambda s: s.plugin.rx_bytes,
    ),
    _link(
        "plugin_retransmit_bytes_total",
        "counter",
        "Payload bytes sent again after a fence, on the rail that took over.",
        lambda s: s.plugin.retransmit_bytes,
    ),
    _link(
        "plugin_duplicate_bytes_total",
        "counter",
        "Payload bytes received again and dropped.",
        lambda s: s.plugin.duplicate_bytes,
    ),
    _link(
        "plugin_failovers_total",
        "counter",
        "Paths on the rail that jobs gave up.",
        lambda s: s.plugin.failovers,
    ),
    _link(
        "plugin_rejoins_total",
        "counter",
        "Paths on the rail that jobs took back.",
        lambda s: s.plugin.rejoins,
    ),
    _link(
        "plugin_stall_seconds_total",
        "counter",
        "Time in which a communicator had work and no path moved for more than 10 ms.",
        lambda s: s.plugin.stall_s,
    ),
    _link(
        "plugin_in_flight_bytes",
        "gauge",
        "Bytes sent on the rail and not yet acknowledged by the peer's plugin.",
        lambda s: s.plugin.in_flight_bytes,
    ),
    _link(
        "plugin_dead_paths",
        "gauge",
        "Paths on the rail that jobs hold for dead now.",
        lambda s: s.plugin.dead_paths,
    ),
    _link(
        "plugin_delivery_seconds",
        "histogram",
        "Messages that jobs sent: from posting to the acknowledgement by the peer's plugin.",
        lambda s: delivery_buckets(s.plugin.latency),
    ),
)
