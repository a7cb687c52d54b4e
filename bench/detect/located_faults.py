"""The faults of part *located*: what is injected, what may be named for it, what is drawn. Pure.

A fault is a *sort* of the lab's catalog at one element. What hosts may rightly name for it is the
element itself. Where no probe path tells elements apart any of that set is right, and where no
probe is lost the right answer is that nothing is said:

* A spine has no name for its hosts (flows spread over spines by hash): the layer between any two
  leaves is right, and so is "between leaves".
* A spine that is down takes the carrier of the leaves' uplinks, and they route around it: no flow
  fails.
* A storm of resets is answered to TCP alone; probes are UDP.
* A part of something that is wholly dead beside it (a cable of a dead leaf) is *hidden*: naming it
  is right, and so is silence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Literal, NamedTuple

Port = tuple[str, int]
"""(host, rail)."""
Part = Literal["link", "host", "leaf", "spine", "path"]


class Element(NamedTuple):
    """As ``fabricd_located`` has it: labels ``part`` and ``element``."""

    part: str
    name: str

    def __str__(self) -> str:
        return f"{self.part} {self.name}"


@dataclass(frozen=True, slots=True)
class Size:
    """Of the lab."""

    hosts: int
    rails: int
    spines: int = 2

    def ports(self) -> list[Port]:
        """All of them."""
        return [(f"h{host}", rail) for host in range(self.hosts) for rail in range(self.rails)]


@dataclass(frozen=True, slots=True)
class Sort:
    """One way to fail.

    Attributes:
        word: of the lab's catalog, with its parameters.
        part: of the element that it is at.
        whole: all that passes is lost for as long as it lasts.
        unseen: why no probe can see it; empty: probes do.
    """

    word: str
    part: Part
    whole: bool = True
    unseen: str = ""

    def __str__(self) -> str:
        return f"{self.word} of a {self.part}"


SORTS = (
    Sort("carrier", "link"),
    Sort("admin", "link"),
    Sort("address", "link"),
    Sort("blackhole", "link"),
    Sort("blackhole rx", "link", whole=False),
    Sort("blackhole tx", "link", whole=False),
    Sort("flap", "link", whole=False),
    Sort("loss 3", "link", whole=False),
    Sort("loss 20 rx", "link", whole=False),
    Sort("loss 1 tx", "link", whole=False),
    Sort("reset", "link", whole=False, unseen="resets answer TCP, and probes are UDP"),
    Sort("leaf", "leaf"),
    Sort("blackhole", "leaf"),
    Sort("loss 5", "leaf", whole=False),
    Sort("spine", "spine", whole=False, unseen="the leaves route around a spine that is down"),
    Sort("blackhole", "spine", whole=False),
    Sort("loss 10", "spine", whole=False),
    Sort("kill", "host"),
    Sort("freeze", "host"),
    Sort("blackhole", "host"),
    Sort("loss 5", "host", whole=False),
)


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault at one place.

    Attributes:
        sort: what it is.
        target: where, as the lab's catalog takes it (``h1:rail2``, ``leaf0``, ``spine1``, ``h2``).
        names: elements of which each is right; empty: nothing can be said.
        ports: that it concerns; empty: a spine's, which concerns paths.
    """

    sort: Sort
    target: str
    names: frozenset[Element]
    ports: frozenset[Port]

    def __str__(self) -> str:
        return f"{self.sort.word} {self.target}"

    def hides(self, other: Injected) -> bool:
        """Whether nothing of ``other`` is left to be seen beside this."""
        return self.sort.whole and bool(other.ports) and other.ports < self.ports

    def touches(self, element: Element) -> bool:
        """Whether an element has a part in it: it was found, if not with the right name."""
        if element in self.names:
            return True
        if not self.ports:
            return element.part in ("spine", "path") and bool(self.names)
        return bool(self.ports & ports_of(element, self.ports))


def ports_of(element: Element, ports: frozenset[Port]) -> set[Port]:
    """Those of ``ports`` that belong to an element."""
    if element.part == "host":
        return {port for port in ports if port[0] == element.name}
    if element.part == "leaf":
        return {port for port in ports if f"rail{port[1]}" == element.name}
    if element.part == "spine":
        return set()
    return {port for port in ports if f"{port[0]}/{port[1]}" in element.name.split("-")}


def place(sort: Sort, where: Port | str | int, size: Size) -> Injected:
    """A sort at a port (host, rail), a host, or a leaf or spine by its number."""
    if sort.part == "link":
        assert isinstance(where, tuple)
        host, rail = where
        target, ports = f"{host}:rail{rail}", frozenset({where})
        names = frozenset({Element("link", f"{host}/{rail}")})
    elif sort.part == "host":
        assert isinstance(where, str)
        target, names = where, frozenset({Element("host", where)})
        ports = frozenset(port for port in size.ports() if port[0] == where)
    elif sort.part == "leaf":
        target, names = f"leaf{where}", frozenset({Element("leaf", f"rail{where}")})
        ports = frozenset(port for port in size.ports() if port[1] == where)
    else:
        target, ports = f"spine{where}", frozenset()
        pairs = combinations([f"rail{rail}" for rail in range(size.rails)], 2)
        names = frozenset(
            {Element("spine", "between leaves"), *(Element("spine", "-".join(p)) for p in pairs)}
        )
    return Injected(sort, target, frozenset() if sort.unseen else names, ports)


def places(sort: Sort, size: Size) -> list[Injected]:
    """A sort at each of its places."""
    where: Sequence[Port | str | int] = {
        "link": size.ports(),
        "host": [f"h{host}" for host in range(size.hosts)],
        "leaf": range(size.rails),
        "spine": range(size.spines),
    }[sort.part]  # type: ignore[assignment]
    return [place(sort, one, size) for one in where]


def singles(size: Size, each: int, seed: int) -> list[Injected]:
    """Each sort at up to ``each`` places, drawn; neighbours in the list are of other sorts."""
    dice = random.Random(f"single {seed}")
    drawn = [
        dice.sample(found, min(each, len(found)))
        for found in (places(sort, size) for sort in SORTS)
    ]
    return [some[turn] for turn in range(each) for some in drawn if turn < len(some)]


def pairs(size: Size, count: int, seed: int) -> list[tuple[Injected, Injected]]:
    """``count`` pairs of faults that are on at once, drawn from all sorts alike."""
    dice = random.Random(f"pair {seed}")
    return list(islice((drawn for drawn in _draws(size, dice) if possible(*drawn)), count))


def _draws(size: Size, dice: random.Random) -> Iterator[tuple[Injected, Injected]]:
    while True:
        one, other = (dice.choice(places(dice.choice(SORTS), size)) for _ in range(2))
        yield one, other


def possible(one: Injected, other: Injected) -> bool:
    """Whether a pair is two faults: at different elements, neither within one that only loses.

    A lossy cable of a lossy leaf is one place with two rates: which part of its losses is whose
    has no answer.
    """
    if one.ports == other.ports:
        return False
    nested = one.ports < other.ports or other.ports < one.ports
    return not (one.ports and other.ports and nested) or one.hides(other) or other.hides(one)
