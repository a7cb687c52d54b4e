"""Whether probes watch each link. Pure.

A link on which no probe is heard has no probe evidence: a black hole there is seen by nobody. Such
a link is not steered away, but its state says that it is judged by its carrier only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from telemetry.events import ProbeState

NEVER_HEARD_NS = 30 * 10**9
"""A link with carrier is probed for that long before its silence is told."""
UNBOUND_NS = 10**9
"""A socket may be unbound for that long: a restarted prober binds within milliseconds."""
OFF_NS = 10 * 10**9
"""The start of a host, a restart of the prober and a renewed address take less."""

CARRIER_ONLY = "carrier only"
NO_ADDRESS = "no address"


class ProbedLink(NamedTuple):
    """One configured link and what the prober says of it. Times are CLOCK_MONOTONIC ns."""

    netdev: str
    rail: int
    address: str | None
    """Probes leave from it; None: the device has none."""
    port: int
    """UDP port of the probe socket."""
    paths: int
    """Configured paths of the link."""
    usable: bool
    """Carrier is present and the device is administratively up."""
    present: bool = False
    """The device exists, as the prober sees it."""
    bound: bool = False
    """The probe socket is bound."""
    bind_errno: int = 0
    heard_ns: int = 0
    """When the newest packet came on one of the present paths; 0: never."""
    peers: bool = False
    """The configuration has peers on the link's rail: it is meant to be probed."""
    address_note: str = ""
    """Why the device has no usable address, or which others it has; empty: nothing to say."""


class ProbeChange(NamedTuple):
    """One link's probe state became another one."""

    netdev: str
    rail: int
    before: ProbeState | None
    state: ProbeState | None
    """None: probed again, and nothing was heard yet."""
    reason: str


@dataclass(slots=True)
class _Known:
    """One link. Times are CLOCK_MONOTONIC ns; 0: the condition does not hold."""

    state: ProbeState | None = None
    why: str = ""
    told: bool = False
    """A change of it was told."""
    unheard_ns: int = 0
    """Since when the link is probed, has carrier and hears nothing."""
    unbound_ns: int = 0
    off_ns: int = 0


class ProbeWatch:
    """Remembers the probe state of each link."""

    def __init__(self) -> None:
        self._links: dict[str, _Known] = {}

    def state(self, netdev: str) -> ProbeState | None:
        """The link's probe state; None: not known yet."""
        known = self._links.get(netdev)
        return known.state if known else None

    def unwatched(self, netdev: str, now: int) -> str:
        """Why probes say nothing about the link, as of ``now`` (ns); empty: they watch it."""
        known = self._links.get(netdev)
        if known is None or known.state in (None, ProbeState.HEARD):
            return ""
        text, since = {
            ProbeState.NEVER_HEARD: ("never heard", known.unheard_ns),
            ProbeState.UNBOUND: ("probe socket not bound", known.unbound_ns or known.off_ns),
        }.get(known.state, ("not probed", known.off_ns))
        age = "" if not since else f" for {(now - since) / 1e9:.0f} s"
        detail = f" ({known.why})" if known.why else ""
        return f"{text}{age}{detail}, {CARRIER_ONLY}"

    def update(
        self, links: Sequence[ProbedLink], now: int, *, prober: bool, refusal: str = ""
    ) -> list[ProbeChange]:
        """Judge all links; returns those whose state changed.

        Args:
            links: all configured links; one that is missing is forgotten.
            now: CLOCK_MONOTONIC ns.
            prober: whether the links hold what a living prober says.
            refusal: why a living prober does not take the configuration.
        """
        absent = f"the prober refuses the configuration: {refusal}" if refusal else "no prober"
        self._links = {x.netdev: self._links.get(x.netdev) or _Known() for x in links}
        changes = []
        for link in links:
            known = self._links[link.netdev]
            before = known.state
            known.state, known.why = _judge(link, known, now, absent="" if prober else absent)
            if known.state is before:
                continue
            if known.state is ProbeState.HEARD and not known.told:
                continue  # it has merely started
            known.told = True
            reason = self.unwatched(link.netdev, now) or _WATCHED[known.state]
            changes.append(ProbeChange(link.netdev, link.rail, before, known.state, reason))
        return changes


_WATCHED: Mapping[ProbeState | None, str] = {
    ProbeState.HEARD: "probes are heard",
    None: "probed again, nothing heard yet",
}


def _judge(
    link: ProbedLink, known: _Known, now: int, *, absent: str
) -> tuple[ProbeState | None, str]:
    """The state that holds now, and a detail; the clocks in ``known`` are started and stopped.

    ``absent``: why no prober says anything; empty: one does.
    """
    if off := _why_off(link, absent):
        known.unbound_ns = 0
        known.off_ns = known.off_ns or now
        if now - known.off_ns < OFF_NS:
            return known.state, known.why
        # Peers wait for it, and it has carrier: its address was lost.
        lost = off == NO_ADDRESS and link.peers and link.usable
        if off == NO_ADDRESS and link.address_note not in ("", "has no address"):
            off = f"{NO_ADDRESS}: {link.address_note}"
        return (ProbeState.UNBOUND if lost else ProbeState.OFF), off
    known.off_ns = 0
    if not link.bound:
        known.unbound_ns = known.unbound_ns or now
        # An interface that is down has no IPv6 address to bind to: that is no fault.
        lasts = now - known.unbound_ns >= UNBOUND_NS and link.usable
        return (ProbeState.UNBOUND, _why_unbound(link)) if lasts else (known.state, known.why)
    known.unbound_ns = 0
    if link.heard_ns:
        known.unheard_ns = 0
        return ProbeState.HEARD, ""
    # A restarted prober has heard nothing yet, nor has one whose link is without carrier.
    waiting = known.state if known.state in (ProbeState.HEARD, ProbeState.NEVER_HEARD) else None
    if not link.usable:
        known.unheard_ns = 0
        return waiting, ""
    known.unheard_ns = known.unheard_ns or now
    lasts = now - known.unheard_ns >= NEVER_HEARD_NS
    return (ProbeState.NEVER_HEARD, _from(link)) if lasts else (waiting, known.why)


def _from(link: ProbedLink) -> str:
    """Where the probes leave from: peers may know the link by another address."""
    if not link.address_note:
        return f"from {link.address}"
    return f"from {link.address}; {link.netdev} {link.address_note}: set address in [[links]]"


def _why_off(link: ProbedLink, absent: str) -> str:
    """Why nothing is probed on the link; empty: it is probed."""
    if not link.paths:
        return NO_ADDRESS if link.address is None else "no peer on its rail"
    if absent:
        return absent
    return "" if link.present else "no device"


def _why_unbound(link: ProbedLink) -> str:
    if link.bind_errno == errno.EADDRINUSE:
        return f"another process holds UDP port {link.port} of {link.address}"
    return os.strerror(link.bind_errno) if link.bind_errno else ""
