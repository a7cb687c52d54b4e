"""Results of the engine and its detectors as rows of the timeline. Pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fabricd.detect.locate import Blame, Kind
from fabricd.engine import Engine
from fabricd.links.interfaces import InterfaceChange
from fabricd.state.evaluation import Change, Evaluation
from telemetry.events import Event, EventKind


def event(kind: EventKind, **fields: Any) -> Event:  # noqa: ANN401
    """An event of now."""
    return Event(kind, time.time_ns(), time.monotonic_ns(), **fields)


def located(blame: Blame, host: str, engine: Engine) -> Event:
    """Where a fault is; if it is a link of this host (or may be), the row is one of that link."""
    own = {f"{host}/{link.rail}": link for link in engine.links}
    named = [(blame.kind, blame.element), *((kind, name) for kind, name, _ in blame.candidates)]
    certain = named[: None if blame.kind is Kind.UNKNOWN else 1]
    link = next((own[name] for kind, name in certain if kind is Kind.LINK and name in own), None)
    return event(
        EventKind.LOCATED,
        link=link.netdev if link else "",
        rail=link.rail if link else None,
        reason=str(blame),
        data={
            "part": blame.kind.value,
            "element": blame.element,
            "direction": blame.way.value,
            "confidence": round(blame.confidence, 3),
            "flows": blame.flows,
        },
    )


def interface_event(change: InterfaceChange) -> Event:
    """A configured interface that is missing, or is there again."""
    return event(
        EventKind.DAEMON,
        link=change.netdev,
        rail=change.rail,
        reason=change.text,
        data={"missing": change.missing},
    )


def change_event(change: Change) -> Event:
    """A transition of a link or path."""
    step = change.transition
    kind = EventKind.PATH_STATE if change.peer else EventKind.LINK_STATE
    return event(
        EventKind.RDMA_STATE if change.rdma else kind,
        link=change.netdev,
        rail=change.rail,
        peer=change.peer,
        from_state=step.from_state,
        to_state=step.to_state,
        reason=step.reason,
        data={"address": change.address} if change.address else {},
    )


def evaluation_events(
    evaluation: Evaluation, *, flaps_per_hour: int, known: Mapping[str, str]
) -> list[Event]:
    """What an evaluation found.

    Args:
        evaluation: of the engine.
        flaps_per_hour: above which a link is the operator's.
        known: links that were told to be kept in spite of probes.
    """
    events = [change_event(change) for change in evaluation.changes]
    events += [
        event(
            EventKind.DAEMON,
            link=netdev,
            reason="flaps again and again: replace cable, optics or NIC",
            data={"flaps_per_hour_over": flaps_per_hour},
        )
        for netdev in evaluation.operator
    ]
    for netdev, why in evaluation.refused.items():
        if netdev not in known:
            reason = f"kept in spite of probes ({why}): max_probe_share or last rail"
            events.append(event(EventKind.DAEMON, link=netdev, reason=reason))
    return events
