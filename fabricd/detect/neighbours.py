"""What other hosts say they see, from the words in their probes, for `locate`. Pure.

A word is what ``prober/src/core/peer_reports.h`` says: one path or one port as its speaker
sees it. It is hearsay: it helps to say *where* a fault is, and (`fabricd.detect.unseen`) that a
link which was never heard is expected by others. It never makes a verdict about what this host
hears itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from fabricd.detect.locate import CLEAN, SILENT, Flow, Port

Row = tuple[int, int, int]
"""Speaker's host id, word, when it was heard (CLOCK_MONOTONIC ns)."""


class Kind(IntEnum):
    """What a word is about."""

    PATH = 1
    PORT = 2


class Seen(IntEnum):
    """One direction of a path; of a port (carrier): UNKNOWN, WELL or SILENT."""

    UNKNOWN = 0
    """Never heard; or not known."""
    WELL = 1
    SILENT = 2
    DOUBT = 3
    """Some misses, fewer than make a path silent."""
    GONE = 4
    """Its peer said farewell."""


@dataclass(frozen=True, slots=True)
class Word:
    """What one host says of one of its paths or ports."""

    speaker: str
    kind: Kind
    rail: int
    peer: str
    peer_rail: int
    heard: Seen
    told: Seen
    """Whether the peer says that it hears the speaker."""
    at_ns: int


def read(rows: Iterable[Row], names: Mapping[int, str]) -> list[Word]:
    """Words out of the prober's table; what makes no sense is left out.

    Args:
        rows: as `fabricd.probes.client.ProberClient.views` gives them.
        names: host id → name; a host without one is called ``#`` and its number.
    """
    out = []
    for speaker, word, at_ns in rows:
        try:
            kind = Kind(word & 0xF)
            heard, told = Seen(word >> 16 & 0xF), Seen(word >> 20 & 0xF)
        except ValueError:
            continue
        peer = word >> 32 & 0xFFFFFFFF
        out.append(
            Word(
                names.get(speaker, f"#{speaker:08x}"),
                kind,
                word >> 4 & 63,
                names.get(peer, f"#{peer:08x}") if kind is Kind.PATH else "",
                word >> 10 & 63,
                heard,
                told,
                at_ns,
            )
        )
    return out


def flows(words: Iterable[Word], *, well_since: int) -> list[Flow]:
    """Which directions are silent and which are well, as `locate` takes them.

    Args:
        words: of any hosts.
        well_since: good news from before (ns) is old: its speaker could not yet know better.
    """
    out = []
    for word in words:
        if word.kind is not Kind.PATH:
            continue
        own, peer = (word.speaker, word.rail), (word.peer, word.peer_rail)
        for source, target, seen in ((peer, own, word.heard), (own, peer, word.told)):
            if seen is Seen.SILENT:
                out.append(Flow(source, target, SILENT))
            elif seen is Seen.WELL and word.at_ns >= well_since:
                out.append(Flow(source, target, CLEAN))
    return out


def ports(words: Iterable[Word]) -> tuple[set[Port], set[Port]]:
    """Ports without carrier, and ports with it."""
    dark: set[Port] = set()
    lit: set[Port] = set()
    for word in words:
        if word.kind is Kind.PORT and word.heard in (Seen.SILENT, Seen.WELL):
            (dark if word.heard is Seen.SILENT else lit).add((word.speaker, word.rail))
    return dark, lit


def near(seen: Sequence[Flow], ends: Iterable[Port]) -> list[Flow]:
    """The flows that touch a host or a rail of ``ends``: no other could accuse or clear them."""
    hosts, rails = {host for host, _ in ends}, {rail for _, rail in ends}
    return [
        flow for flow in seen
        if {flow.source[0], flow.target[0]} & hosts or {flow.source[1], flow.target[1]} & rails
    ]  # fmt: skip
