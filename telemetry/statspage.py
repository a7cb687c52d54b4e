"""The plugin's stats pages: checks, decoding. Pure; `telemetry.statsdir` reads the files.

A page is written by a job and so is hostile: every count and name is checked, text is reduced to
printable ASCII, and whatever is wrong raises `StatsPageError` with a short reason that the daemon
counts.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import IntEnum

from telemetry.statslayout import (
    EVENT_FIELDS,
    EVENT_SIZE,
    EVENTS_AT,
    GROUP_FIELDS,
    GROUP_SIZE,
    GROUPS_AT,
    HEADER_FIELDS,
    HEADER_SIZE,
    LATENCY_AT,
    LATENCY_BUCKETS,
    LATENCY_FIELDS,
    LATENCY_SIZE,
    MAGIC,
    MAX_EVENTS,
    MAX_GROUPS,
    MAX_RAILS,
    NO_RAIL,
    OLDEST_VERSION,
    PAGE_SIZE,
    RAIL_FIELDS,
    RAIL_SIZE,
    RAILS_AT,
    VERSION,
    codec,
)

_HEADER, _RAIL, _EVENT = codec(HEADER_FIELDS), codec(RAIL_FIELDS), codec(EVENT_FIELDS)
_LATENCY, _GROUP = codec(LATENCY_FIELDS), codec(GROUP_FIELDS)
_NETDEV = re.compile(rb"[!-~]{1,15}\Z")


class StatsEventKind(IntEnum):
    """What happened in the plugin."""

    PATH_DOWN = 1
    """A path was given up; ``detail`` is a `PathDownReason`."""
    FIRST_BYTE = 2
    """First payload byte of that comm on a survivor after PATH_DOWN."""
    FENCE_DONE = 3
    """The peer answered the fence; ``detail`` is the bytes to resend."""
    PATH_UP = 4
    RAIL_TOLD_DOWN = 5
    """The peer said in band that its rail is down."""
    ALL_PATHS_DOWN = 6
    ERROR = 7
    """An error went to NCCL; ``detail`` is the result code."""
    PATH_WEIGHT = 8
    """The weight by latency of a path changed; ``detail`` is the new one, of 1000."""


class PathDownReason(IntEnum):
    """Which detector was first."""

    STEER_PAGE = 1
    SOCKET_ERROR = 2
    NO_ACK = 3
    PEER_TOLD = 4
    CARRIER = 5
    CONNECT_FAILED = 6
    PATH_VALIDATION = 7
    MOVED = 8
    REHASH = 9


class StatsPageError(Exception):
    """A page was refused.

    Attributes:
        reason: one word of a fixed set, fit for a metric label.
    """

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(f"{reason}: {text}" if text else reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Latency:
    """Of messages, from posting to the receiving core's acknowledgement, measured at the sender."""

    sum_ns: int = 0
    buckets: tuple[int, ...] = (0,) * LATENCY_BUCKETS
    """Messages per bucket: 0 is below 1 µs, i from 2^(i-1) to 2^i µs, the last has no end."""

    @property
    def count(self) -> int:
        """Messages in all."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class StatsRail:
    """One rail of one process. Counters since the process began; bytes and nanoseconds."""

    netdev: str
    tx_bytes: int = 0
    rx_bytes: int = 0
    tx_chunks: int = 0
    rx_chunks: int = 0
    retransmit_bytes: int = 0
    retransmit_chunks: int = 0
    duplicate_bytes: int = 0
    failovers: int = 0
    rejoins: int = 0
    stalls: int = 0
    stall_ns: int = 0
    in_flight_bytes: int = 0
    live_paths: int = 0
    dead_paths: int = 0
    tx_messages: int = 0
    """Acknowledged by the peer's core; the last chunk of each went over this rail."""
    rx_messages: int = 0
    latency: Latency = Latency()


class Direction(IntEnum):
    """Of a comm group's traffic, from the process whose page it is."""

    BOTH = 0
    """The last row: all groups that have none of their own."""
    SEND = 1
    RECEIVE = 2


