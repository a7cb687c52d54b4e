"""Is a link worse than it should be? Loss over a window, from the prober's counters. Pure.

A link is called worse when at least two peers' paths each lost more than ``enter`` of their packets
within the window, in the same direction; it stays so until the loss fell below ``leave``. One lossy
path is the path's or the peer's. Packets lost in an outage that was seen as such do not count: a
link that comes back whole is not a worse one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LossRules:
    """Parameters; shares from 0 to 1."""

    window_ns: int = 10 * 10**9
    enter: float = 0.05
    leave: float = 0.02
    min_packets: int = 100
    """Fewer in the window, from one path: no judgement."""
    min_peers: int = 2
    settle_ns: int = 2 * 10**9
    """After an outage losses are still being found: nothing counts for that long."""


@dataclass(frozen=True, slots=True)
class LossCounters:
    """Cumulative packets of one path since its prober's start."""

    path: int
    link: int
    peer: str
    sent: int
    received: int
    rx_lost: int
    tx_lost: int
    outage: bool = False
    """The path or its link is out now, for a reason that is known."""


@dataclass(slots=True)
class _Path:
    row: LossCounters
    settled_ns: int = 0
    deltas: deque[tuple[int, int, int, int, int]] = field(default_factory=deque)
    """(when, sent, received, lost rx, lost tx)."""


@dataclass(slots=True)
class LossWindow:
    """Remembers counters for one window; feed it about once a second."""

    rules: LossRules = field(default_factory=LossRules)
    _paths: dict[int, _Path] = field(default_factory=dict)
    _worse: dict[int, str] = field(default_factory=dict)

    def reset(self) -> None:
        """The counters began anew (another prober, another configuration)."""
        self._paths.clear()
        self._worse.clear()

    def feed(self, rows: Iterable[LossCounters], now: int) -> dict[int, str]:
        """Take the counters at ``now``; returns link → reason for each link that is worse."""
        seen = []
        for row in rows:
            path = self._paths.setdefault(row.path, _Path(row))
            self._advance(path, row, now)
            seen.append(path)
        self._judge(seen)
        return dict(self._worse)

    def _advance(self, path: _Path, row: LossCounters, now: int) -> None:
        old, path.row = path.row, row
        if row.outage:
            path.settled_ns = now + self.rules.settle_ns
            path.deltas.clear()
        delta = (
            row.sent - old.sent,
            row.received - old.received,
            row.rx_lost - old.rx_lost,
            row.tx_lost - old.tx_lost,
        )
        if now >= path.settled_ns and min(delta) >= 0:
            path.deltas.append((now, *delta))
        while path.deltas and path.deltas[0][0] <= now - self.rules.window_ns:
            path.deltas.popleft()

    def _judge(self, paths: list[_Path]) -> None:
        rx: dict[int, dict[str, float]] = {}
        tx: dict[int, dict[str, float]] = {}
        for path in paths:
            sent, came, lost, gone = (sum(d[i] for d in path.deltas) for i in range(1, 5))
            row = path.row
            if came + lost >= self.rules.min_packets:
                rx.setdefault(row.link, {})[row.peer] = lost / (came + lost)
            if sent >= self.rules.min_packets:
                tx.setdefault(row.link, {})[row.peer] = min(1.0, gone / sent)
        for link in {*rx, *tx, *self._worse}:
            text = self._text(link, rx.get(link, {}), "from") or self._text(
                link, tx.get(link, {}), "to"
            )
            if text:
                self._worse[link] = self._worse.get(link) or text
            else:
                self._worse.pop(link, None)

    def _text(self, link: int, shares: dict[str, float], word: str) -> str:
        limit = self.rules.leave if link in self._worse else self.rules.enter
        bad = sorted(peer for peer, share in shares.items() if share > limit)
        if len(bad) < self.rules.min_peers:
            return ""
        worst = max(shares[peer] for peer in bad)
        return f"{100 * worst:.0f} % of probes {word} {', '.join(bad[:3])} lost"
