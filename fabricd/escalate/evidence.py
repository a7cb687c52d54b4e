"""What this host's probes say of other hosts, as evidence for fabric-compute. Pure.

A rail counts only where our own link can hear: with carrier, and not itself blamed. A host is
silent on a rail when all its paths there were heard before and miss ``misses`` packets or more.

Silence is no evidence while the own prober had a gap: packets then wait or are lost on *this* host.
So a host abstains for ``ABSTAIN_NS`` after a gap (Lifeguard's local health, Dadgar et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fabricd.detect.silence import PathView
from fabricd.engine import Engine

ABSTAIN_NS = 2 * 10**9
"""As long as a peer that was called silent in a gap takes to be heard again, several times over."""
LONGEST = 4096
"""Hosts that one message names; as ``telemetry.messages.documents`` has it."""


class ProberGaps:
    """Whether the own prober was paused lately."""

    def __init__(self) -> None:
        self._incarnation: int | None = None
        self._stall_ns = 0
        self._until_ns = 0
        self._gap_ns = 0

    def update(self, incarnation: int, stall_ns: int, now: int) -> None:
        """Take the prober's figures.

        Args:
            incarnation: of the prober; 0: there is none.
            stall_ns: all its gaps so far.
            now: CLOCK_MONOTONIC ns.
        """
        if incarnation == 0:
            self._note(0, now)
        elif incarnation != self._incarnation:
            # The first one that we see has no past for us; a new one was away until now.
            if self._incarnation is not None:
                self._note(0, now)
        elif stall_ns > self._stall_ns:
            self._note(stall_ns - self._stall_ns, now)
        self._incarnation, self._stall_ns = incarnation or self._incarnation, stall_ns

    def _note(self, gap_ns: int, now: int) -> None:
        self._gap_ns = max(gap_ns, self._gap_ns if now < self._until_ns else 0)
        self._until_ns = now + ABSTAIN_NS

    def abstains(self, now: int) -> bool:
        """Whether silence that is seen at ``now`` proves nothing."""
        return now < self._until_ns

    def gap_ms(self, now: int) -> float:
        """The longest gap for which the host abstains now, in milliseconds."""
        return round(self._gap_ns / 1e6, 1) if self.abstains(now) else 0.0


def observations(
    views: Sequence[PathView] | None,
    engine: Engine,
    gaps: ProberGaps,
    fences: Sequence[str],
    now: int,
) -> dict[str, Any]:
    """The data of a ``HostObservations`` message.

    Args:
        views: all paths as the prober sees them; None: there is no prober.
        engine: whose paths they are.
        gaps: whether the prober was paused lately.
        fences: ids of the fences that hold here.
        now: CLOCK_MONOTONIC ns.
    """
    silent, heard = rails_by_host(views or (), engine)
    hearing = any(link.carrier is not False for link in engine.links)
    return {
        "silent": [
            {"host": host, "rails": rails, "rails_probed": probed}
            for host, (rails, probed) in sorted(silent.items())
        ][:LONGEST],
        "heard": sorted(heard)[:LONGEST],
        "abstains": views is None or not hearing or gaps.abstains(now),
        "gap_ms": gaps.gap_ms(now),
        "fences": list(fences)[:LONGEST],
    }


def rails_by_host(
    views: Sequence[PathView], engine: Engine
) -> tuple[Mapping[str, tuple[int, int]], set[str]]:
    """Host → (rails on which it is silent, rails on which it is probed), and the hosts heard.

    Only rails of ours whose link can hear count. Hosts that are silent nowhere are left out of the
    first; hosts on which no path was ever heard are left out of both.
    """
    able = [
        link.carrier is not False and link.admin_up and not engine.blamed(link.index)
        for link in engine.links
    ]
    misses = engine.rules.misses
    rails: dict[str, dict[int, bool]] = {}
    """Host → our rail → silent there."""
    for view in views:
        if not view.heard or not able[view.link]:
            continue
        rail = engine.links[view.link].rail
        own = rails.setdefault(view.peer, {})
        own[rail] = own.get(rail, True) and view.rx_missed >= misses
    silent = {
        host: (sum(own.values()), len(own)) for host, own in rails.items() if any(own.values())
    }
    return silent, {host for host, own in rails.items() if not all(own.values())}
