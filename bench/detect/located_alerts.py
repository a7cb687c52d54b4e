"""What the shipped alert rules make of what hosts say, and whether they blame what is not so.

`fired` runs promtool; all else is pure. What the hosts' metrics said at one moment is played as if
it had been so before and stayed so for `UNDER_S`: no window and no ``for`` of a rule is scaled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.detect.located_faults import Element, Injected, Port
from bench.detect.located_score import rail_of, series
from lab.observe.prometheus import JOB
from lab.observe.replay import TAIL_S, Alert, Phase, Track, document, firing

UNDER_S = 900
"""Longer than any ``for`` and window of the rules about links and places."""
_SHOWN_S = TAIL_S + 4
RESTARTS = frozenset({"FabricDaemonDown", "FabricProberDown"})


def recorded(texts: Mapping[str, str | None]) -> list[Track]:
    """Series of all hosts, each as a scrape once a second.

    Args:
        texts: host → what ``/metrics`` said; None: it did not answer.
    """
    times = [float(second) for second in range(_SHOWN_S + 1)]
    out = []
    for host, text in texts.items():
        target = {"job": JOB, "instance": host}
        found = [({"__name__": "up"}, float(text is not None)), *series(text or "")]
        for labels, value in found:
            track = tuple(sorted((labels | target).items()))
            out.append(Track(track, times, [value] * len(times)))
    return out


def fired(texts: Mapping[str, str | None], where: Path) -> set[Alert]:
    """The alerts that fire after `UNDER_S` of it.

    Raises:
        ValueError: promtool said something else.
    """
    phases = [Phase(0.0, float(_SHOWN_S), UNDER_S)]
    moments = {"under": UNDER_S}
    return firing(document(recorded(texts), phases, moments), where, moments)["under"]


def misleading(alerts: Iterable[Alert], injected: Sequence[Injected], rails: int) -> frozenset[str]:
    """Those that are not for something that was injected; ``rails``: of each host."""
    return frozenset(" ".join(alert) for alert in alerts if not _so(alert, injected, rails))


def _so(alert: Alert, injected: Sequence[Injected], rails: int) -> bool:
    """Whether an alert is about a fault, or about what is lost by one.

    A link is alerted rightly if a fault concerns its port, a host if faults concern all its ports,
    and its rails are low if they concern half of them. A place has to be right by its name.
    """
    name, *rest = alert
    labels = dict(part.split("=", 1) for part in rest)
    right = frozenset().union(*(fault.names for fault in injected))
    ports = frozenset().union(*(fault.ports for fault in injected if fault.names))
    if "element" in labels:
        return Element(labels.get("part", ""), labels["element"]) in right
    if "peer" in labels:
        return _count(labels["peer"], ports) >= rails
    host = labels.get("instance", "")
    if "link" in labels:
        return (host, rail_of(labels["link"])) in ports
    if name in RESTARTS:
        return any(f.sort.word in ("kill", "freeze") and f.target == host for f in injected)
    return name == "FabricRailsLow" and 2 * _count(host, ports) >= rails


def _count(host: str, ports: frozenset[Port]) -> int:
    return sum(port[0] == host for port in ports)
