"""What other hosts say they see, from the reports in their probes, for `locate`. Pure.

A report is what ``prober/src/core/peer_reports.h`` says: one path or one port as its reporter
sees it. It is second-hand: it helps to say *where* a fault is, and (`fabricd.detect.unseen`) that a
link which was never heard is expected by others. It never makes a verdict about what this host
hears itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from fabricd.detect.locate import CLEAN, SILENT, Flow, Port

Row = tuple[int, int, int]
"""Reporter's host id, packed report, when it was heard (CLOCK_MONOTONIC ns)."""


class ReportKind(IntEnum):
    """What a report is about."""

    PATH = 1
    PORT = 2


class Reachability(IntEnum):
    """One direction of a path; of a port (carrier): UNKNOWN, WELL or SILENT."""

    UNKNOWN = 0
    """Never heard; or not known."""
    WELL = 1
    SILENT = 2
    DOUBT = 3
    """Some misses, fewer than make a path silent."""
    GONE = 4
    """Its peer sent a bye."""


@dataclass(frozen=True, slots=True)
class PeerReport:
    """What one host says of one of its paths or ports."""

    reporter: str
    kind: ReportKind
    rail: int
    peer: str
    peer_rail: int
    heard: Reachability
    told: Reachability
    """Whether the peer says that it hears the reporter."""
    at_ns: int


def read(rows: Iterable[Row], names: Mapping[int, str]) -> list[PeerReport]:
    """Reports out of the prober's table; what makes no sense is left out.

    Args:
        rows: as `fabricd.probes.client.ProberClient.views` gives them.
        names: host id → name; a host without one is called ``#`` and its number.
    """
    out = []
    for reporter, packed, at_ns in rows:
        try:
            kind = ReportKind(packed & 0xF)
            heard, told = Reachability(packed >> 16 & 0xF), Reachability(packed >> 20 & 0xF)
        except ValueError:
            continue
        peer = packed >> 32 & 0xFFFFFFFF
        out.append(
            PeerReport(
                names.get(reporter, f"#{reporter:08x}"),
                kind,
                packed >> 4 & 63,
                names.get(peer, f"#{peer:08x}") if kind is ReportKind.PATH else "",
                packed >> 10 & 63,
                heard,
                told,
                at_ns,
            )
        )
    return out


def flows(reports: Iterable[PeerReport], *, well_since: int) -> list[Flow]:
    """Which directions are silent and which are well, as `locate` takes them.

    Args:
        reports: of any hosts.
        well_since: good news from before (ns) is old: its reporter could not yet know better.
    """
    out = []
    for report in reports:
        if report.kind is not ReportKind.PATH:
            continue
        own, peer = (report.reporter, report.rail), (report.peer, report.peer_rail)
        for source, target, seen in ((peer, own, report.heard), (own, peer, report.told)):
            if seen is Reachability.SILENT:
                out.append(Flow(source, target, SILENT))
            elif seen is Reachability.WELL and report.at_ns >= well_since:
                out.append(Flow(source, target, CLEAN))
    return out


def ports(reports: Iterable[PeerReport]) -> tuple[set[Port], set[Port]]:
    """Ports without carrier, and ports with it."""
    dark: set[Port] = set()
    lit: set[Port] = set()
    for report in reports:
        if report.kind is not ReportKind.PORT:
            continue
        if report.heard in (Reachability.SILENT, Reachability.WELL):
            which = dark if report.heard is Reachability.SILENT else lit
            which.add((report.reporter, report.rail))
    return dark, lit


def near(seen: Sequence[Flow], ends: Iterable[Port]) -> list[Flow]:
    """The flows that touch a host or a rail of ``ends``: no other could accuse or clear them."""
    hosts, rails = {host for host, _ in ends}, {rail for _, rail in ends}
    return [
        flow for flow in seen
        if {flow.source[0], flow.target[0]} & hosts or {flow.source[1], flow.target[1]} & rails
    ]  # fmt: skip
