"""Stats pages of a job whose messages take so long on each rail, second after second."""

import random
from pathlib import Path

from telemetry.statsdir import ProcessPage
from telemetry.statslayout import LATENCY_BUCKETS
from telemetry.statspage import Latency, StatsPage, StatsRail

MS = 1_000_000


class Job:
    """Processes that send over rails; a message's delivery time is drawn around its rail's."""

    def __init__(self, rails=4, processes=1, seed=1, name="train", uid=0):
        self.dice = random.Random(seed)
        self.name, self.uid = name, uid
        self.rails = [
            {f"rail{r}": [0, 0, [0] * LATENCY_BUCKETS] for r in range(rails)}
            for _ in range(processes)
        ]

    def scan(self, latency_ms, messages=40, size=500_000, outstanding=1.0, only=None):
        """Pages a second later; arguments are numbers or by netdev."""
        pages = []
        for pid, rails in enumerate(self.rails):
            shown = []
            for netdev, row in rails.items():
                if only is None or netdev in only:
                    for _ in range(at(messages, netdev)):
                        ns = round(at(latency_ms, netdev) * MS * self.dice.uniform(0.7, 1.3))
                        row[0] += at(size, netdev)
                        row[1] += ns
                        row[2][min((ns // 1000).bit_length(), LATENCY_BUCKETS - 1)] += 1
                busy = self.dice.random() < at(outstanding, netdev)
                shown.append(
                    StatsRail(
                        netdev, tx_bytes=row[0], in_flight_bytes=500_000 * busy,
                        latency=Latency(row[1], tuple(row[2])),
                    )
                )  # fmt: skip
            page = StatsPage(
                pid + 1, 5, 6, 1, 1, 0, 0, 0, 0, steer_present=True, failover=True, job=self.name,
                rails=tuple(shown),
            )  # fmt: skip
            pages.append(ProcessPage(Path("/x"), self.uid, page, alive=True))
        return pages


def at(value, netdev):
    return value.get(netdev, value["else"]) if isinstance(value, dict) else value
