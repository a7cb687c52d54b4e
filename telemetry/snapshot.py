"""What the daemon knows at one moment, for the metrics endpoint and every other reader.

The daemon builds a `HostSnapshot` (its plugin part with `telemetry.jobtotals.JobTotals`); the
collector in `telemetry.metrics` turns it into Prometheus samples. All counters are totals since
the daemon's start or longer and never go backwards; times are seconds of CLOCK_REALTIME
(`*_wall_s`) or plain durations in seconds; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from telemetry.events import LinkState, ProbeState
from telemetry.statspage import Latency


@dataclass(frozen=True, slots=True)
class ProbeTotals:
    """Probe packets of one link, all its paths together."""

    sent: int = 0
    received: int = 0
    lost_tx: int = 0
    """Sent by us while link and path were up, reported missing by the peer."""
    lost_rx: int = 0
    """Due from the peer while link and path were up, never received."""
    rtt_s: float | None = None
    """Smoothed round trip, the median over the link's paths that are heard; None: none is."""
    rtt_min_s: float | None = None
    paths: int = 0
    paths_silent: int | None = None
    """None: there is no prober that could tell."""


@dataclass(frozen=True, slots=True)
class RdmaTotals:
    """RDMA probes of one link, all its paths together."""

    broken: bool = False
    """They say that RDMA is broken on it."""
    ip_broken: bool = False
    """UDP probes say that IP is broken on it, and RDMA probes are heard."""
    weight: float = 1.0
    """Share of its capacity that RDMA may use."""
    port_open: bool = False
    """The prober has a queue pair on the verbs port."""
    sent: int = 0
    received: int = 0
    lost_tx: int = 0
    lost_rx: int = 0
    rtt_s: float | None = None
    """Smoothed round trip, the median over the paths that are heard; None: none is."""
    paths_silent: int | None = None
    """Of those to peers that have a queue pair; None: there is no prober that could tell."""


@dataclass(frozen=True, slots=True)
class RailTotals:
    """What the plugins of this host's jobs did on one rail, ended processes included."""

    tx_bytes: int = 0
    rx_bytes: int = 0
    retransmit_bytes: int = 0
    duplicate_bytes: int = 0
    failovers: int = 0
    rejoins: int = 0
    stalls: int = 0
    stall_s: float = 0.0
    in_flight_bytes: int = 0
    """A gauge: of the processes alive now."""
    dead_paths: int = 0
    """A gauge: of the processes alive now."""
    latency: Latency = field(default_factory=Latency)
    """Of messages sent over the rail."""


@dataclass(frozen=True, slots=True)
class LinkSnapshot:
    """One link of this host."""

    netdev: str
    rail: int
    state: LinkState
    carrier: bool | None = None
    """None: not known."""
    flaps: int = 0
    """Carrier losses counted, from `Timeline.flap_total` on (so a restart does not reset it)."""
    last_change_wall_s: float | None = None
    """Of `state`; None: no change since the daemon began."""
    penalty: float = 0.0
    """Damping penalty now."""
    weight: float = 1.0
    """Share of its capacity that traffic may use: 0.0 steered away … 1.0."""
    wanted_weight: float | None = None
    """What the daemon holds right, also in observe; None: not judged yet."""
    outages: int = 0
    """Times that it went out of service (state DOWN) since the daemon began."""
    info: LinkInfo = field(default_factory=lambda: LinkInfo())
    drained: bool = False
    maintenance: bool = False
    errors: Mapping[str, int] = field(default_factory=dict)
    """Class → events that the NIC's counters with a rule counted; empty: none is read."""
    counters_fresh: bool = False
    """The NIC's counters are read now."""
    flaps_exact: bool | None = None
    """Counter and events of the port agree; None: nothing to compare."""
    speed_ratio: float | None = None
    """Negotiated speed by the best that the link had, above 0 to 1; None: not known."""
    risk: float | None = None
    """Failure risk, 0 to 1; None: no forecast."""
    probe: ProbeTotals = field(default_factory=ProbeTotals)
    probe_state: ProbeState | None = None
    """None: not known yet."""
    rdma: RdmaTotals | None = None
    """None: RDMA is not probed on it."""
    mtu_black_hole: bool = False
    """Large packets do not arrive on it, small ones do."""
    plugin: RailTotals = field(default_factory=RailTotals)
    queueing_s: Mapping[str, float] = field(default_factory=dict)
    """Direction → median queueing of probes in the last second; empty: not known."""
    slow: bool | None = None
    """Slower than its siblings for the same job; None: nothing to compare."""
    slow_claim_uid: int | None = None
    """The user whose job alone says that it is slow; None: there is none."""
    present: bool | None = None
    """The host has an interface of that name; None: not known yet."""
    down_reason: str = ""
    """Why the port has no carrier, as its driver says: ``no_cable``; empty: it does not say."""


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """What a link is; empty where not known."""

    element: str = ""
    """``h1/3``: host and rail, as the located faults name it."""
    device: str = ""
    """Address on the bus, as ``0000:17:00.0``."""
    rdma_device: str = ""
    speed: str = ""
    """Negotiated: ``400G``."""
    driver: str = ""
    leaf: str = ""


