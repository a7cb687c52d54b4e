"""Whose word counts: what a stats page claims is evidence within its owner's rights. Pure but `of`.

A page is written by a job, so it says what its user wants it to say. Root's word is enough, for
root of a host may say what it likes there. Another user's word counts when a second user says the
same. Subordinate uids (subuid(5)) are no users of their own: one user has thousands of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SUBUID = Path("/etc/subuid")
_MOST_BYTES = 1 << 20
BLOCK = 65_536
"""Uids of one user namespace: of a kubelet's range each pod has so many."""


@dataclass(frozen=True, slots=True)
class Owners:
    """How the users of this host count.

    Attributes:
        trusted: uids whose word is enough.
        subordinate: uids that belong to other users.
    """

    trusted: frozenset[int] = frozenset({0})
    subordinate: tuple[range, ...] = ()

    @classmethod
    def of(cls, path: Path = SUBUID) -> Owners:
        """Those of this system. A file that cannot be read has no ranges."""
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                text = file.read(_MOST_BYTES)
        except OSError:
            text = ""
        return cls(frozenset({0, os.geteuid()}), subordinate_ranges(text))

    def user_of(self, uid: int) -> int:
        """Whose ``uid`` is, as a number to count by: a subordinate block is one user."""
        held = next((one for one in self.subordinate if uid in one), None)
        return uid if held is None else uid - (uid - held.start) % BLOCK

    def confirm(self, uids: Iterable[int]) -> bool:
        """Whether what the pages of these users say alike counts as evidence."""
        said = set(uids)
        if said & self.trusted:
            return True
        return sum(not any(uid in held for held in self.subordinate) for uid in said) >= 2


def subordinate_ranges(text: str) -> tuple[range, ...]:
    """The ranges of subuid(5), ``USER:FIRST:COUNT``; other lines are passed over."""
    ranges = []
    for line in text.splitlines():
        _, _, numbers = line.partition(":")
        first, _, count = numbers.partition(":")
        if first.isascii() and first.isdigit() and count.isascii() and count.isdigit():
            ranges.append(range(int(first), int(first) + int(count)))
    return tuple(ranges)
