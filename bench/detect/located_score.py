"""What hosts named for what was injected: precision, recall, the right element. Pure.

Each host is asked (`Said`): the metric ``fabricd_located``, ``explain`` of each of its links, and
the links' states. A state names its own link where ``explain`` places nothing on that link: that is
how it is read, and how the alerts are built. What all hosts name together is held against what was
injected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.detect.located_faults import Element, Injected
from bench.report import Row, percentile

IN_TIME_S = 20.0
_BLAME = re.compile(
    r"(?P<part>link|host|leaf|spine|path) (?P<name>.+?)(?: (?:tx|rx))?(?: \([^)]*\))?, \d+ %\Z"
)
_STATES = {3: "down", 4: "hold", 6: "degraded"}
"""Of ``fabricd_link_state``: those that say that the link is at fault."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one host names.

    Attributes:
        host: who was asked.
        metric: elements of ``fabricd_located``.
        here: rail → elements that ``explain`` places on that link.
        beyond: rail → those at the far ends of its paths.
        unsure: rails of which ``explain`` says that the place is unknown.
        bad: rails whose state says that the link is at fault.
        silent: hosts that it calls silent on all rails.
    """

    host: str
    metric: frozenset[Element] = frozenset()
    here: Mapping[int, frozenset[Element]] = field(default_factory=dict)
    beyond: Mapping[int, frozenset[Element]] = field(default_factory=dict)
    unsure: frozenset[int] = frozenset()
    bad: frozenset[int] = frozenset()
    silent: frozenset[str] = frozenset()

    def named(self) -> frozenset[Element]:
        """Everything."""
        places = [*self.here.values(), *self.beyond.values()]
        return self.metric.union(*places, self.by_state())

    def by_state(self) -> frozenset[Element]:
        """Own links that are not well, on which nothing is placed, not even with a doubt."""
        placed = {rail for rail, found in self.here.items() if found} | self.unsure | self._placed()
        return frozenset(
            Element("link", f"{self.host}/{rail}") for rail in self.bad if rail not in placed
        )

    def _placed(self) -> set[int]:
        """Rails that an element of the metric explains, where ``explain`` was not asked."""
        out = set()
        for rail in self.bad:
            around = {
                Element("link", f"{self.host}/{rail}"),
                Element("host", self.host),
                Element("leaf", f"rail{rail}"),
            }
            if around & self.metric:
                out.add(rail)
        return out


@dataclass(frozen=True, slots=True)
class Trial:
    """One or two faults, and what was said of them.

    Attributes:
        injected: all that was on at once.
        said: of each host that answered, at the end.
        seconds: element → from the injection until any host named it first, by a state or a place.
        ever: elements of any host's ``fabricd_located`` at any moment.
        alerts: those of the shipped rules that blame what is not so, were it to stay as it is.
    """

    injected: tuple[Injected, ...]
    said: tuple[Said, ...]
    seconds: Mapping[Element, float] = field(default_factory=dict)
    ever: frozenset[Element] = frozenset()
    alerts: frozenset[str] = frozenset()

    def named(self) -> frozenset[Element]:
        """By all hosts together, at the end."""
        return frozenset().union(*(one.named() for one in self.said)) | self.silent()

    def silent(self) -> frozenset[Element]:
        """Hosts that more than half of those asked call silent: as FabricPeerSilent has it."""
        called = [host for one in self.said for host in one.silent]
        return frozenset(
            Element("host", host)
            for host in set(called)
            if called.count(host) > len([one for one in self.said if one.host != host]) / 2
        )

    def right(self) -> frozenset[Element]:
        """What may be named."""
        return frozenset().union(*(fault.names for fault in self.injected))

    def wrong(self) -> frozenset[Element]:
        """What was named at the end and is not so."""
        return self.named() - self.right()

    def ever_wrong(self) -> frozenset[Element]:
        """What was named at any moment and is not so."""
        return (self.named() | self.ever) - self.right()

    def seen(self) -> list[Injected]:
        """The faults that are not hidden by another."""
        return [
            fault
            for fault in self.injected
            if not any(other.hides(fault) for other in self.injected)
        ]

    def exact(self, fault: Injected) -> bool:
        """Whether it has its name; of a fault that no probe sees: whether nothing has a wrong."""
        if not fault.names:
            return not self.wrong()
        return bool(fault.names & self.named())

    def found(self, fault: Injected) -> bool:
        """Whether what was named has a part in it."""
        return self.exact(fault) or any(fault.touches(one) for one in self.named())

    def took_s(self, fault: Injected) -> float | None:
        """Until it had its name; None: it never had, or there is none to have."""
        return min((self.seconds[one] for one in fault.names if one in self.seconds), default=None)

    def misplaced(self) -> list[str]:
        """Where ``explain`` of a link names what is not so, or not on that link."""
        right = self.right()
        return [
            f"{one.host} rail{rail} {where}: {element}"
            for one in self.said
            for where, rows in (("explain", one.here), ("far ends", one.beyond))
            for rail, found in sorted(rows.items())
            for element in sorted(found)
            if element not in right or (where == "explain" and not _on(element, one.host, rail))
        ]

    def __str__(self) -> str:
        return " + ".join(map(str, self.injected))


def _on(element: Element, host: str, rail: int) -> bool:
    """Whether an element is one that a link's traffic passes."""
    port = f"{host}/{rail}"
    if element.part == "path":
        return port in element.name.split("-")
    if element.part == "spine":
        return element.name == "between leaves" or f"rail{rail}" in element.name.split("-")
    return element.name in (port, host, f"rail{rail}")


