"""From the fields of a raw ring record to its dataclass; ValueError when it makes no sense."""

from __future__ import annotations

import functools
import ipaddress
from typing import Any

from fabricd.probes import layout as lay
from fabricd.probes.records import (
    CarrierRecord,
    CarrierSource,
    Direction,
    EventRecord,
    HeardRecord,
    LinkRow,
    MissRecord,
    PathRow,
    PeerRestartRecord,
    ProbeSample,
    RdmaPortRecord,
    StallRecord,
)


@functools.lru_cache(maxsize=4096)
def address_text(raw: bytes) -> str:
    """16 bytes, IPv6 or IPv4-mapped, as text."""
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def link_row(index: int, values: tuple[Any, ...]) -> LinkRow:
    """Row ``index`` of the link table from the fields of ``LINK_ROW``."""
    (_, netdev, address, port, bind_errno, flags, ifindex, phc, down, up, change, downs, read_ns,
     heard, sent, received, errors) = values  # fmt: skip
    return LinkRow(
        index=index,
        netdev=netdev.split(b"\0", 1)[0].decode("ascii"),
        address=address_text(address),
        port=port,
        present=bool(flags & lay.LINK_PRESENT),
        bound=bool(flags & lay.LINK_BOUND),
        carrier=bool(flags & lay.LINK_CARRIER),
        source=CarrierSource(flags >> lay.LINK_SOURCE_SHIFT & 3),
        hw_stamps=bool(flags & lay.LINK_HW_STAMPS),
        phc=phc - 1 if phc else None,
        ifindex=ifindex,
        carrier_down_count=down,
        carrier_up_count=up,
        last_change_ns=change,
        downs=downs,
        read_ns=read_ns,
        last_heard_ns=heard,
        sent=sent,
        received=received,
        send_errors=errors,
        bind_errno=bind_errno,
        rdma=bool(flags & lay.LINK_RDMA),
    )


def path_row(index: int, values: tuple[Any, ...]) -> PathRow:
    """Row ``index`` of the path table from the fields of ``PATH_ROW``."""
    (_, address, port, link, flags, host, awake, interval, peer_interval, sent, received, rx_lost,
     tx_lost, duplicates, restarts, rx_missed, tx_missed, rtt_last, rtt_min, rtt_smoothed, heard,
     incarnation, rx_bitmap, tx_bitmap, acked, said, due, late) = values  # fmt: skip
    if link >= lay.MAX_LINKS:
        raise ValueError("link")
    clock, established, gone, by_due_time, source, refused, moves, rdma, told = _path_flags(flags)
    # In the order of PathRow: by keywords it takes twice as long, and there are hundreds a second.
    return PathRow(
        index, link, address_text(address), port, host, clock, established,
        interval, peer_interval, sent, received, rx_lost, tx_lost, duplicates,
        rx_missed, tx_missed, restarts, rtt_last, rtt_min, rtt_smoothed, heard, incarnation,
        rx_bitmap, tx_bitmap, acked, said, due, awake, gone, by_due_time, late,
        source, refused, moves, rdma, told,
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _path_flags(flags: int) -> tuple[bool, bool, bool, bool, int, bool, int, bool, bool]:
    """Clock, established, gone, by due time; port, refused, the peer's moves; RDMA, QP known."""
    return (
        bool(flags & lay.PATH_CLOCK),
        bool(flags & lay.PATH_ESTABLISHED),
        bool(flags & lay.PATH_GONE),
        bool(flags & lay.PATH_BY_DUE_TIME),
        flags >> lay.PATH_PORT_SHIFT,
        bool(flags & lay.PATH_PORT_REFUSED),
        flags >> lay.PATH_PEER_MOVES_SHIFT & 0xFF,
        bool(flags & lay.PATH_RDMA),
        bool(flags & lay.PATH_PEER_RDMA),
    )


def event(number: int, values: tuple[Any, ...]) -> EventRecord:
    """Event ``number`` from the fields of ``EVENT_RECORD``."""
    _, mono_ns, kind, flags, link, path, count, config, a, b, c, d = values
    if kind == lay.KIND_STALL:
        return StallRecord(number, mono_ns, config, gap_ns=a, start_ns=b)
    if link >= lay.MAX_LINKS:
        raise ValueError("link")
    if kind == lay.KIND_CARRIER:
        return CarrierRecord(
            number,
            mono_ns,
            config,
            link,
            downs=count,
            carrier=bool(flags & lay.FLAG_CARRIER),
            down_count=a,
            up_count=b,
            since_ns=c,
            initial=bool(flags & lay.FLAG_INITIAL),
            gone=bool(flags & lay.FLAG_GONE),
            returned=bool(flags & lay.FLAG_RETURNED),
        )
    if kind == lay.KIND_RDMA_PORT:
        active = bool(flags & lay.FLAG_CARRIER)
        return RdmaPortRecord(number, mono_ns, config, link, active=active)
    if path >= lay.MAX_PATHS:
        raise ValueError("path")
    direction = Direction.TX if flags & lay.FLAG_TX else Direction.RX
    if kind == lay.KIND_MISS:
        return MissRecord(
            number,
            mono_ns,
            config,
            link,
            path,
            direction,
            count,
            inconclusive=bool(flags & lay.FLAG_INCONCLUSIVE),
            interval_ns=a,
            silent_ns=b,
            last_heard_ns=c,
            due_ns=d,
        )
    if kind == lay.KIND_HEARD:
        return HeardRecord(
            number,
            mono_ns,
            config,
            link,
            path,
            direction,
            count,
            first=bool(flags & lay.FLAG_FIRST),
            silent_ns=a,
            peer_stalled=bool(flags & lay.FLAG_PEER_STALLED),
        )
    if kind == lay.KIND_PEER_RESTART:
        return PeerRestartRecord(
            number, mono_ns, config, link, path, old_incarnation=a, new_incarnation=b
        )
    raise ValueError("kind")


def sample(number: int, values: tuple[Any, ...]) -> ProbeSample:
    """Sample ``number`` from the fields of ``SAMPLE_RECORD``."""
    _, mono_ns, path, flags, config, local_seq, peer_seq, t1, t2, t3, t4, *_clock_message = values
    if path >= lay.MAX_PATHS:
        raise ValueError("path")
    return ProbeSample(
        index=number,
        mono_ns=mono_ns,
        config=config,
        path=path,
        local_seq=local_seq,
        peer_seq=peer_seq,
        t1_ns=t1,
        t2_ns=t2,
        t3_ns=t3,
        t4_ns=t4,
        has_out=bool(flags & lay.SAMPLE_HAS_OUT),
        has_back=bool(flags & lay.SAMPLE_HAS_BACK),
        out_train=flags >> lay.SAMPLE_OUT_TRAIN_SHIFT & 3,
        back_train=flags >> lay.SAMPLE_BACK_TRAIN_SHIFT & 3,
        hw_local=bool(flags & lay.SAMPLE_HW_LOCAL),
        hw_peer=bool(flags & lay.SAMPLE_HW_PEER),
    )
