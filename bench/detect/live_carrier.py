"""A cable is pulled: how long until the host's page says DOWN, alone and while other links flap."""

from __future__ import annotations

from contextlib import ExitStack

from bench.detect.live_lab import lab, strike
from bench.report import Row, percentile
from lab.faults import Carrier, Flap

HOSTS, RAILS = 2, 4
BURST_MS = 20
QUIET_RAILS = (2, 3)
"""The faults of the burst rows are on these; the others flap all the time, on every host."""


def carrier(*, quick: bool) -> list[Row]:
    """Isolated, then with half of all links flapping every 20 ms."""
    count = 60 if quick else 300
    everywhere = [f"h{h}:rail{r}" for r in range(RAILS) for h in range(HOSTS)]
    quiet = [f"h{h}:rail{r}" for r in QUIET_RAILS for h in range(HOSTS)]
    rows = []
    with lab("carrier", hosts=HOSTS, rails=RAILS) as (cluster, watch):
        alone = strike(cluster, watch, everywhere, Carrier, count, lasts_s=0.1)
        rows += latency_rows("carrier down → state change, isolated", alone, 5, 15)
        with ExitStack() as stack:
            for target in sorted(set(everywhere) - set(quiet)):
                stack.enter_context(cluster.inject(Flap(target, BURST_MS, 1_000_000)))
            among = strike(cluster, watch, quiet, Carrier, count, lasts_s=0.1)
        rows += latency_rows("carrier down → state change, bursts on other links", among, 5, 15)
    return rows


def latency_rows(
    name: str,
    struck: list[tuple[str, int, float | None]],
    p50: float,
    p99: float,
    *,
    peer: list[float] | None = None,
    note: str = "",
) -> list[Row]:
    """The rows of one kind of fault; one that was not seen at all is a row that fails."""
    took = [ms for _, _, ms in struck if ms is not None]
    text = f"{len(struck)} faults, max {max(took, default=float('nan')):.1f} ms{note}"
    peers = {q: percentile(peer, q) if peer else None for q in (0.5, 0.99)}
    rows = [
        Row(f"{name}: p{round(q * 100)}", asked, percentile(took, q), "ms", peer=peers[q],
            note=text, samples={"ms": took})
        for q, asked in ((0.5, p50), (0.99, p99))
    ]  # fmt: skip
    missed = len(struck) - len(took)
    return [*rows, Row(f"{name}: not seen", 0, missed, "", better="equal")]
