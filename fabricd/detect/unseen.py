"""Never seen up is not a failure, unless peers say so. Pure.

A path that was never heard may be one that the peer has not configured (another version, another
list of peers, a rail not built yet). It is a failure when the peer lives, says in its probes on
other links that it probes this very path and hears nothing of us there, hears others on that port,
and we hear others on ours. Its word counts for an address that no other host names. A link on
which nothing was ever heard is one when two peers say so. All that has to last for a while, since
the two ends do not start at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fabricd.detect.neighbours import PeerReport, Reachability, ReportKind
from fabricd.detect.silence import PathView

LASTS_NS = 3 * 10**9
FRESH_NS = 3 * 10**9
"""Each neighbour says all it sees about once a second."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is to be heard and never was, because peers say so."""

    links: Mapping[int, str] = field(default_factory=dict)
    """Link index → reason."""
    paths: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ends:
    """A path of ours: its rails and whether it was ever heard."""

    rail: int
    peer_rail: int
    heard_ever: bool
    carrier: bool
    returned: bool = False
    """We took it up again: that the prober has it as gone is not the peer's wish."""
    open: bool = False
    """Another host names the address, too, and neither has answered there: it may be a lie."""


class Unseen:
    """Remembers since when peers expect what was never heard."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._since: dict[tuple[str, int], int] = {}

    def judge(
        self,
        views: Sequence[PathView],
        ends: Sequence[Ends],
        reports: Iterable[PeerReport],
        now: int,
    ) -> Expected:
        """What peers expect us to hear.

        Args:
            views: all paths, by index.
            ends: the same paths' rails.
            reports: what the neighbours said.
            now: CLOCK_MONOTONIC ns.
        """
        said = self._said(reports, now)
        waiting = [
            v
            for v in views
            if not ends[v.index].heard_ever
            and not ends[v.index].open
            and not v.heard
            and (ends[v.index].returned or not v.gone)
        ]
        accusing = [v for v in waiting if self._expects(v, ends[v.index], views, said)]
        heard_on = {v.link for v in views if v.heard or ends[v.index].heard_ever}
        found: dict[tuple[str, int], str] = {}
        by_link: dict[int, set[str]] = {}
        for view in accusing:
            if view.link in heard_on:
                if any(v.link == view.link and v.clean for v in views):
                    text = f"never heard, though {view.peer} probes this path"
                    found["path", view.index] = text
            elif ends[view.index].carrier:
                by_link.setdefault(view.link, set()).add(view.peer)
        for link, peers in by_link.items():
            if len(peers) >= 2:
                names = ", ".join(sorted(peers)[:3])
                found["link", link] = f"never heard anything, though {names} probe it"
        self._since = {key: self._since.get(key, now) for key in found}
        old = {key: text for key, text in found.items() if now - self._since[key] >= LASTS_NS}
        return Expected(
            {index: text for (what, index), text in old.items() if what == "link"},
            {index: text for (what, index), text in old.items() if what == "path"},
        )

    def reset(self) -> None:
        """Indices have another meaning from now on."""
        self._since.clear()

    def _said(self, reports: Iterable[PeerReport], now: int) -> _Said:
        said = _Said()
        for report in reports:
            if report.kind is not ReportKind.PATH or now - report.at_ns > FRESH_NS:
                continue
            port = (report.reporter, report.rail)
            if report.peer == self.host:
                said.of_us[port, report.peer_rail] = report.heard
            elif report.heard is Reachability.WELL:
                said.hears_others.add(port)
        return said

    @staticmethod
    def _expects(path: PathView, ends: Ends, views: Sequence[PathView], said: _Said) -> bool:
        port = (path.peer, ends.peer_rail)
        if said.of_us.get((port, ends.rail)) not in (Reachability.UNKNOWN, Reachability.SILENT):
            return False
        lives = any(v.peer == path.peer and v.link != path.link and v.clean for v in views)
        return lives and port in said.hears_others


@dataclass(slots=True)
class _Said:
    of_us: dict[tuple[tuple[str, int], int], Reachability] = field(default_factory=dict)
    """(Peer's port, our rail) → what it hears of us there."""
    hears_others: set[tuple[str, int]] = field(default_factory=set)
