"""Which agents of a job this one hears. Pure.

A peer is missed when it was heard once and is not now: its connection ended, or nothing has come
for ``LIMIT_S``. Time in which this agent itself did not run does not count: who was not listening
has no evidence of silence.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

INTERVAL_S = 0.1  # between two heartbeats
LIMIT_S = 0.3
TICK_S = 0.05  # between two calls of ``tick``
GRACE_S = 10.0  # a member that was never heard is missed after this
_GAP_S = 0.1  # a tick that is later than this means that this agent did not run


@dataclass
class _Peer:
    member_since: float | None = None
    connected: bool = False
    heard_at: float | None = None


class Heartbeats:
    """Peers of one agent. ``now`` is seconds, monotonic."""

    def __init__(self, now: float) -> None:
        self._peers: dict[str, _Peer] = {}
        self._ticked_at = now
        self._now = now

    def set_members(self, hosts: Collection[str], now: float) -> None:
        """The job's hosts, without this one. Others are neither heard nor missed."""
        for host, peer in self._peers.items():
            if host not in hosts:
                peer.member_since = None
        for host in hosts:
            peer = self._peers.setdefault(host, _Peer())
            if peer.member_since is None:
                peer.member_since = now

    def connected(self, host: str, now: float) -> None:
        """A connection with ``host`` is open."""
        peer = self._peers.setdefault(host, _Peer())
        peer.connected, peer.heard_at = True, now

    def received(self, host: str, now: float) -> None:
        """Anything has come from ``host``."""
        if host in self._peers:
            self._peers[host].heard_at = now

    def disconnected(self, host: str) -> None:
        """The connection with ``host`` has ended."""
        if host in self._peers:
            self._peers[host].connected = False

    def forget(self, host: str) -> None:
        """``host`` is neither heard nor missed, until it is a member anew."""
        self._peers.pop(host, None)

    def tick(self, now: float) -> None:
        """The time is ``now``; to be called each ``TICK_S``."""
        late = now - self._ticked_at - TICK_S
        self._ticked_at = self._now = now
        if late <= _GAP_S:
            return
        for peer in self._peers.values():
            if peer.heard_at is not None:
                peer.heard_at = min(peer.heard_at + late, now)
            if peer.member_since is not None:
                peer.member_since = min(peer.member_since + late, now)

    def hears(self) -> list[str]:
        """Members that this agent hears."""
        return sorted(host for host, peer in self._peers.items() if self._is_heard(peer))

    def misses(self) -> list[str]:
        """Members that it has heard, or should have heard by now, and does not."""
        return sorted(host for host, peer in self._peers.items() if self._is_missed(peer))

    def _is_heard(self, peer: _Peer) -> bool:
        if peer.member_since is None or not peer.connected or peer.heard_at is None:
            return False
        return self._now - peer.heard_at <= LIMIT_S

    def _is_missed(self, peer: _Peer) -> bool:
        if peer.member_since is None or self._is_heard(peer):
            return False
        return peer.heard_at is not None or self._now - peer.member_since > GRACE_S
