"""Links and paths as a JSON document, for the next daemon. Pure; the engine calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fabricd.predict.forecast import Forecast
from fabricd.state.model import OUT, Link, Path
from telemetry.events import LinkState


def document(links: Sequence[Link], paths: Sequence[Path], now: int) -> dict[str, Any]:
    """States, penalties and forecasts; ``now``: CLOCK_MONOTONIC ns."""
    return {
        "links": {
            x.netdev: x.health.save(now)
            | ({"forecast": x.forecast.document()} if x.forecast else {})
            for x in links
        },
        "paths": {
            p.key: p.health.save(now) | {"heard": p.heard_ever} for p in paths if p.heard_ever
        },
    }


def restore(
    links: Sequence[Link],
    paths: Sequence[Path],
    document: dict[str, Any],
    now: int,
    elapsed_ns: int,
) -> list[str]:
    """Take over what `document` gave ``elapsed_ns`` ago; returns what was not usable."""
    refused = []
    for kind, items in (
        ("links", {x.netdev: x for x in links}),
        ("paths", {p.key: p for p in paths}),
    ):
        stored = document.get(kind)
        if not isinstance(stored, dict):
            refused.append(kind)
            continue
        for key, item in items.items():
            if key not in stored:
                continue
            try:
                item.health.restore(stored[key], now, elapsed_ns)
                if isinstance(item, Path):
                    item.heard_ever = bool(stored[key].get("heard"))
                elif (said := stored[key].get("forecast")) is not None:
                    item.forecast, item.named_ns = Forecast.of(said), now
            except (KeyError, TypeError, ValueError, AttributeError):
                refused.append(f"{kind} {key}")
    return refused


def restore_history(
    links: Sequence[Link], document: dict[str, Any], now: int, elapsed_ns: int
) -> list[str]:
    """Take over the links' damping and what was out before a reboot; returns what was unusable."""
    stored = document.get("links")
    if not isinstance(stored, dict):
        return ["links"]
    refused = []
    for link in links:
        if link.netdev not in stored:
            continue
        try:
            link.health.restore_history(stored[link.netdev], now, elapsed_ns)
        except (KeyError, TypeError, ValueError, AttributeError):
            refused.append(f"links {link.netdev}")
    return refused


def adopt(
    links: Sequence[Link], paths: Sequence[Path], entry: tuple[str, str, LinkState], now: int
) -> None:
    """Believe an entry (netdev, remote address or "", state) of an earlier daemon's steer page."""
    netdev, remote, state = entry
    if state not in OUT:
        return
    for link in links:
        if not remote and link.netdev == netdev:
            link.health.adopt(state, now)
    for path in paths:
        if path.netdev == netdev and path.spec.address == remote:
            path.health.adopt(state, now)
            path.heard_ever = True