@dataclass(frozen=True, slots=True)
class StatsGroup:
    """All communicators with one peer process in one direction. Bytes and nanoseconds."""

    address: str
    """Of the peer's first rail; empty in the row of all others."""
    incarnation: int
    direction: Direction
    comms: int = 0
    """Open now."""
    bytes: int = 0
    messages: int = 0
    retransmit_bytes: int = 0
    retransmit_chunks: int = 0
    failovers: int = 0
    stalls: int = 0
    stall_ns: int = 0
    in_flight_bytes: int = 0
    latency: Latency = Latency()


@dataclass(frozen=True, slots=True)
class StatsPage:
    """A consistent copy of one page's header and rails."""

    pid: int
    start_ns: int
    heartbeat_ns: int
    send_comms: int
    recv_comms: int
    errors: int
    refused_peers: int
    steer_rejected: int
    event_count: int
    steer_present: bool
    failover: bool
    job: str
    rails: tuple[StatsRail, ...]
    groups: tuple[StatsGroup, ...] = ()
    """Only when asked for."""
    pid_namespace: int = 0
    """Inode of the pid namespace in which ``pid`` means something; 0: not known."""
    refused_fenced: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """(pid, start_ns): the process's incarnation."""
        return self.pid, self.start_ns


@dataclass(frozen=True, slots=True)
class StatsEvent:
    """One event. ``index`` counts from 0; ``time_ns`` is CLOCK_MONOTONIC."""

    index: int
    time_ns: int
    comm: int
    kind: StatsEventKind
    local_rail: int | None
    remote_rail: int | None
    detail: int


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in order, the index to go on from, and how many were overwritten or not valid."""

    events: tuple[StatsEvent, ...]
    next_index: int
    lost: int = 0


def sequence(data: bytes) -> int:
    """The seqlock's value at the start of a page (at least 16 bytes)."""
    return int.from_bytes(data[8:16], "little")


def parse(data: bytes, *, groups: bool = False) -> StatsPage:
    """Decode header, rails and latencies of a page.

    The caller has made sure by the seqlock that they belong together.

    Args:
        data: the page, `PAGE_SIZE` bytes (version 1: at least the first `EVENTS_AT`).
        groups: the comm groups, too.

    Raises:
        StatsPageError: reason short, magic, version, size, torn, count, netdev, group.
    """
    if len(data) < EVENTS_AT:
        raise StatsPageError("short", f"{len(data)} bytes")
    raw = dict(zip((name for name, _ in HEADER_FIELDS), _HEADER.unpack_from(data), strict=True))
    if raw["magic"] != MAGIC:
        raise StatsPageError("magic", hex(raw["magic"]))
    if not OLDEST_VERSION <= raw["version"] <= VERSION:
        raise StatsPageError("version", str(raw["version"]))
    if raw["header_size"] != HEADER_SIZE or raw["page_size"] != PAGE_SIZE:
        raise StatsPageError("size", f"header {raw['header_size']}, page {raw['page_size']}")
    if raw["seq"] & 1:
        raise StatsPageError("torn")
    whole = raw["version"] >= 2
    if whole and len(data) < PAGE_SIZE:
        raise StatsPageError("short", f"{len(data)} bytes")
    if raw["rail_count"] > MAX_RAILS:
        raise StatsPageError("count", f"{raw['rail_count']} rails")
    if whole and raw["group_count"] > MAX_GROUPS:
        raise StatsPageError("count", f"{raw['group_count']} groups")
    rails = tuple(_rail(data, i, whole=whole) for i in range(raw["rail_count"]))
    if len({rail.netdev for rail in rails}) != len(rails):
        raise StatsPageError("netdev", "named twice")
    rows = range(raw["group_count"]) if whole and groups else ()
    return StatsPage(
        pid=raw["pid"],
        start_ns=raw["start_ns"],
        heartbeat_ns=raw["heartbeat_ns"],
        send_comms=raw["send_comms"],
        recv_comms=raw["recv_comms"],
        errors=raw["errors"],
        refused_peers=raw["refused_peers"],
        refused_fenced=raw["refused_fenced"],
        steer_rejected=raw["steer_rejected"],
        event_count=raw["event_count"],
        steer_present=raw["steer_present"] == 1,
        failover=raw["failover"] != 0,
        job=_printable(raw["job"]),
        rails=rails,
        groups=tuple(_group(data, i) for i in rows),
        pid_namespace=raw["pid_namespace"] if whole else 0,
    )


