"""What the daemon takes over from its predecessor, out of the timeline's file.

A FLAP row carries the kernel's count it accounts for, so the newest row of a link corrects a state
document that is older: no flap is counted twice or lost by ``kill -9``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from fabricd.links.flaps import FlapLedger
from telemetry.events import EventKind
from telemetry.timeline import Retention, Timeline, TimelineError

OPEN_S = 10.0
Restored = tuple[Timeline | None, dict[str, Any], FlapLedger, dict[str, int]]


def open_store(path: Path, host: str, retention: Retention) -> Callable[[], Timeline]:
    """An opener for the recorder."""
    return lambda: Timeline(path, host=host, retention=retention)


async def restore(opener: Callable[[], Timeline], boot: str) -> Restored:
    """Open the timeline and read what it knows: store, daemon document, ledger, flap totals.

    A disk that does not answer within `OPEN_S` does not keep the daemon from starting: it then
    begins with nothing, and the recorder goes on trying.
    """
    log = structlog.get_logger()
    try:
        async with asyncio.timeout(OPEN_S):
            return await asyncio.to_thread(_read, opener, boot)
    except (TimelineError, TimeoutError) as error:
        log.error("timeline not readable: starting without state", error=str(error) or "no answer")
        return None, {}, FlapLedger(boot), {}


def _read(opener: Callable[[], Timeline], boot: str) -> Restored:
    store = opener()
    ledger = FlapLedger(boot)
    log = structlog.get_logger()
    document: dict[str, Any] = {}
    try:
        stored = store.get_state("daemon")
        if isinstance(stored, dict):
            document = stored  # of whichever boot: damping outlives one
        carrier = store.get_state("carrier")
        if carrier is not None:
            ledger.restore(carrier)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("state document refused", error=repr(error))
    totals = store.flap_totals()
    for netdev in totals:
        rows = store.query(link=netdev, kind=EventKind.FLAP, host=store.host, limit=1)
        if not rows or rows[0].boot_id != boot:
            continue
        data = rows[0].data
        ifindex, count = data.get("ifindex"), data.get("down_count")
        if isinstance(ifindex, int) and isinstance(count, int):
            ledger.restore_row(netdev, ifindex, count, carrier=bool(data.get("carrier")))
    return store, document, ledger, totals
