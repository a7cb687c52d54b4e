"""What one or several hosts see, as a document, and where the faults are by all of it. Pure.

`fabricctl observations --json` writes such a document, `fabricctl locate` reads any number of them:
the union goes through the same `locate` as the daemon's own view.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fabricd.detect import evidence, neighbours
from fabricd.detect.locate import Blame, Flow, Port, Topology, locate
from fabricd.detect.neighbours import PeerReport
from fabricd.detect.silence import PathView
from fabricd.engine import Engine

VERSION = 1
MOST_FLOWS = 1_000_000


class ObservationError(ValueError):
    """Not such a document; the text says why."""


def collect(
    host: str,
    views: Sequence[PathView],
    engine: Engine,
    reports: Sequence[PeerReport],
    topology: Topology,
    *,
    well_since: int,
) -> dict[str, Any]:
    """The document of one host.

    Args:
        host: its name.
        views: its paths.
        engine: its links.
        reports: what its neighbours said.
        topology: what it knows of the leaves.
        well_since: good news of neighbours from before (CLOCK_MONOTONIC ns) is left out.
    """
    seen = evidence.flows(host, views, engine) + neighbours.flows(reports, well_since=well_since)
    dark, lit = evidence.ports(host, engine)
    more_dark, more_lit = neighbours.ports(reports)
    ports = {port for flow in seen for port in (flow.source, flow.target)} | dark | lit
    return {
        "version": VERSION,
        "host": host,
        "neighbours": sorted({report.reporter for report in reports}),
        "flows": [[*flow.source, *flow.target, flow.ratio] for flow in seen],
        "dark": sorted(map(list, dark | more_dark)),
        "lit": sorted(map(list, lit | more_lit)),
        "leaves": [[*p, topology.leaf_of[p]] for p in sorted(ports) if p in topology.leaf_of],
    }


def answer(documents: Iterable[Any]) -> list[Blame]:
    """Where the faults are, by all documents together.

    Raises:
        ObservationError: one of them is none.
    """
    flows: list[Flow] = []
    dark: set[Port] = set()
    lit: set[Port] = set()
    leaf_of: dict[Port, str] = {}
    for document in documents:
        if not isinstance(document, Mapping) or document.get("version") != VERSION:
            raise ObservationError(f"not observations of version {VERSION}")
        for item in _list(document, "flows", 5):
            source, target = _port(item[0:2]), _port(item[2:4])
            flows.append(Flow(source, target, _number(item[4])))
        dark |= {_port(item) for item in _list(document, "dark", 2)}
        lit |= {_port(item) for item in _list(document, "lit", 2)}
        for item in _list(document, "leaves", 3):
            leaf_of[_port(item[0:2])] = _text(item[2])
    if len(flows) > MOST_FLOWS:
        raise ObservationError(f"more than {MOST_FLOWS} flows")
    # A host that says dark of its own port knows; an older report that it was lit does not count.
    return locate(flows, topology=Topology(leaf_of), dark=dark, lit=lit - dark, certain=True)


def blame_document(blame: Blame) -> dict[str, Any]:
    """One answer as JSON."""
    return {
        "part": blame.kind.value,
        "element": blame.element,
        "direction": blame.way.value,
        "confidence": round(blame.confidence, 3),
        "flows": blame.flows,
        "text": str(blame),
        "candidates": [[kind.value, name, round(p, 3)] for kind, name, p in blame.candidates],
    }


def _list(document: Mapping[str, Any], key: str, width: int) -> list[list[Any]]:
    value = document.get(key)
    if not isinstance(value, list) or len(value) > MOST_FLOWS:
        raise ObservationError(f"{key}: a list is needed")
    for item in value:
        if not isinstance(item, list) or len(item) != width:
            raise ObservationError(f"{key}: its elements are lists of {width}")
    return value


def _port(item: Sequence[Any]) -> Port:
    rail = item[1]
    if isinstance(rail, bool) or not isinstance(rail, int) or not 0 <= rail <= 63:
        raise ObservationError("a rail is an integer from 0 to 63")
    return _text(item[0]), rail


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 255:
        raise ObservationError("a name is a text of 1 to 255 characters")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ObservationError("a ratio is a finite number")
    return max(-100.0, min(100.0, float(value)))
