"""Flaps of four periods at the same time, one on each rail: is each counted, once?"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack

from bench.detect.live_lab import lab
from bench.report import Row
from lab.cluster import Cluster
from lab.faults import Flap
from telemetry.timeline import Timeline

PERIODS_MS = (2, 20, 200, 600)
QUICK = {200: 100, 600: 40}
"""Fewer of the slow ones: a thousand of them take ten minutes."""
SETTLE_S = 2.0


def flaps(*, quick: bool) -> list[Row]:
    """Timeline and metrics beside the kernel's own counter and the ground truth."""
    rows = []
    with lab("flaps", hosts=2, rails=len(PERIODS_MS)) as (cluster, _watch):
        node = cluster.nodes[0]
        before = {rail: _counts(cluster, rail) for rail in range(len(PERIODS_MS))}
        asked = {p: QUICK.get(p, 1000) if quick else 1000 for p in PERIODS_MS}
        with ExitStack() as stack:
            faults = [
                stack.enter_context(cluster.inject(Flap(f"h0:rail{rail}", period, asked[period])))
                for rail, period in enumerate(PERIODS_MS)
            ]
            for fault in faults:
                fault.wait()
        time.sleep(SETTLE_S)
        for rail, period in enumerate(PERIODS_MS):
            now = _counts(cluster, rail)
            timeline, metric, kernel = (b - a for a, b in zip(before[rail], now, strict=True))
            count = asked[period]
            rows.append(
                Row(
                    f"{count} flaps, {period} ms apart, on {node.name} with the others beside: "
                    "count error",
                    0,
                    abs(timeline - count) + abs(metric - count),
                    "",
                    better="equal",
                    note=f"timeline {timeline}, metric {metric}, kernel {kernel}",
                )
            )
    return rows


def _counts(cluster: Cluster, rail: int) -> tuple[int, int, int]:
    """By the timeline, by the metric, by the kernel."""
    node, link = cluster.nodes[0], f"rail{rail}"
    with Timeline(node.state_dir / "timeline.db", host=node.name, read_only=True) as timeline:
        stored = timeline.flap_total(link)
    body = node.fetch("http://127.0.0.1:9464/metrics")
    found = re.search(
        rf'^fabricd_link_flaps_total\{{[^}}]*link="{link}"[^}}]*\}} (\S+)', body, re.MULTILINE
    )
    if not found:
        raise RuntimeError(f"no fabricd_link_flaps_total for {link}")
    return stored, int(float(found[1])), node.carrier_down_count(rail)
