"""Three links flap for ten minutes, at 0.2, 1 and 10 Hz: how often does traffic have to move?

Two hosts with four rails; three links of the first flap at once, with the default damping and
hold-down. A *published transition* is a change of the link's weight, as the timeline's steer rows
have it and as the page was seen to change; what counts is the most of them within any ten minutes,
for on a busy machine the flaps take longer than that. The timeline is complete when it holds as
many flaps as were made, and as the kernel counted, each with its carrier's times.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise

from bench.detect.live_flaps import counts
from bench.detect.live_lab import lab
from bench.detect.live_pages import PageWatch
from bench.report import Row
from lab.cluster import Cluster
from lab.faults.catalog import Flap
from telemetry.events import EventKind
from telemetry.timeline import Timeline

HERTZ = (0.2, 1.0, 10.0)
MINUTES, QUICK_MINUTES = 10.0, 1.0
MOST = 3
WINDOW_NS = 600 * 10**9
SETTLE_S = 2.0


def damping(*, quick: bool, minutes: float | None = None) -> list[Row]:
    """One row of transitions and one of the timeline for each link."""
    lasts_s = 60 * (minutes or (QUICK_MINUTES if quick else MINUTES))
    rows = []
    with lab("damping", hosts=2, rails=1 + len(HERTZ), life=True) as (cluster, watch):
        began, wall = time.monotonic_ns(), time.time_ns()
        before = [counts(cluster, rail) for rail in range(len(HERTZ))]
        made = [round(lasts_s * hertz) for hertz in HERTZ]
        with ExitStack() as stack:
            faults = [
                stack.enter_context(cluster.inject(Flap(f"h0:rail{rail}", 1000 / hertz, count)))
                for rail, (hertz, count) in enumerate(zip(HERTZ, made, strict=True))
            ]
            for fault in faults:
                fault.wait()
        time.sleep(SETTLE_S)
        for rail, (hertz, count) in enumerate(zip(HERTZ, made, strict=True)):
            now = counts(cluster, rail)
            timeline, metric, kernel = (b - a for a, b in zip(before[rail], now, strict=True))
            steps = _steer_rows(cluster, f"rail{rail}", wall)
            seen = _page_changes(watch, f"rail{rail}", began)
            most = max(most_within(times, WINDOW_NS) for times in ([at for at, _ in steps], seen))
            name = f"{lasts_s / 60:g} min of flaps at {hertz:g} Hz"
            rows += [
                Row(f"{name}: published transitions", MOST, most, "",
                    note=f"weights 1000 {' '.join(weight for _, weight in steps)}; "
                    f"the page changed {len(seen)} times"),
                Row(f"{name}: flaps that the timeline lacks or has too many", 0,
                    abs(timeline - count) + abs(timeline - kernel), "", better="equal",
                    note=f"{count} made, timeline {timeline}, metric {metric}, kernel {kernel}"),
            ]  # fmt: skip
    return rows


def most_within(times: Sequence[int], window: int) -> int:
    """Most of these moments, in order, that lie within one window."""
    return max((bisect_left(times, at + window) - n for n, at in enumerate(times)), default=0)


def _steer_rows(cluster: Cluster, link: str, since_wall_ns: int) -> list[tuple[int, str]]:
    """The weights that the link had since, one after the other, and when."""
    node = cluster.nodes[0]
    with Timeline(node.state_dir / "timeline.db", host=node.name, read_only=True) as timeline:
        rows = timeline.query(since_ns=since_wall_ns, link=link, kind=EventKind.STEER, limit=None)
    return [(row.mono_ns, str(row.data["weight"])) for row in rows if "remote" not in row.data]


def _page_changes(watch: PageWatch, link: str, since_ns: int) -> list[int]:
    """When the link's weight on the page changed since."""
    own = [row for row in watch.rows() if (row.host, row.netdev) == ("h0", link)]
    return [b.t_ns for a, b in pairwise(own) if b.weight != a.weight and b.t_ns >= since_ns]
