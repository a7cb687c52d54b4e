"""Which errors of plugins are more than the claim of one user. Pure.

A page counts the errors that its plugin returned to NCCL. They are confirmed when `Owners` says so,
or when this host saw something at about that time that ends jobs: a link out of service, a path
that is down, a silent peer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fabricd.jobs.owners import Owners
from telemetry.statsdir import ProcessPage

WINDOW_NS = 300 * 10**9
"""A claim and what confirms it are no farther apart. Plugins give up after 120 s by default."""
MOST_ERRORS = 1000
"""A page that counts more between two looks is taken at so many."""
MOST_USERS = 256


@dataclass(frozen=True, slots=True)
class ErrorClaim:
    """What pages of one user say, and nothing confirms; ``at_ns``: when the newest was seen."""

    uid: int
    job: str
    errors: int
    at_ns: int


class ErrorClaims:
    """Follows the counts of all pages.

    Attributes:
        confirmed: errors since the start that are evidence.
    """

    def __init__(self, owners: Owners, now: int) -> None:
        """Args: ``owners`` of this host; ``now``: CLOCK_MONOTONIC ns."""
        self.confirmed = 0
        self._owners = owners
        self._start_ns = now
        self._last: dict[tuple[int, int, int], int] = {}
        self._claims: dict[int, ErrorClaim] = {}
        self._fault_ns: int | None = None

    def update(self, pages: Iterable[ProcessPage], now: int, *, fault: bool) -> None:
        """Take a look.

        Args:
            pages: all that were read.
            now: CLOCK_MONOTONIC ns.
            fault: a link or path is out of service now, or a peer is silent.
        """
        if fault:
            self._fault_ns = now
        last, self._last = self._last, {}
        for process in pages:
            page = process.page
            key = (process.uid, *page.key)
            # What an older process did before this daemon began is no news.
            before = last.get(key, page.errors if page.start_ns < self._start_ns else 0)
            self._last[key] = page.errors
            if (more := min(page.errors - before, MOST_ERRORS)) > 0:
                old = self._claims.pop(process.uid, None)
                errors = more + (old.errors if old else 0)
                self._claims[process.uid] = ErrorClaim(process.uid, page.job, errors, now)
        recent = [c for c in self._claims.values() if now - c.at_ns <= WINDOW_NS][-MOST_USERS:]
        seen = self._fault_ns is not None and now - self._fault_ns <= WINDOW_NS
        if seen or self._owners.confirm(claim.uid for claim in recent):
            self.confirmed += sum(claim.errors for claim in recent)
            recent = []
        self._claims = {claim.uid: claim for claim in recent}

    @property
    def unconfirmed(self) -> ErrorClaim | None:
        """The newest claim that nothing confirms; None: there was none for `WINDOW_NS`."""
        return next(reversed(self._claims.values()), None)
