"""Who probes whom, and what follows for each host: kept as observations come, not made anew. Pure.

2,000 hosts with 20 observers each say 40,000 things; between two decisions a few of them change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Set
from dataclasses import dataclass

from telemetry.messages.documents import HostObservations, HostStatus


@dataclass(frozen=True)
class HostView:
    """The newest that is known of one host. ``observations`` None: it has never said any."""

    status: HostStatus | None = None
    observations: HostObservations | None = None

    @property
    def last_will(self) -> bool:
        """The broker has published its last will."""
        return self.status is not None and not self.status.online and not self.status.intended

    @property
    def abstains(self) -> bool:
        """What it says of others is no evidence: it was paused, has left, or has a last will."""
        paused = self.observations is not None and self.observations.abstains
        return paused or (self.status is not None and not self.status.online)


@dataclass(frozen=True)
class ProbeVotes:
    """What observers say of one host. Each is a sorted tuple of host names.

    ``deaf_to``: hosts of which the host itself, live, hears nothing. ``probed``: how many of those
    that may vote it probes.
    """

    silent: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    abstained: tuple[str, ...] = ()
    deaf_to: tuple[str, ...] = ()
    probed: int = 0

    @property
    def observers(self) -> int:
        """All hosts that probe it, and may vote."""
        return len(self.silent) + len(self.heard) + len(self.abstained)

    def is_silent(self, least: int) -> bool:
        """More than half of the observers, and at least ``least``, call it silent."""
        return len(self.silent) >= least and 2 * len(self.silent) > self.observers

    def is_deaf(self, least: int) -> bool:
        """It hears nothing of more than half of the hosts that it probes, at least ``least``."""
        return len(self.deaf_to) >= least and 2 * len(self.deaf_to) > self.probed

    @property
    def is_heard(self) -> bool:
        """More than half of the observers hear it."""
        return 2 * len(self.heard) > self.observers


class Observers:
    """The newest views of all hosts.

    Attributes:
        version: grows with each change of what is said of hosts, or of whose word counts.
    """

    def __init__(self) -> None:
        self.version = 0
        self._views: dict[str, HostView] = {}
        self._rows: dict[str, dict[str, bool]] = {}
        """Host → who probes it → whether it is silent to that one, on all rails."""
        self._said: dict[str, dict[str, bool]] = {}
        """The same by observer."""
        self._accused: Counter[str] = Counter()
        """Host → how many call it silent."""
        self._accusing: Counter[str] = Counter()
        """Observer → how many it calls silent."""
        self._acknowledged: dict[str, set[str]] = {}
        """Fence's id → hosts that have applied it."""
        self._last_wills: set[str] = set()
        self._live: set[str] = set()
        self._open: dict[str, frozenset[str]] = {}
        """Host → `open_peers`, as long as nothing has changed it."""

    def __len__(self) -> int:
        return len(self._views)

    def view(self, host: str) -> HostView:
        """The newest of ``host``."""
        return self._views.get(host, HostView())

    def update(self, host: str, view: HostView | None) -> bool:
        """This is the newest of ``host``; None: it was removed.

        Returns whether a decision may follow: it says another thing of somebody, its own state is
        another one, or it has applied other fences.
        """
        before = self._views.get(host)
        if view == before:
            return False
        if view is None:
            del self._views[host]
        else:
            self._views[host] = view
        if view is not None and view.last_will:
            self._last_wills.add(host)
        else:
            self._last_wills.discard(host)
        if (view is not None and not view.abstains) != (host in self._live):
            self._live ^= {host}
            self._forget_open(host, *self._rows.get(host, ()), *self._said.get(host, ()))
        said = view.observations if view else None
        fenced = self._note_fences(host, before, said)
        judged = self._observe(host, _rows_of(host, said))
        if judged or before is None or view is None or (
            (before.last_will, before.abstains) != (view.last_will, view.abstains)
        ):  # fmt: skip
            self.version += 1
            return True
        return fenced

    def _observe(self, observer: str, rows: dict[str, bool]) -> bool:
        """Take what ``observer`` says now. Returns whether it is another thing than before."""
        old = self._said.get(observer, {})
        if rows == old:
            return False
        self._forget_open(observer, *(host for host, _ in rows.items() ^ old.items()))
        for host, silent in old.items():
            if rows.get(host) is not silent:
                del self._rows[host][observer]
                if silent:
                    self._count(host, observer, -1)
                if not self._rows[host]:
                    del self._rows[host]
        for host, silent in rows.items():
            if old.get(host) is not silent:
                self._rows.setdefault(host, {})[observer] = silent
                if silent:
                    self._count(host, observer, 1)
        self._said[observer] = rows
        return True

    def _forget_open(self, *hosts: str) -> None:
        for host in hosts:
            self._open.pop(host, None)

    def _count(self, host: str, observer: str, change: int) -> None:
        for counter, name in ((self._accused, host), (self._accusing, observer)):
            counter[name] += change
            if not counter[name]:
                del counter[name]

    def _note_fences(
        self, host: str, before: HostView | None, said: HostObservations | None
    ) -> bool:
        old = set(before.observations.fences) if before and before.observations else set()
        new = set(said.fences) if said else set()
        for fence in old - new:
            self._acknowledged[fence].discard(host)
            if not self._acknowledged[fence]:
                del self._acknowledged[fence]
        for fence in new - old:
            self._acknowledged.setdefault(fence, set()).add(host)
        return old != new

    def acknowledged(self, fence: str) -> list[str]:
        """Hosts that have applied the fence of that id, sorted."""
        return sorted(self._acknowledged.get(fence, ()))

    @property
    def last_wills(self) -> Set[str]:
        """Hosts whose last will the broker has published."""
        return self._last_wills

    @property
    def accused(self) -> set[str]:
        """Hosts that an observer calls silent, and those whose last will the broker published."""
        return self._accused.keys() | self._last_wills

    @property
    def troubled(self) -> set[str]:
        """Hosts that are accused, or accuse others."""
        return self.accused | self._accusing.keys()

    def is_live(self, host: str) -> bool:
        """What ``host`` says of others is evidence."""
        return host in self._live

    def is_probed(self, host: str) -> bool:
        """``host`` probes others, or others probe it."""
        return bool(self._rows.get(host) or self._said.get(host))

    def open_peers(self, host: str) -> frozenset[str]:
        """Hosts with which ``host`` has an open pair.

        One of both is live and hears the other, and none that is live hears nothing of the other.
        """
        known = self._open.get(host)
        if known is None:
            heard: set[str] = set()
            cut: set[str] = set()
            for peer, silent in self._rows.get(host, {}).items():
                if peer in self._live:
                    (cut if silent else heard).add(peer)
            if host in self._live:
                for peer, silent in self._said.get(host, {}).items():
                    (cut if silent else heard).add(peer)
            known = self._open[host] = frozenset(heard - cut)
        return known

    def votes(self, host: str, voters: Collection[str]) -> ProbeVotes:
        """What those of ``voters`` that probe ``host`` say of it, and what it says of them."""
        against: list[str] = []
        heard: list[str] = []
        abstained: list[str] = []
        for name, is_silent in sorted(self._rows.get(host, {}).items()):
            if name not in voters:
                continue
            if not self.is_live(name):
                abstained.append(name)
            elif is_silent:
                against.append(name)
            else:
                heard.append(name)
        said = self._said.get(host, {}) if self.is_live(host) else {}
        mine = {name: is_silent for name, is_silent in said.items() if name in voters}
        return ProbeVotes(
            tuple(against), tuple(heard), tuple(abstained),
            tuple(sorted(name for name, is_silent in mine.items() if is_silent)), len(mine),
        )  # fmt: skip


def _rows_of(observer: str, said: HostObservations | None) -> dict[str, bool]:
    """The first row of a host counts, and one that is both silent and heard is silent."""
    if said is None:
        return {}
    rows = dict.fromkeys(said.heard, False)
    for row in reversed(said.silent):
        rows[row.host] = row.rails_probed > 0 and row.rails >= row.rails_probed
    rows.pop(observer, None)
    return rows
