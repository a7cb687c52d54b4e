"""Whose an address is, where the documents of several hosts name it. Pure.

A document is a claim: any host may name any address. An address belongs to the host that answered
there with an authenticated probe (the prober compares the host in each packet). That host keeps it,
also while it is silent, as long as its document names it. Where nobody has answered, the hosts that
name it have it by turns: the first to name it first, then each of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fabricd.config.addresses import Address

TURN_NS = 10 * 10**9
"""Ten tries of an address that does not answer (``kSearch`` of prober/src/core/path.h)."""
LONGEST_TURN_NS = 640 * 10**9
"""Turns double with each round: each change of turns changes what is probed."""


class Conflict(NamedTuple):
    """Two hosts that name the same addresses, in alphabetical order."""

    host: str
    other: str
    addresses: int
    example: str
    """One of the addresses."""
    answered: str
    """Which of the two has answered at ``example``; "": neither."""


@dataclass(slots=True)
class _Turn:
    holder: str
    until: int
    length: int = TURN_NS
    first: str = ""
    """With whom a round begins."""


class AddressOwners:
    """Address → owner, turns, and what answers have proven."""

    def __init__(self, first: Mapping[Address, str], proven: Mapping[Address, str]) -> None:
        """Go on from what an earlier fabricd knew.

        Args:
            first: address → the host that had it.
            proven: address → the host that had answered there.
        """
        self._first = dict(first)
        self._proven = dict(proven)
        self._turns: dict[Address, _Turn] = {}
        self._claims: Mapping[Address, Sequence[str]] = {}

    @property
    def proven(self) -> Mapping[Address, str]:
        """Address → the host that answered there, as long as it names it."""
        return self._proven

    def update(self, claims: Mapping[Address, Sequence[str]], now: int) -> dict[Address, str]:
        """Who has which address.

        Args:
            claims: address → the hosts that name it, in alphabetical order.
            now: CLOCK_MONOTONIC ns.
        """
        self._claims = claims
        self._proven = {at: host for at, host in self._proven.items() if host in claims.get(at, ())}
        self._first = {
            at: self._first[at] if self._first.get(at) in hosts else hosts[0]
            for at, hosts in claims.items()
        }
        turns, self._turns = self._turns, {}
        owners = {}
        for at, hosts in claims.items():
            owners[at] = self._proven.get(at) or self._first[at]
            if len(hosts) > 1 and at not in self._proven:
                turn = turns.get(at) or _Turn(owners[at], now + TURN_NS, first=owners[at])
                self._turns[at] = _next(turn, hosts, now)
                owners[at] = self._turns[at].holder
        return owners

    def answered(self, at: Address, host: str) -> bool:
        """An authenticated answer came from ``at`` as ``host``, its owner; True: that is new."""
        if self._proven.get(at) == host or host not in self._claims.get(at, ()):
            return False
        self._proven[at] = host
        self._first[at] = host
        return True

    def turn_ends(self, now: int) -> bool:
        """Whether `update` would give an address to another host by now."""
        return any(turn.until <= now and at not in self._proven for at, turn in self._turns.items())

    def open(self) -> frozenset[Address]:
        """Addresses that several hosts name, and nobody has answered at."""
        return frozenset(at for at in self._turns if at not in self._proven)

    def conflicts(self, me: str, own: Iterable[Address]) -> tuple[Conflict, ...]:
        """Hosts that contradict each other; ``own``: addresses of ``me``, this host."""
        found: dict[tuple[str, str], Conflict] = {}

        def add(one: str, two: str, at: Address, answered: str) -> None:
            host, other = sorted((one, two))
            before = found.get((host, other))
            if before is None:
                found[host, other] = Conflict(host, other, 1, str(at), answered)
            else:
                found[host, other] = before._replace(addresses=before.addresses + 1)

        mine = frozenset(own)
        contested = [at for at, hosts in self._claims.items() if len(hosts) > 1 or at in mine]
        for at in sorted(contested, key=lambda one: (one.version, int(one))):
            hosts = self._claims[at]
            if at in mine:
                for host in hosts:
                    add(me, host, at, me)
                continue
            holder = self._proven.get(at) or self._first[at]
            for host in hosts:
                if host != holder:
                    add(holder, host, at, self._proven.get(at, ""))
        return tuple(found[pair] for pair in sorted(found))


def _next(turn: _Turn, hosts: Sequence[str], now: int) -> _Turn:
    """The turn at ``now``: the same one, or the next host's."""
    if turn.holder in hosts and now < turn.until:
        return turn
    later = [host for host in hosts if host > turn.holder]
    holder = later[0] if later else hosts[0]
    first = turn.first if turn.first in hosts else holder
    length = min(2 * turn.length, LONGEST_TURN_NS) if holder == first else turn.length
    return _Turn(holder, now + length, length, first)
