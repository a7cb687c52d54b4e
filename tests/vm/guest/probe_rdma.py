#!/usr/bin/python3
"""Configures a running prober for two rails with RDMA, and prints its RDMA rows again and again.

Arguments: its run directory, this host's number, the peer's number, seconds.

Each line of output is one look: CLOCK_MONOTONIC, and for each path its link, whether it is RDMA,
and what is missing, received and measured on it.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from fabricd.probes.client import (
    ProbeConfig,
    ProbeLink,
    ProbePath,
    ProberClient,
    ProbeRdma,
    ProberGoneError,
)
from fabricd.probes.ring import RingReader

RAILS = (0, 1)


def config(own: int, peer: int) -> ProbeConfig:
    """Both rails, from host ``own`` to host ``peer`` of the lab."""
    return ProbeConfig(
        100 + own,
        [ProbeLink(r, f"rail{r}", f"10.{r}.0.{own + 1}", rail=r) for r in RAILS],
        [ProbePath(r, r, f"10.{r}.0.{peer + 1}", 9200, 100 + peer, peer_rail=r) for r in RAILS],
        link_interval_us=20_000,
        rdma=[ProbeRdma(r, f"rxe{r}", 1) for r in RAILS],
    )


async def connected(run: Path) -> ProberClient:
    """A client of the prober, once it listens."""
    while True:
        try:
            return await ProberClient.connect(run / "prober" / "ctl.sock")
        except ProberGoneError:
            await asyncio.sleep(0.1)


async def main() -> None:
    """Configure, then look."""
    run, own, peer, seconds = Path(sys.argv[1]), *(int(word) for word in sys.argv[2:])
    client = await connected(run)
    await client.configure(config(own, peer))
    with RingReader(run / "prober" / "ring") as reader:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.1)
            rows = reader.paths(rdma=True)
            links = reader.links(rdma=True)
            look = {
                "now_ns": time.monotonic_ns(),
                "links": [[x.rdma, x.bound, x.carrier, x.sent, x.send_errors] for x in links],
                "paths": [
                    {
                        "link": row.link,
                        "rdma": row.rdma,
                        "established": row.established,
                        "rx_missed": row.rx_missed,
                        "tx_missed": row.tx_missed,
                        "received": row.received,
                        "rtt_ns": row.rtt_smoothed_ns,
                    }
                    for row in rows
                ],
            }
            print(json.dumps(look), flush=True)
    await client.close()


asyncio.run(main())
