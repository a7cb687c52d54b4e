"""Flaps of four periods on the links of one host at the same time: is each counted, once?

The slow ones are spread over several links, each with its share of the thousand: on one link a
thousand flaps 600 ms apart take ten minutes.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack

from bench.detect.live_lab import lab
from bench.report import Row
from lab.cluster import Cluster
from lab.faults.catalog import Flap
from telemetry.timeline import Timeline

LINKS = {2: 1, 20: 1, 200: 2, 600: 4}
"""On how many links each period (ms) is made."""
FLAPS = 1000
QUICK = {200: 100, 600: 40}
"""Fewer of the slow ones."""
SETTLE_S = 2.0


def flaps(*, quick: bool) -> list[Row]:
    """Timeline and metrics beside the kernel's own counter and the ground truth."""
    rails = [period for period, links in LINKS.items() for _ in range(links)]
    asked = {p: QUICK.get(p, FLAPS) if quick else FLAPS for p in LINKS}
    with lab("flaps", hosts=2, rails=len(rails)) as (cluster, _watch):
        before = [counts(cluster, rail) for rail in range(len(rails))]
        with ExitStack() as stack:
            faults = [
                stack.enter_context(
                    cluster.inject(Flap(f"h0:rail{rail}", period, asked[period] // LINKS[period]))
                )
                for rail, period in enumerate(rails)
            ]
            for fault in faults:
                fault.wait()
        time.sleep(SETTLE_S)
        after = [counts(cluster, rail) for rail in range(len(rails))]
    return [
        _row(period, asked[period], [
            tuple(b - a for a, b in zip(before[rail], after[rail], strict=True))
            for rail, own in enumerate(rails) if own == period
        ])
        for period in LINKS
    ]  # fmt: skip


def _row(period: int, count: int, links: list[tuple[int, ...]]) -> Row:
    """Errors of single links add up, whatever their sign."""
    share = count // len(links)
    wrong = sum(abs(value - share) for link in links for value in link[:2])
    timeline, metric, kernel = (sum(column) for column in zip(*links, strict=True))
    where = "one link" if len(links) == 1 else f"{len(links)} links"
    return Row(
        f"{count} flaps, {period} ms apart, on {where} with the others beside: count error",
        0,
        wrong,
        "",
        better="equal",
        note=f"timeline {timeline}, metric {metric}, kernel {kernel}",
    )


def counts(cluster: Cluster, rail: int) -> tuple[int, int, int]:
    """By the timeline, by the metric, by the kernel."""
    node, link = cluster.nodes[0], f"rail{rail}"
    with Timeline(node.state_dir / "timeline.db", host=node.name, read_only=True) as timeline:
        stored = timeline.flap_total(link)
    body = node.fetch("http://127.0.0.1:19200/metrics")
    found = re.search(
        rf'^fabricd_link_flaps_total\{{[^}}]*link="{link}"[^}}]*\}} (\S+)', body, re.MULTILINE
    )
    if not found:
        raise RuntimeError(f"no fabricd_link_flaps_total for {link}")
    return stored, int(float(found[1])), node.carrier_down_count(rail)
