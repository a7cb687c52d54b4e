"""The plugin over RDMA, in guests of the RDMA lab: beside perftest, under faults, after them.

Soft-RoCE under emulation: only ratios, counts and the guest's own times say something.
docs/design/rdma-lab.md has the lab.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.report import Row
from bench.verbs.faults import faults
from bench.verbs.rates import bandwidth, latency
from bench.verbs.returns import returns

PARTS: Mapping[str, Callable[..., list[Row]]] = {
    "bandwidth": bandwidth,
    "latency": latency,
    "faults": faults,
    "returns": returns,
}
"""Each is called with ``quick``."""
