"""A cable is pulled: how long until the host's page says DOWN, alone and while other links flap.

From the moment at which the kernel counts the loss: while others flap, what pulls the cable waits
for the kernel's RTNL lock, which is one for all links. How long it waited is in the note.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bench.detect.live_lab import SAID_S, Struck, lab, strike
from bench.report import Row, percentile
from lab.cluster import Cluster
from lab.faults.catalog import Carrier, Flap
from lab.node import prober_binary

HOSTS, RAILS = 2, 4
BURST_MS = 20
LOOK_NS = 2_000_000
"""Between two looks of carrier-watch, at most."""
QUIET_RAILS = (2, 3)
"""The faults of the burst rows are on these; the others flap all the time, on every host."""


def carrier(*, quick: bool) -> list[Row]:
    """Isolated, then with half of all links flapping every 20 ms."""
    count = 60 if quick else 300
    everywhere = [f"h{h}:rail{r}" for r in range(RAILS) for h in range(HOSTS)]
    quiet = [f"h{h}:rail{r}" for r in QUIET_RAILS for h in range(HOSTS)]
    rows = []
    with lab("carrier", hosts=HOSTS, rails=RAILS) as (cluster, watch):
        with losses(cluster, everywhere) as seen:
            alone = strike(cluster, watch, everywhere, Carrier, count, lasts_s=0.1)
            time.sleep(SAID_S)
            rows += _rows("carrier down → state change, isolated", alone, seen())
        with ExitStack() as stack:
            seen = stack.enter_context(losses(cluster, quiet))
            for target in sorted(set(everywhere) - set(quiet)):
                stack.enter_context(cluster.inject(Flap(target, BURST_MS, 1_000_000)))
            among = strike(cluster, watch, quiet, Carrier, count, lasts_s=0.1)
            time.sleep(SAID_S)
            rows += _rows("carrier down → state change, bursts on other links", among, seen())
    return rows


@contextmanager
def losses(
    cluster: Cluster, targets: Sequence[str]
) -> Iterator[Callable[[], list[tuple[int, str]]]]:
    """Call it for (ns, target) of each carrier loss that the hosts counted so far."""
    with ExitStack() as stack:
        for node in cluster.nodes:
            devices = sorted({target.split(":")[1] for target in targets})
            words = [str(prober_binary().with_name("carrier-watch")), *devices]
            file = stack.enter_context((node.dir / "losses.log").open("w"))
            process = node.popen(words, stdout=file, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)

        def so_far() -> list[tuple[int, str]]:
            found = []
            for node in cluster.nodes:
                for line in (node.dir / "losses.log").read_text().splitlines():
                    at, netdev = json.loads(line)
                    found.append((int(at), f"{node.name}:{netdev}"))
            return found

        time.sleep(1.0)
        yield so_far


def _rows(name: str, struck: list[Struck], seen: list[tuple[int, str]]) -> list[Row]:
    """From the kernel's loss to the page; from the asking where who watches the kernel was late."""
    exact, waits, late = [], [0.0], 0
    for target, asked, ms in struck:
        # A loss is dated by the last look without it.
        dated = [at for at, where in seen if where == target and at >= asked - LOOK_NS]
        if not dated:
            raise RuntimeError(f"{target}: the kernel counted no loss")
        lost = max(asked, min(dated))
        wait = (lost - asked) / 1e6
        if ms is None or wait <= ms:
            waits.append(wait)
            exact.append((target, lost, None if ms is None else ms - wait))
        else:  # no page knows of a loss before it happens
            late += 1
            exact.append((target, asked, ms))
    note = f"; the cable was pulled up to {max(waits):.1f} ms after it was asked for"
    if late:
        note += f"; {late} timed from the asking"
    return latency_rows(name, exact, 5, 15, note=note)


def latency_rows(
    name: str,
    struck: list[Struck],
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
