"""What the prober tells: one dataclass per ring record and per table row.

Units: every ``*_ns`` is integer nanoseconds. ``mono_ns`` and everything called heartbeat, heard,
change or since is CLOCK_MONOTONIC of this boot; the four stamps of a ``ProbeSample`` are what the
kernel stamped (CLOCK_MONOTONIC_RAW, or the NIC's clock where ``hw_*`` is set). Counters are
cumulative since the prober started unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple


class Direction(IntEnum):
    """Which half of a path a miss speaks of."""

    RX = 0
    """We do not hear the peer."""
    TX = 1
    """The peer reports that it does not hear us."""


class CarrierSource(IntEnum):
    """Where a link's carrier counters are read."""

    NONE = 0
    """The device is not there."""
    SYSFS = 1
    NETLINK = 2
    """/sys does not show this network namespace: RTM_GETLINK instead, about ten times dearer."""


class Refusal(StrEnum):
    """Why a packet on the probe port was dropped. None of them changes a path's state."""

    SHORT = "short"
    """Not of the wire's length (too long counts here too)."""
    MAGIC = "magic"
    VERSION = "version"
    AUTH = "auth"
    REPLAY = "replay"
    """Sequence seen or too old, or an incarnation of the peer that has ended."""
    UNKNOWN_PATH = "unknown_path"
    UNPROVEN = "unproven"
    """Well signed, of an incarnation that has not yet answered our challenge: a peer's first
    packets after its start, or a capture of an earlier life. A handful per restart is normal."""


@dataclass(frozen=True, slots=True)
class CarrierRecord:
    """A link's carrier or its counters changed between two readings (normally 2 ms apart)."""

    index: int
    """Number of this event since the prober started; consecutive."""
    mono_ns: int
    config: int
    """Configuration epoch (``RingHeader.config_epoch``) that ``link`` and ``path`` belong to."""
    link: int
    """Index in the configuration's links."""
    downs: int
    """Times the carrier went down since the last reading: add these up for the flap count. A
    vanished device counts one if its carrier was up. 0 in an ``initial`` record."""
    carrier: bool
    """Now."""
    down_count: int
    """The kernel's carrier_down_count; starts anew with a new device (``returned``)."""
    up_count: int
    since_ns: int
    """When the reading before this one was made: the change lies in (since_ns, mono_ns]."""
    initial: bool
    """First reading after the link was configured; a statement, not a change."""
    gone: bool
    """The device vanished."""
    returned: bool
    """The device is back, with a new ifindex."""


@dataclass(frozen=True, slots=True)
class MissRecord:
    """A packet was due on a path and did not come; repeated once per interval."""

    index: int
    mono_ns: int
    config: int
    link: int
    path: int
    direction: Direction
    count: int
    """*Conclusive* misses in a row, this one included. An inconclusive miss does not raise it, so
    ``not inconclusive and count >= misses`` makes a path silent."""
    inconclusive: bool
    """The prober itself was not running in the time judged: no evidence against the path."""
    interval_ns: int
    """The path's interval as the sending side keeps it."""
    silent_ns: int
    """How long nothing has been heard: by us (RX) or, as it says, by the peer (TX)."""
    last_heard_ns: int
    """When we last heard anything on this path, in either case."""
    due_ns: int = 0
    """When the packet was due, as its sender announced in fabric time, on our CLOCK_MONOTONIC. 0:
    its sender announced nothing, or the miss is one of TX."""


@dataclass(frozen=True, slots=True)
class HeardRecord:
    """A run of misses ended, or (``first``) the path was heard for the first time."""

    index: int
    mono_ns: int
    config: int
    link: int
    path: int
    direction: Direction
    count: int
    """Conclusive misses in the run that ended."""
    first: bool
    silent_ns: int
    peer_stalled: bool
    """The peer's prober says that it was itself not running lately: no fault of the path."""


@dataclass(frozen=True, slots=True)
class StallRecord:
    """The prober was not scheduled for ``gap_ns`` although it had asked to be."""

    index: int
    mono_ns: int
    config: int
    gap_ns: int
    start_ns: int


@dataclass(frozen=True, slots=True)
class PeerRestartRecord:
    """The peer's prober has a new incarnation, proven by its answer to our challenge."""

    index: int
    mono_ns: int
    config: int
    link: int
    path: int
    old_incarnation: int
    new_incarnation: int


@dataclass(frozen=True, slots=True)
class RdmaPortRecord:
    """The verbs port of an RDMA link became active, or no longer is (an asynchronous event)."""

    index: int
    mono_ns: int
    config: int
    link: int
    active: bool


EventRecord = (
    CarrierRecord | MissRecord | HeardRecord | StallRecord | PeerRestartRecord | RdmaPortRecord
)


@dataclass(frozen=True, slots=True)
class ProbeSample:
    """The stamps of one exchange; RTT without the peer's hold time is (t4-t1)-(t3-t2).

    ``t1``/``t2`` belong to our packet ``local_seq`` and are 0 when ``has_out`` is false; ``t3``/
    ``t4`` to the peer's packet ``peer_seq`` (``has_back``). Sequences are the low 32 bits.
    """

    index: int
    mono_ns: int
    config: int
    path: int
    local_seq: int
    peer_seq: int
    t1_ns: int
    """Our transmit stamp, our clock."""
    t2_ns: int
    """The peer's receive stamp, the peer's clock."""
    t3_ns: int
    """The peer's transmit stamp, the peer's clock."""
    t4_ns: int
    """Our receive stamp, our clock."""
    has_out: bool
    has_back: bool
    out_train: int
    """Position of our packet in its train of three: 1..3, or 0 for a single packet."""
    back_train: int
    hw_local: bool
    hw_peer: bool


