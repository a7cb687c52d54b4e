"""Is a link worse than it should be? Loss over a window, from the prober's counters. Pure.

A link is called worse when at least two peers' paths each lost more than ``enter`` of their packets
within the window, in the same direction; it stays so until the loss fell below ``leave``. One lossy
path is the path's or the peer's.
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


@dataclass(slots=True)
class LossWindow:
    """Remembers counters for one window; feed it about once a second."""

    rules: LossRules = field(default_factory=LossRules)
    _history: deque[tuple[int, dict[int, LossCounters]]] = field(default_factory=deque)
    _worse: dict[int, str] = field(default_factory=dict)

    def reset(self) -> None:
        """The counters began anew (another prober, another configuration)."""
        self._history.clear()

    def feed(self, rows: Iterable[LossCounters], now: int) -> dict[int, str]:
        """Take the counters at ``now``; returns link → reason for each link that is worse."""
        current = {row.path: row for row in rows}
        while len(self._history) > 1 and self._history[1][0] <= now - self.rules.window_ns:
            self._history.popleft()
        if self._history and now - self._history[0][0] >= self.rules.window_ns // 2:
            self._judge(self._history[0][1], current)
        self._history.append((now, current))
        return dict(self._worse)

    def _judge(self, old: dict[int, LossCounters], new: dict[int, LossCounters]) -> None:
        rx: dict[int, dict[str, float]] = {}
        tx: dict[int, dict[str, float]] = {}
        for path, row in new.items():
            before = old.get(path)
            if before is None:
                continue
            came, lost = row.received - before.received, row.rx_lost - before.rx_lost
            sent, gone = row.sent - before.sent, row.tx_lost - before.tx_lost
            if min(came, lost, sent, gone) < 0:
                continue
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
