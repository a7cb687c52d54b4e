"""The configuration's tables: their keys, what is allowed and what holds where nothing is said.

What the keys mean is in docs/reference/configuration.md.
"""

from __future__ import annotations

import socket
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fabricd.config.values import (
    PORT_TEXT,
    BrokerName,
    Cpus,
    Detector,
    FilePath,
    GroupName,
    HostName,
    LeafName,
    Netdev,
    Number,
    PortName,
    ProbeNetwork,
    Rail,
    RailAddress,
    SystemGroup,
    TopicPrefix,
    UnicastAddress,
    VerbsDevice,
    integer,
    no_limit_or_three,
    number,
)
from fabricd.operate.detectors import DETECTORS
from telemetry.listen import DEFAULT_LISTEN
from telemetry.service.config_errors import Table
from telemetry.service.config_values import Listen

MAX_PEERS = 4096


class HostTable(Table):
    """This host."""

    name: HostName = Field(default_factory=socket.gethostname)
    cpus: Cpus = ""
    realtime: Annotated[bool, Field(strict=True, description="true or false")] = True


class PathsTable(Table):
    """Where things lie."""

    run_dir: FilePath = "/run/fabricd"
    state_dir: FilePath = "/var/lib/fabricd"
    stop_file: FilePath = "/etc/fabricd/STOP"
    peers_file: FilePath | None = None
    """More ``[[peers]]``, in a file that all hosts share and that is watched."""


class ProbeTable(Table):
    """Probing."""

    link_interval_ms: Annotated[int, integer(1, 10_000, "(milliseconds)")] = 10
    misses: Annotated[int, integer(2, 100)] = 3
    port: Annotated[int, integer(1, 65535)] = 9200
    peers_per_rail: Annotated[int, integer(1, 64)] = 10
    cross_rail_peers: Annotated[int, integer(0, 16)] = 1
    clock_train_hz: Annotated[int, integer(0, 1000, "(trains a second; 0: none)")] = 100
    dscp: Annotated[int, integer(0, 63, "(traffic class of the probes)")] = 0
    synchronized: Annotated[bool, Field(strict=True, description="true or false")] = True
    rdma: Annotated[
        Literal["off", "auto"], Field(description='"off" or "auto" (where there are verbs ports)')
    ] = "auto"
    networks: Annotated[
        tuple[ProbeNetwork, ...],
        Field(max_length=256, description='up to 256 networks, e.g. ["10.0.0.0/8"]'),
    ] = ()
    key_file: FilePath = "/etc/fabricd/probe.key"


class LinkTable(Table):
    """One local link."""

    netdev: Netdev
    rail: Rail
    address: RailAddress | None = None
    rdma_device: VerbsDevice | None = None
    """Where the system does not say which one is behind the interface, as with EFA."""
    speed_gbps: float | None = Field(
        default=None, gt=0, le=100_000, description="a number of Gbit/s: above 0, at most 100000"
    )
    """The negotiated speed that is expected; default: the best that the link had."""
    group: GroupName | None = Field(
        default=None, description="a group's name: 1 to 32 lower-case letters, digits, '-' and '_'"
    )


class PeerAddressTable(Table):
    """One address of a peer."""

    rail: Rail
    address: RailAddress


class PeerTable(Table):
    """One peer host."""

    host: HostName
    addresses: Annotated[
        tuple[PeerAddressTable, ...],
        Field(min_length=1, max_length=64, description="1 to 64 tables { rail, address }"),
    ]


class LeafTable(Table):
    """One leaf switch and what is plugged into it."""

    name: LeafName
    ports: Annotated[
        tuple[PortName, ...],
        Field(min_length=1, max_length=4096, description=f"a list of {PORT_TEXT}"),
    ]


class TopologyTable(Table):
    """What is known of the fabric; the rest is asked of LLDP, or a rail has one leaf."""

    lldp: Annotated[bool, Field(strict=True, description="true or false")] = False
    leaves: Annotated[
        tuple[LeafTable, ...], Field(max_length=4096, description="tables [[topology.leaves]]")
    ] = ()


class DampingTable(Table):
    """Flap damping."""

    penalty: Annotated[Number, number(1, 1e6)] = 1000.0
    half_life_s: Annotated[Number, number(0.1, 86_400, "(seconds)")] = 15.0
    suppress: Annotated[Number, number(1, 1e9)] = 2500.0
    reuse: Annotated[Number, number(1, 1e9)] = 1000.0
    max_suppress_s: Annotated[Number, number(0.1, 86_400, "(seconds)")] = 60.0
    second_tier_flaps: Annotated[int, integer(1, 1_000_000, "(flaps an hour)")] = 50
    window_s: Annotated[Number, number(1, 86_400, "(seconds)")] = 600.0
    max_transitions: Annotated[
        int,
        Field(ge=0, le=1000, strict=True, description="0 (no limit), or an integer from 3 to 1000"),
        AfterValidator(no_limit_or_three),
    ] = 3


class HoldTable(Table):
    """Times of the way back."""

    hold_down_s: Annotated[Number, number(0.01, 3600, "(seconds)")] = 2.0
    probation_s: Annotated[Number, number(0, 3600, "(seconds)")] = 10.0


class SteerTable(Table):
    """Limits of steering."""

    max_probe_share: Annotated[Number, number(0, 1)] = 0.5


class CountersTable(Table):
    """Reading of the NICs' counters."""

    period_s: Annotated[Number, number(0.1, 60, "(seconds)")] = 1.0
    module_s: Annotated[Number, number(1, 3600, "(seconds)")] = 30.0


