"""The detectors that can be switched off, by name. Whoever adds a source of verdicts adds it here.

Off means: what it says is neither judged nor steered by. It is still measured and counted.
"""

from __future__ import annotations

DETECTORS: dict[str, str] = {
    "carrier": "carrier losses and a missing carrier take a link down (flaps are counted anyway)",
    "port": "a verbs port that is not active takes its link down",
    "probe-link": "silence of all paths of a link, over two peers or more, takes it down",
    "probe-path": "silence of one path makes an exception for it",
    "probe-rdma": "silence of RDMA probes takes RDMA from a link or path, and leaves IP there",
    "mtu": "an MTU black hole (only large packets do not arrive) takes a link or path down",
    "probe-doubt": "misses without a verdict make a link SUSPECT (no steering)",
    "loss": "lasting loss of probes makes a link or path DEGRADED: half its weight",
    "delay": "queues and slow rails give a link a condition (no steering)",
    "counters": "error counters take a link down (hard ones) or halve its weight (soft ones)",
    "prediction": "a link with a high failure risk keeps a part of its weight only",
}


def unknown(name: str) -> str:
    """The text for a name that is none of them."""
    return f'no detector "{name[:32]}"; allowed: {", ".join(DETECTORS)}'
