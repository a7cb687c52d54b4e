"""Everything towards a rail, or from it, vanishes while its carrier stays: how long until DOWN?

Four hosts with four rails, link interval 3 ms, three misses, compute on every core. The time is
from the ground truth to the page of the host whose rail it is. FRR's bfdd runs between the same
hosts on the same rails at the same time.
"""

from __future__ import annotations

from bench.detect.live_bfd import bfd
from bench.detect.live_carrier import latency_rows
from bench.detect.live_lab import FAST, compute, lab, strike
from bench.report import Row, percentile
from lab.faults.catalog import BlackHole

HOSTS, RAILS = 4, 4
LASTS_S = 0.25


def _receive(target: str) -> BlackHole:
    return BlackHole(target, "rx")


def _transmit(target: str) -> BlackHole:
    return BlackHole(target, "tx")


def blackhole(*, quick: bool) -> list[Row]:
    """Receive side beside bfdd, then transmit side."""
    count = 40 if quick else 150
    targets = [f"h{h}:rail{r}" for r in range(RAILS) for h in range(HOSTS)]
    with (
        lab("hole", hosts=HOSTS, rails=RAILS, probe=FAST) as (cluster, watch),
        bfd(cluster) as peer,
        compute(),
    ):
        receive = strike(cluster, watch, targets, _receive, count, lasts_s=LASTS_S, ready=peer.up)
        theirs = [
            peer.took_ms(target, began, began + round(LASTS_S * 1e9))
            for target, began, _ in receive
        ]
        transmit = strike(cluster, watch, targets, _transmit, count, lasts_s=LASTS_S)
    bfdd = [ms for ms in theirs if ms is not None]
    if not bfdd:
        raise RuntimeError("bfdd saw none of the black holes")
    seen = f"; bfdd saw {len(bfdd)}, p99 {percentile(bfdd, 0.99):.1f} ms"
    rows = latency_rows("black hole → DOWN at the receiver", receive, 12, 25, peer=bfdd, note=seen)
    ours = percentile([ms for _, _, ms in receive if ms is not None], 0.5)
    rows.append(
        Row(
            "black hole → DOWN, p50 beside FRR bfdd's (10 ms x 3)",
            0.7,
            ours / percentile(bfdd, 0.5),
            "",
            note=f"{ours:.1f} beside {percentile(bfdd, 0.5):.1f} ms",
            samples={"bfdd_ms": bfdd},
        )
    )
    return rows + latency_rows(
        "transmit-only black hole → DOWN, told by the peers", transmit, 12 + 10, 25 + 10
    )
