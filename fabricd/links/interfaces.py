"""Configured interfaces that the host does not have. Pure.

A name with a slip never appears, and its link is UNKNOWN for good: no failure, so nobody is told.
A driver that is still loading takes some seconds, so a name is told after `GRACE_NS`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import SequenceMatcher
from typing import NamedTuple

GRACE_NS = 30 * 10**9
"""A booting host loads the drivers of its NICs within this time."""
MOST_NAMED = 6


class InterfaceChange(NamedTuple):
    """An interface that is told as missing, or is there again."""

    netdev: str
    rail: int
    missing: bool
    text: str


def sentence(netdev: str, devices: Collection[str]) -> str:
    """That there is no such interface, with those that there are, the likest first."""
    others = sorted(
        (name for name in devices if name != "lo"),
        key=lambda name: (-SequenceMatcher(None, name, netdev).ratio(), name),
    )
    more = len(others) - MOST_NAMED
    names = ", ".join(others[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"no interface of that name; there {'is' if len(others) == 1 else 'are'} " + (
        names or "none but lo"
    )


class InterfaceWatch:
    """Remembers since when interfaces are missing.

    Attributes:
        missing: netdev → what to say of it, of those that are told.
    """

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self._since_ns: dict[str, int] = {}

    def tick(
        self, links: Iterable[tuple[str, int]], devices: Collection[str] | None, now: int
    ) -> list[InterfaceChange]:
        """What is new.

        Args:
            links: (netdev, rail) of each configured link.
            devices: names of all network devices; None: not known yet.
            now: CLOCK_MONOTONIC ns.
        """
        if devices is None:
            return []
        rails = dict(links)
        told = []
        for netdev in [name for name in self._since_ns if name in devices or name not in rails]:
            del self._since_ns[netdev]
            if self.missing.pop(netdev, None) is not None and netdev in rails:
                told.append(InterfaceChange(netdev, rails[netdev], False, "the interface is there"))
        for netdev, rail in rails.items():
            if netdev in devices:
                continue
            since = self._since_ns.setdefault(netdev, now)
            if now - since < GRACE_NS:
                continue
            text = sentence(netdev, devices)
            if netdev not in self.missing:
                told.append(InterfaceChange(netdev, rail, True, text))
            self.missing[netdev] = text
        return told
