"""What the daemon leaves for its successor in the timeline's file, and takes over from there.

A FLAP row carries the kernel's count it accounts for, so the newest row of a link corrects a state
document that is older: no flap is counted twice or lost by ``kill -9``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from fabricd.config.loader import Config
from fabricd.detect.loss import LossTest
from fabricd.engine import Engine
from fabricd.jobs.stats_pages import Jobs
from fabricd.links.carrier import CarrierTracker
from fabricd.links.flaps import FlapLedger
from fabricd.nics import memory
from fabricd.nics.monitor import NicMonitor
from fabricd.steer.page import SteerPage
from telemetry.timeline import Retention, Timeline, TimelineError

OPEN_S = 10.0


@dataclass(frozen=True, slots=True)
class LastingParts:
    """The parts of a host whose state outlives its daemon."""

    engine: Engine
    losses: LossTest
    jobs: Jobs
    nics: NicMonitor
    carrier_tracker: CarrierTracker
    page: SteerPage


Restored = tuple[Timeline | None, dict[str, Any], FlapLedger, dict[str, int]]


def open_store(path: Path, host: str, retention: Retention) -> Callable[[], Timeline]:
    """An opener for the recorder."""
    return lambda: Timeline(path, host=host, retention=retention)


def retention(config: Config) -> Retention:
    """How much of the timeline is kept."""
    return Retention(config.timeline.retention_days, config.timeline.max_mb)


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
        row = store.last_flap(netdev, boot)
        if row is None:
            continue
        data = row.data
        ifindex, count, told = data.get("ifindex"), data.get("down_count"), data.get("told")
        if isinstance(ifindex, int) and isinstance(count, int):
            ledger.restore_row(
                netdev, ifindex, count, carrier=bool(data.get("carrier")),
                told=told if isinstance(told, int) else None,
            )  # fmt: skip
    return store, document, ledger, totals


def state_document(host: LastingParts, now: int) -> dict[str, Any]:
    """What `take_over` reads; ``now``: CLOCK_MONOTONIC ns."""
    return {
        "boot_id": host.carrier_tracker.ledger.boot_id,
        "mono_ns": now,
        "wall_ns": time.time_ns(),
        "engine": host.engine.save(now),
        "usual_losses": host.losses.save(),
        "jobs": host.jobs.save(),
        "nics": memory.save(host.nics.nics),
    }


def take_over(host: LastingParts, document: Mapping[str, Any]) -> list[str]:
    """Take over an earlier daemon's document; returns what was not usable.

    The steer page is written before any file, so what it says to be out is out, even when the
    document is older. Of another boot only damping and what was out are taken over, aged by
    the wall clock; should that have gone back, nothing has decayed.
    """
    refused = []
    now = time.monotonic_ns()
    boot = host.carrier_tracker.ledger.boot_id
    if document.get("boot_id", boot) != boot:
        engine, at = document.get("engine"), document.get("wall_ns")
        if isinstance(engine, dict) and isinstance(at, int):
            refused = host.engine.restore_history(engine, now, max(0, time.time_ns() - at))
    elif document:
        host.jobs.restore(document.get("jobs"))
        engine, at = document.get("engine"), document.get("mono_ns")
        if isinstance(engine, dict) and isinstance(at, int) and at <= now:
            refused = host.engine.restore(engine, now, now - at)
        else:
            refused = ["engine"]
    if (kept := document.get("nics")) is not None:
        refused += memory.restore(host.nics.nics, kept)
    if (usual := document.get("usual_losses")) is not None:  # older daemons kept none
        refused += host.losses.restore(usual)
    for entry in host.page.taken_over:
        host.engine.adopt(entry.netdev, entry.remote, entry.state, now)
    return refused
