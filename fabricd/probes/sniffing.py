"""Listens for probes with scapy (extra ``fabricd[sniff]``, GPL-2.0-only): ``fabricctl sniff``.

Nothing that the daemon imports may import this module.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from gzip import BadGzipFile
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from scapy.config import conf
from scapy.error import Scapy_Exception
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.utils import PcapReader, PcapWriter

from fabricd.probes import wire
from fabricd.probes.layout import WIRE_MAGIC, WIRE_SIZE, WIRE_VERSION
from fabricd.probes.sniff import Probe, bind

_BATCH_S = 0.5


class SniffError(Exception):
    """Cannot listen, or not a pcap."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One packet of the probe port."""

    time_s: float
    summary: str
    detail: str
    genuine: bool | None
    """None: no keys were given, or it is not a probe."""


def listen(
    *,
    interface: str = "",
    pcap: Path | None = None,
    port: int = 9200,
    count: int = 0,
    keys: Sequence[bytes] = (),
    write: Path | None = None,
    names: Mapping[int, str] = MappingProxyType({}),
) -> Iterator[Seen]:
    """Yield the packets of the probe port.

    Args:
        interface: where to listen; or
        pcap: what to read.
        port: UDP.
        count: end after that many; 0: at the file's end, or never.
        keys: to check the tags with.
        write: a pcap to keep them in.
        names: number on the wire → name, of the hosts that are known.

    Raises:
        SniffError: with a text for the operator.
    """
    bind(port)
    writer = None
    seen = 0
    try:
        if write is not None:
            writer = PcapWriter(str(write), sync=True)
        for packet in _packets(interface, pcap):
            if UDP not in packet or port not in (packet[UDP].sport, packet[UDP].dport):
                continue
            if writer is not None:
                writer.write(packet)
            yield look(packet, keys, names)
            seen += 1
            if seen == count:
                return
    except (Scapy_Exception, EOFError, PermissionError, BadGzipFile, zlib.error) as error:
        raise SniffError(f"{pcap or interface}: {error}") from error
    finally:
        if writer is not None:
            writer.close()


def look(
    packet: Any,  # noqa: ANN401 - a scapy packet
    keys: Sequence[bytes] = (),
    names: Mapping[int, str] = MappingProxyType({}),
) -> Seen:
    """What one packet of the probe port is; hostile bytes give a summary, never an error."""
    udp = packet[UDP]
    layer = IPv6 if IPv6 in packet else IP
    source, destination = (packet[layer].src, udp.sport), (packet[layer].dst, udp.dport)
    ends = f"{source[0]}:{source[1]} > {destination[0]}:{destination[1]}"
    raw = bytes(udp.payload)
    when = float(packet.time)
    if raw[:4] == wire.MTU_MAGIC.to_bytes(4, "little"):
        what = {1: "small", 2: "large", 3: "answer"}.get(raw[5] if len(raw) > 5 else 0, "?")
        return Seen(when, f"{ends}  {len(raw)} bytes: MTU probe ({what})", raw[:56].hex(), None)
    if len(raw) != WIRE_SIZE:
        return Seen(when, f"{ends}  {len(raw)} bytes: not a probe", raw.hex(), None)
    probe = udp.payload if isinstance(udp.payload, Probe) else Probe(raw)
    if probe.magic != WIRE_MAGIC or probe.version != WIRE_VERSION:
        what = f"magic {probe.magic:#x} version {probe.version}: not a probe of this version"
        return Seen(when, f"{ends}  {what}", raw.hex(), None)
    good = None if not keys else any(_genuine(probe, udp, key) for key in keys)
    tag = {None: "", True: "  tag right", False: "  TAG WRONG"}[good]
    host = names.get(probe.host_id, f"{probe.host_id:08x}")
    summary = (
        f"{ends}  host {host} path {probe.path} seq {probe.seq} flags {probe.flags} "
        f"heard {probe.rx_max} lost {probe.rx_lost} missed {probe.rx_missed}{tag}"
    )
    return Seen(when, summary, probe.show(dump=True), good)


def _genuine(probe: Probe, udp: Any, key: bytes) -> bool:  # noqa: ANN401
    if probe.underlayer is None:
        probe.add_underlayer(udp)
    return probe.genuine(key)


def _opened(pcap: Path) -> IO[bytes] | gzip.GzipFile:
    with pcap.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(pcap) if packed else pcap.open("rb")


def _packets(interface: str, pcap: Path | None) -> Iterator[Any]:
    if pcap is not None:
        # Given a path, scapy leaves the file open where it is no pcap.
        with _opened(pcap) as file, PcapReader(file) as reader:
            yield from reader
        return
    try:
        socket = conf.L2listen(iface=interface)
    except (OSError, ValueError) as error:
        raise SniffError(f"{interface}: {error}") from error
    try:
        while True:
            if socket.select([socket], _BATCH_S) and (packet := socket.recv()) is not None:
                yield packet
    finally:
        socket.close()