def parse_events(ring: bytes, again: bytes, *, since: int, count: int, rails: int) -> EventBatch:
    """Events with index ≥ ``since`` from two copies of the event ring, read one after the other.

    An event is taken when both copies of its slot agree and the slot's own index is the one
    expected. A slot that is not written yet ends the batch; one written over since, or whose
    content is not valid, is counted as lost.

    Args:
        ring: the ring's bytes, `MAX_EVENTS` × `EVENT_SIZE`.
        again: the same, read later.
        since: the first index wanted.
        count: ``event_count`` of the header, read *before* both copies.
        rails: ``rail_count``, the bound for ``local_rail``.

    Raises:
        StatsPageError: reason short; or events, when ``count`` went backwards.
    """
    if len(ring) < MAX_EVENTS * EVENT_SIZE or len(again) < MAX_EVENTS * EVENT_SIZE:
        raise StatsPageError("short", "event ring")
    if count < since:
        raise StatsPageError("events", f"count {count} after {since}")
    first = max(since, count - MAX_EVENTS)
    lost = first - since
    events: list[StatsEvent] = []
    at = first
    while at < count:
        where = (at % MAX_EVENTS) * EVENT_SIZE
        slot = ring[where : where + EVENT_SIZE]
        index, time_ns, comm, kind, local, remote, detail = _EVENT.unpack(slot)
        if index < at + 1:
            break  # not written yet
        if index > at + 1 or slot != again[where : where + EVENT_SIZE]:
            lost += 1  # overwritten
        elif kind not in _KINDS or not (local == NO_RAIL or local < rails):
            lost += 1
        else:
            events.append(
                StatsEvent(
                    index=at,
                    time_ns=time_ns,
                    comm=comm,
                    kind=StatsEventKind(kind),
                    local_rail=None if local == NO_RAIL else local,
                    remote_rail=None if remote == NO_RAIL else remote,
                    detail=detail,
                )
            )
        at += 1
    return EventBatch(tuple(events), at, lost)


_KINDS = frozenset(int(kind) for kind in StatsEventKind)
_DIRECTIONS = frozenset(int(direction) for direction in Direction)


def _rail(data: bytes, index: int, *, whole: bool) -> StatsRail:
    name, *values = _RAIL.unpack_from(data, RAILS_AT + index * RAIL_SIZE)
    text = name.split(b"\0", 1)[0]
    if not _NETDEV.match(text):
        raise StatsPageError("netdev", repr(text))
    fields = dict(zip((field for field, _ in RAIL_FIELDS[1:-1]), values[:-1], strict=True))
    if not whole:
        fields.update(tx_messages=0, rx_messages=0)
    latency = _latency(data, LATENCY_AT + index * LATENCY_SIZE) if whole else Latency()
    return StatsRail(netdev=text.decode("ascii"), latency=latency, **fields)


def _latency(data: bytes, at: int) -> Latency:
    sum_ns, *buckets = _LATENCY.unpack_from(data, at)
    return Latency(sum_ns, tuple(buckets))


def _group(data: bytes, index: int) -> StatsGroup:
    at = GROUPS_AT + index * GROUP_SIZE
    names = (field for field, _ in GROUP_FIELDS)
    raw = dict(zip(names, _GROUP.unpack_from(data, at), strict=True))
    if raw["direction"] not in _DIRECTIONS:
        raise StatsPageError("group", f"direction {raw['direction']}")
    for unused in ("reserved0", "reserved"):
        del raw[unused]
    address = ipaddress.IPv6Address(raw.pop("address"))
    direction = Direction(raw.pop("direction"))
    latency = _latency(raw.pop("latency"), 0)
    named = "" if not int(address) else str(address.ipv4_mapped or address)
    return StatsGroup(address=named, direction=direction, latency=latency, **raw)


def _printable(raw: bytes) -> str:
    """Text up to the first NUL, anything but printable ASCII replaced by ``?``."""
    return "".join(chr(c) if 32 <= c < 127 else "?" for c in raw.split(b"\0", 1)[0])