@dataclass(frozen=True, slots=True)
class Located:
    """A fault that lasts, and where it is."""

    part: str
    """link, host, leaf, spine or path."""
    element: str
    direction: str = "both"
    """tx, rx or both, as seen from the element."""


@dataclass(frozen=True, slots=True)
class ProberSnapshot:
    """The prober's health, as read from its ring."""

    up: bool = False
    heartbeat_age_s: float | None = None
    restarts: int = 0
    stalls: int = 0
    """Scheduling gaps that made verdicts inconclusive."""
    stall_s: float = 0.0
    refused: Mapping[str, int] = field(default_factory=dict)
    """Packets refused, by reason (a small fixed set)."""
    synchronized: bool = False
    """Packets go by fabric time."""
    due_times_refused: int = 0
    """Due times told by peers that made no sense."""
    clock_read_s: float = 0.0
    """See `fabricd.probes.records.RingHeader.clock_read_ns`."""


@dataclass(frozen=True, slots=True)
class DaemonSnapshot:
    """The daemon's own health."""

    version: str = ""
    mode: str = "observe"
    """observe, steer or migrate, as in effect."""
    start_wall_s: float = 0.0
    last_cycle_wall_s: float | None = None
    """End of the last full read-and-evaluate cycle."""
    timeline_events: int = 0
    """Rows stored since the start."""
    timeline_failures: int = 0
    """Appends that failed (and were tried again)."""
    timeline_waiting: int = 0
    """Events not stored yet."""
    timeline_dropped: int = 0
    """Events given up: the queue was full, or the store will never take them."""
    timeline_bytes: int = 0
    timeline_max_bytes: int = 0
    plugin_events_left_out: int = 0
    """Events of stats pages that became no rows: their owners had too many."""
    verdicts_held: int = 0
    """Verdicts of silence that waited for the kernel's receive path, or for payload to stop."""
    steer_generation: int = 0
    groups: Mapping[str, bool] = field(default_factory=dict)
    """Group of links → steered; empty: there are no groups."""
    config_hash: str = ""
    policy_hash: str = ""
    """Of what hosts should have in common; see `fabricd.config.loader.policy_hash`."""
    config_ok: bool = True
    """The last reload was good (or there was none)."""
    config_loaded_wall_s: float | None = None
    detectors: Mapping[str, bool] = field(default_factory=dict)
    """Name → on."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Inputs refused, by source: control_socket, stats_page, ring, netlink, metrics_endpoint."""
    stats_entries: int = 0
    """Names of whatever kind in the directory of jobs' stats pages."""
    stats_complete: bool = True
    """The last scan read every page there."""
    metrics_bind_failures: int = 0
    """Times that the metrics endpoint could not have its port."""


