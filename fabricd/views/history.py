"""A link's rows of the timeline for somebody who reads them: a burst of flaps is one line. Pure.

The timeline keeps every flap. In ``explain`` thirty of them would hide the decision that they
led to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from telemetry.events import EventKind

Row = dict[str, Any]
_CARRIER = {EventKind.FLAP.value, EventKind.CARRIER_UP.value}
_BURST = 3
"""Fewer flaps in a row are told one by one."""


def condense(rows: Iterable[Row]) -> list[Row]:
    """The rows (as `Event.to_dict` gives them), each burst of flaps as one.

    Such a row is the first flap's, with the ``count`` of all, and ``until_wall_ns``: the last.
    """
    out: list[Row] = []
    run: list[Row] = []
    for row in rows:
        if row["kind"] in _CARRIER:
            run.append(row)
            continue
        out += _told(run)
        run = []
        out.append(row)
    return out + _told(run)


def _told(run: list[Row]) -> list[Row]:
    flaps = [row for row in run if row["kind"] == EventKind.FLAP.value]
    if len(flaps) < _BURST:
        return run
    count = sum(int(row.get("count", 1)) for row in flaps)
    first, last = run.index(flaps[0]), len(run) - run[::-1].index(flaps[-1])
    burst = flaps[0] | {"count": count, "until_wall_ns": flaps[-1]["wall_ns"]}
    return [*run[:first], burst | {"data": flaps[-1].get("data", {})}, *run[last:]]