def blame(text: str) -> Element | None:
    """The element of an answer as ``explain`` prints it; None: it says *unknown*."""
    match = _BLAME.match(text)
    return Element(match["part"], match["name"]) if match else None


def explained(document: Mapping[str, object], key: str) -> frozenset[Element]:
    """Elements of ``located`` or ``located_beyond`` of the answer of ``explain``."""
    texts = document.get(key)
    assert isinstance(texts, list)
    return frozenset(found for text in texts if (found := blame(str(text))) is not None)


def is_unsure(document: Mapping[str, object]) -> bool:
    """Whether the answer of ``explain`` has a place that is unknown."""
    texts = document["located"]
    assert isinstance(texts, list)
    return any(blame(str(text)) is None for text in texts)


_SERIES = re.compile(r"^(fabricd_\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def series(text: str) -> list[tuple[dict[str, str], float]]:
    """Name (as ``__name__``) and labels, and value, of what ``/metrics`` says."""
    return [
        ({"__name__": name, **dict(_LABEL.findall(labels))}, float(value))
        for name, labels, value in _SERIES.findall(text)
    ]


def rail_of(netdev: str) -> int:
    """The lab calls the interface of rail 3 ``rail3``."""
    return int(netdev.removeprefix("rail"))


def said(host: str, found: Iterable[tuple[Mapping[str, str], float]]) -> Said:
    """What a host's metrics name; `explain` is for the caller to add."""
    metric, bad, silent = set(), set(), set()
    for labels, value in found:
        name = labels["__name__"]
        if name == "fabricd_located":
            metric.add(Element(labels["part"], labels["element"]))
        elif name == "fabricd_link_state" and value in _STATES:
            bad.add(rail_of(labels["link"]))
        elif name == "fabricd_peer_silent" and value:
            silent.add(labels["peer"])
    return Said(host, frozenset(metric), bad=frozenset(bad), silent=frozenset(silent))


def rows(singles: Sequence[Trial], pairs: Sequence[Trial]) -> list[Row]:
    """The table."""
    everything = [*singles, *pairs]
    out = _figures(everything, "", (98.0, 99.0, 96.0))
    out += _figures(singles, ", one at a time", (None, None, None))
    out += _figures(pairs, ", two at once", (None, None, None))
    blaming = [(t, sorted({*map(str, t.wrong()), *t.misplaced()})) for t in pairs]
    texts = [f"{t}: {', '.join(wrong)}" for t, wrong in blaming if wrong]
    out.append(
        Row("two at once: pairs of which a host blames what is not so", 0, len(texts), "",
            "equal", note="; ".join([f"{len(pairs)} pairs", *texts[:4]]))
    )  # fmt: skip
    texts = [f"{t}: {', '.join(sorted(t.alerts))}" for t in pairs if t.alerts]
    out.append(
        Row("two at once: pairs of which an alert blames what is not so", 0, len(texts), "",
            "equal", note="; ".join([f"{len(pairs)} pairs", *texts[:4]]))
    )  # fmt: skip
    passing = [t for t in everything if t.ever_wrong() - t.wrong()]
    texts = [f"{t}: {', '.join(sorted(map(str, t.ever_wrong() - t.wrong())))}" for t in passing]
    out.append(
        Row("located: faults of which something else was named for a moment", None, len(passing),
            "", note="; ".join([f"{len(everything)} trials", *texts[:4]]))
    )  # fmt: skip
    return out


def _figures(
    trials: Sequence[Trial], which: str, asked: tuple[float | None, float | None, float | None]
) -> list[Row]:
    """Precision, recall, right element, and the time."""
    named = sum(len(t.named()) for t in trials)
    wrong = [(t, sorted(map(str, t.wrong()))) for t in trials if t.wrong()]
    seen = [(t, fault) for t in trials for fault in t.seen()]
    found = [(t, fault) for t, fault in seen if t.found(fault)]
    missed = [f"{fault} of {t}" for t, fault in seen if not t.found(fault)]
    exact = [(t, fault) for t, fault in found if t.exact(fault)]
    inexact = [
        f"{fault}: {', '.join(sorted(map(str, t.named()))) or 'nothing'}"
        for t, fault in found
        if not t.exact(fault)
    ]
    took = sorted(s for t, fault in exact if (s := t.took_s(fault)) is not None)
    so = named - sum(len(names) for _, names in wrong)
    texts = [f"{t}: {', '.join(names)}" for t, names in wrong]
    out = [
        Row(f"located faults{which}: precision", asked[0], _share(so, named), "%", "higher",
            note="; ".join([f"{so} of {named} elements named, {len(trials)} trials", *texts[:4]])),
        Row(f"located faults{which}: recall", asked[1], _share(len(found), len(seen)), "%",
            "higher", note="; ".join([f"{len(found)} of {len(seen)} faults", *missed[:4]])),
        Row(f"located faults{which}: right element", asked[2], _share(len(exact), len(found)), "%",
            "higher", note="; ".join([f"{len(exact)} of {len(found)}", *inexact[:4]])),
    ]  # fmt: skip
    if took:
        within = sum(s <= IN_TIME_S for s in took)
        out.append(
            Row(f"located faults{which}: named first after, median", None, percentile(took, 0.5),
                "s", note=f"{within} of {len(took)} within {IN_TIME_S:g} s, latest {took[-1]:.1f}",
                samples={"s": [round(s, 2) for s in took]})
        )  # fmt: skip
    return out


def _share(good: int, of: int) -> float:
    return round(100.0 * good / of, 2) if of else 100.0