@dataclass(frozen=True, slots=True)
class PluginSnapshot:
    """The plugin's process-wide figures over this host's jobs."""

    processes: int = 0
    errors: int = 0
    """Results other than success ever returned to NCCL, as the pages say."""
    confirmed_errors: int = 0
    """Of these since the start, what is more than the claim of one user."""
    error_claim_uid: int | None = None
    """The user whose claim of an error nothing confirms; None: there is none now."""
    refused_peers: int = 0
    refused_fenced: int = 0
    steer_rejected: int = 0
    following_steer: int = 0
    """Processes alive that follow a fresh steer page."""
    foreign_rails: int = 0
    """Rails of processes alive that no link of this host is called by."""


@dataclass(frozen=True, slots=True)
class ClockSnapshot:
    """Fabric time on this host."""

    up: bool = False
    """The clock service has said something lately."""
    state: int | None = None
    """0: unsynchronized, 1: locked, 2: holdover."""
    bound_s: float | None = None
    is_reference: bool = False
    reference: str = ""
    """Id of the host that gives the time, as `fabricctl clock` shows it; empty: none."""
    residual_s: float | None = None
    offset_s: float | None = None
    """How far the neighbours were ahead at the last step."""
    skew: float | None = None
    """How fast the bound grows."""
    root_delay_s: float | None = None
    frequency: float | None = None
    """Of fabric time over the host's raw clock, less one."""
    paths: int = 0
    references_lost: int = 0
    joins: int = 0
    takeovers: int = 0
    """Times that this host became the reference."""
    refused_messages: int = 0
    asymmetric: int = 0
    """Paths that are known to be longer one way than the other."""
    surplus_s: float | None = None
    """The greatest of all paths, without sign; None: none is known."""
    moves: int = 0
    """Source ports that were asked for, since the clock service began."""
    way_min_s: Mapping[str, float] = field(default_factory=dict)
    """Direction → the least one-way delay of all paths; empty: not known."""
    way_median_s: Mapping[str, float] = field(default_factory=dict)
    tai: TaiSnapshot = field(default_factory=lambda: TaiSnapshot())
    ptp: PtpSnapshot | None = None
    """None: this host has no PTP masters."""


@dataclass(frozen=True, slots=True)
class TaiSnapshot:
    """TAI on this host."""

    state: int | None = None
    """0: unknown, 1: locked, 2: holdover."""
    bound_s: float | None = None
    utc_offset_s: int | None = None
    traceable: bool | None = None
    steps_removed: int | None = None
    clock_class: int | None = None
    steps: int = 0
    """Times that TAI turned out to be another."""


@dataclass(frozen=True, slots=True)
class PtpSnapshot:
    """The PTP masters of this host."""

    tracking: bool = False
    masters: int = 0
    """That are heard."""
    root_delay_s: float | None = None
    root_dispersion_s: float | None = None
    changes: int = 0
    lost: int = 0
    steps: int = 0
    denied: int = 0
    refused: int = 0
    """Datagrams."""


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """The connection to the broker, and what goes over it."""

    connected: bool = False
    connections: int = 0
    outbox_messages: int = 0
    """On disk."""
    outbox_unstored: int = 0
    outbox_dropped: int = 0
    rejected: int = 0
    """By the broker."""
    packet_limit_bytes: int | None = None
    """Maximum Packet Size that the broker announced, or the largest that a broker that ended
    connections took; None: neither."""
    oversize_bytes: Mapping[str, int] = field(default_factory=dict)
    """Kind of message → size of the largest state that the broker does not take."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """By us, by reason (a small fixed set)."""
    jobs: int = 0
    fences: int = 0
    address_conflicts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Two hosts, in alphabetical order → addresses that both name; the first 64 pairs."""


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """Everything the endpoint shows."""

    host: str
    links: tuple[LinkSnapshot, ...] = ()
    prober: ProberSnapshot = field(default_factory=ProberSnapshot)
    daemon: DaemonSnapshot = field(default_factory=DaemonSnapshot)
    plugin: PluginSnapshot = field(default_factory=PluginSnapshot)
    clock: ClockSnapshot = field(default_factory=ClockSnapshot)
    silent_peers: Mapping[str, bool] = field(default_factory=dict)
    """Host that is probed → nothing is heard of it on any rail."""
    located: tuple[Located, ...] = ()
    broker: BrokerSnapshot | None = None
    """None: no broker is configured."""
