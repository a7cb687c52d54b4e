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
    """What observers say of one host. Each is a sorted tuple of host names."""

    silent: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    abstained: tuple[str, ...] = ()

    @property
    def observers(self) -> int:
        """All hosts that probe it."""
        return len(self.silent) + len(self.heard) + len(self.abstained)

    def is_silent(self, least: int) -> bool:
        """More than half of the observers, and at least ``least``, call it silent."""
        return len(self.silent) >= least and 2 * len(self.silent) > self.observers


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
        self._acknowledged: dict[str, set[str]] = {}
        """Fence's id → hosts that have applied it."""
        self._last_wills: set[str] = set()
        self._silent: tuple[int, int, frozenset[str]] = (-1, 0, frozenset())

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
        for host, silent in old.items():
            if rows.get(host) is not silent:
                del self._rows[host][observer]
                self._accused[host] -= silent
                if not self._accused[host]:
                    del self._accused[host]
                if not self._rows[host]:
                    del self._rows[host]
        for host, silent in rows.items():
            if old.get(host) is not silent:
                self._rows.setdefault(host, {})[observer] = silent
                if silent:
                    self._accused[host] += 1
        self._said[observer] = rows
        return True

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

    def silent(self, least: int) -> frozenset[str]:
        """Hosts that most of their observers call silent, before anybody abstains for that."""
        if self._silent[:2] != (self.version, least):
            found = frozenset(
                host
                for host in self._accused
                if host in self._views and self.votes(host, ()).is_silent(least)
            )
            self._silent = (self.version, least, found)
        return self._silent[2]

    def votes(self, host: str, silent: Collection[str]) -> ProbeVotes:
        """What its observers say of ``host``. Those of ``silent`` abstain."""
        against: list[str] = []
        heard: list[str] = []
        abstained: list[str] = []
        for name, is_silent in sorted(self._rows.get(host, {}).items()):
            if name in silent or self._views[name].abstains:
                abstained.append(name)
            elif is_silent:
                against.append(name)
            else:
                heard.append(name)
        return ProbeVotes(tuple(against), tuple(heard), tuple(abstained))


def _rows_of(observer: str, said: HostObservations | None) -> dict[str, bool]:
    """The first row of a host counts, and one that is both silent and heard is silent."""
    if said is None:
        return {}
    rows = dict.fromkeys(said.heard, False)
    for row in reversed(said.silent):
        rows[row.host] = row.rails_probed > 0 and row.rails >= row.rails_probed
    rows.pop(observer, None)
    return rows