class PredictTable(Table):
    """The failure forecast."""

    steer: Annotated[bool, Field(strict=True, description="true or false")] = True
    threshold: Annotated[Number, number(0.05, 1)] = 0.5
    weight: Annotated[Number, number(0.1, 1)] = 0.5
    window_s: Annotated[int, integer(1, 3600, "(seconds)")] = 300


class DetectorsTable(Table):
    """Kill switches."""

    off: Annotated[
        tuple[Detector, ...],
        Field(description=f"a list of detectors, out of: {', '.join(DETECTORS)}"),
    ] = ()


class ControlTable(Table):
    """Who may use the control socket."""

    read_group: SystemGroup = "fabricd"
    admin_group: SystemGroup = "fabricd-admin"


class ClockTable(Table):
    """Fabric time."""

    priority: Annotated[
        int, integer(0, 255, "(the smaller, the sooner it gives fabric time; 255: never)")
    ] = 100
    hardware_stamps: Annotated[
        Literal["off", "auto"], Field(description='"off" or "auto" (where the NIC offers them)')
    ] = "off"
    ptp_masters: Annotated[
        tuple[UnicastAddress, ...],
        Field(max_length=8, description="up to 8 unicast addresses of PTP masters"),
    ] = ()
    ptp_domain: Annotated[int, integer(0, 239, "(domainNumber)")] = 0
    ptp_interface: Netdev | None = None
    chrony_socket: Annotated[
        str,
        Field(
            pattern=r"^(|/[!-~]{1,106})$",  # sun_path of unix(7), in bytes
            description='the absolute path of a socket, at most 107 characters of ASCII, or ""',
        ),
    ] = ""
    """Of a ``refclock SOCK``: chronyd is told UTC there."""
    least_way_ns: Annotated[int, integer(0, 1_000_000, "(nanoseconds)")] = 0
    """What a packet takes at least from a host to any other it probes, by cables and switches."""
    move_paths: Annotated[bool, Field(strict=True, description="true or false")] = True
    """Probes of a path whose two ways differ leave from another UDP source port."""


class BrokerTable(Table):
    """The MQTT broker of the control fabric. Without this table there is none."""

    host: BrokerName
    port: Annotated[int, integer(1, 65535)] | None = Field(
        default=None, description="an integer from 1 to 65535"
    )
    """Default: 8883 with TLS, 1883 without."""
    ca_file: FilePath | None = None
    """Certificates of the authorities that may sign the broker's: turns TLS on."""
    cert_file: FilePath | None = None
    key_file: FilePath | None = None
    username: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="1 to 256 characters"
    )
    password_file: FilePath | None = None
    prefix: TopicPrefix = "fabric/v1"
    protocol: Annotated[
        Literal["3.1.1", "5"], Field(description='"3.1.1" or "5", the version of MQTT')
    ] = "5"
    keepalive_s: Annotated[int, integer(2, 600, "(seconds)")] = 5
    rack: Annotated[
        str, Field(pattern=r"^[!-~]{0,64}$", description="up to 64 printable characters")
    ] = ""
    """Where this host stands: budgets of fabric-compute are by rack."""
    fence_deadline_s: Annotated[Number, number(0.05, 600, "(seconds)")] = 2.0
    """How long a job's fabric-run may take to apply a fence before that is reported."""


class MetricsTable(Table):
    """Prometheus endpoint."""

    listen: Listen = DEFAULT_LISTEN


class TimelineTable(Table):
    """Retention of the timeline."""

    retention_days: Annotated[Number, number(0.01, 36_500, "(days)")] = 90.0
    max_mb: Annotated[Number, number(1, 1e6, "(megabytes)")] = 512.0


class Config(Table):
    """A whole valid configuration."""

    host: HostTable = Field(default_factory=HostTable)
    paths: PathsTable = Field(default_factory=PathsTable)
    probe: ProbeTable = Field(default_factory=ProbeTable)
    links: Annotated[
        tuple[LinkTable, ...],
        Field(min_length=1, max_length=32, description="1 to 32 tables [[links]]"),
    ]
    peers: Annotated[
        tuple[PeerTable, ...],
        Field(max_length=MAX_PEERS, description=f"up to {MAX_PEERS} tables [[peers]]"),
    ] = ()
    topology: TopologyTable = Field(default_factory=TopologyTable)
    damping: DampingTable = Field(default_factory=DampingTable)
    hold: HoldTable = Field(default_factory=HoldTable)
    steer: SteerTable = Field(default_factory=SteerTable)
    counters: CountersTable = Field(default_factory=CountersTable)
    predict: PredictTable = Field(default_factory=PredictTable)
    detectors: DetectorsTable = Field(default_factory=DetectorsTable)
    clock: ClockTable = Field(default_factory=ClockTable)
    broker: BrokerTable | None = None
    control: ControlTable = Field(default_factory=ControlTable)
    metrics: MetricsTable = Field(default_factory=MetricsTable)
    timeline: TimelineTable = Field(default_factory=TimelineTable)

    @property
    def link_speeds(self) -> dict[str, float]:
        """Netdev → bit/s, of links whose speed is configured."""
        return {x.netdev: x.speed_gbps * 1e9 for x in self.links if x.speed_gbps is not None}

    @property
    def rdma_devices(self) -> dict[str, str]:
        """Interface → verbs device, where it is said."""
        return {x.netdev: x.rdma_device for x in self.links if x.rdma_device is not None}