class LinkRow(NamedTuple):
    """One configured link as it is now."""

    index: int  # type: ignore[assignment]  # hides tuple.index, of no use here
    netdev: str
    address: str
    port: int
    present: bool
    """The device exists."""
    bound: bool
    """The socket is open on device and address; otherwise it is retried."""
    carrier: bool
    source: CarrierSource
    hw_stamps: bool
    phc: int | None
    """Of hardware stamps: the clock that made them, /dev/ptp<n>."""
    ifindex: int
    carrier_down_count: int
    """The kernel's, of this ifindex. Compare with the last known to count over a prober restart."""
    carrier_up_count: int
    last_change_ns: int
    downs: int
    """Downs seen by this prober, over all devices of that name."""
    read_ns: int
    """When the counters were last read."""
    last_heard_ns: int
    """0: never."""
    sent: int
    received: int
    send_errors: int
    bind_errno: int = 0
    """Why the socket is not ``bound`` (errno); 0: it is bound, or was not tried yet."""
    rdma: bool = False
    """A verbs port; ``bound``: its queue pair is open; ``carrier``: the port is active."""


class PathRow(NamedTuple):
    """One configured path (our link, one peer address) as it is now."""

    index: int  # type: ignore[assignment]  # hides tuple.index, of no use here
    link: int
    address: str
    port: int
    host_id: int
    clock: bool
    established: bool
    """The peer's present incarnation is proven."""
    interval_ns: int
    """How often we send."""
    peer_interval_ns: int
    """How often the peer says it sends; judged by this. 0 until established."""
    sent: int
    received: int
    rx_lost: int
    """Packets of the peer that never came (known from later sequences)."""
    tx_lost: int
    """Packets of ours that the peer says never came."""
    duplicates: int
    rx_missed: int
    """Conclusive misses in a row, now."""
    tx_missed: int
    restarts: int
    rtt_last_ns: int
    """0 until measured; likewise the next two."""
    rtt_min_ns: int
    rtt_smoothed_ns: int
    last_heard_ns: int
    """0: never."""
    peer_incarnation: int
    rx_bitmap: int
    """Bit i: the peer's packet (highest sequence - i) arrived here."""
    tx_bitmap: int
    """Bit i: our packet (highest sequence that arrived there - i) arrived at the peer."""
    acked_ns: int
    """When the newest packet was sent that the peer says it heard; 0: none yet."""
    said_ns: int
    """When the newest packet heard was due, on the clock of the peer; 0: none yet."""
    due_ns: int
    """When the first single packet after that is, on the same clock."""
    awake_us: int
    """By ``said_ns`` the peer's prober had been running without a gap for so long."""
    gone: bool = False
    """The peer sent a bye on this path: it is silent by intent until it is heard again."""
    by_due_time: bool = False
    """It is judged by when packets are due in fabric time, as the peer announces."""
    late_ns: int = 0
    """The next packet is missed when it comes so much later than the last one did; 0: not known."""
    source_port: int = 0
    """UDP source port of our probes on this path; 0: the link's own."""
    port_refused: bool = False
    """Another one was asked for (`clocksync.page.ports`), and the peer does not hear it."""
    peer_moves: int = 0
    """Changes of the peer's source port, modulo 256."""
    rdma: bool = False
    """UD probes; ``link`` counts on after the UDP links."""
    peer_rdma: bool = False
    """The peer told of its queue pair, so it is probed."""


class MtuRow(NamedTuple):
    """Large packets of one path, by its index. Sizes are UDP payloads in bytes."""

    index: int  # type: ignore[assignment]  # hides tuple.index, of no use here
    tx_size: int
    """Of ours; 0: none was sent yet."""
    tx_missing: int
    """In a row: the peer answered a small one, and not the large one sent with it."""
    tx_passed_ns: int
    """When the newest one was answered; 0: never."""
    rx_size: int
    rx_missing: int
    """In a row: the peer's small one came, and not the large one that it announced."""
    rx_passed_ns: int


class RingHeader(NamedTuple):
    """The prober as a whole."""

    version: int
    pid: int
    incarnation: int
    """Greater in each life of the prober on this host."""
    start_ns: int
    heartbeat_ns: int
    """Written at least every 100 ms; a reader judges the prober's life by its age."""
    running: bool
    """False after an orderly stop."""
    config_epoch: int
    """0: not configured yet. Raised by each accepted configure."""
    link_count: int
    path_count: int
    link_interval_ns: int
    misses: int
    clock_train_hz: int
    realtime: bool
    """Runs under SCHED_FIFO."""
    locked: bool
    """Its memory is locked."""
    event_head: int
    """Events ever written."""
    sample_head: int
    sent: int
    received: int
    """Accepted packets."""
    stalls: int
    stall_ns: int
    stall_max_ns: int
    control_errors: int
    """Requests refused on the control socket."""
    refusals: tuple[int, ...]
    """Packets refused, in the order of `Refusal`."""
    synchronized: bool = False
    """Packets go by a grid of fabric time; else by one of the wall clock."""
    due_times_refused: int = 0
    """Packets that announced a due time of the next which did not fit their path's pace."""
    clock_read_ns: int = 0
    """What reading two clocks together takes: the kernel's stamps are off by up to half of it, all
    alike. 0: not known yet."""
    rdma_link_count: int = 0
    """RDMA links; their rows follow those of the UDP links. 0 of a prober that knows none."""
    rdma_path_count: int = 0

    @property
    def refused(self) -> dict[Refusal, int]:
        """Packets refused, by reason."""
        return dict(zip(Refusal, self.refusals, strict=True))
