"""256 comms over four rails: how long until all are connected, and what memory each takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.report import Row
from lab.cluster import Cluster
from lab.services.perf import Perf
from lab.topology import Topology
from telemetry.statsdir import StatsDirectory

COMMS = 256
RAILS = 4
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One job of many comms."""

    connect_s: float
    """From the first listen until connect and accept of all had answered, the slower end."""
    paths_s: float
    """Until every comm had a live path over every rail, by the stats pages of both ends."""
    kb_per_comm: Mapping[str, float]
    """Of the sending and of the receiving process: growth of its resident memory since before the
    first comm, without the job's own buffers; 1024 bytes."""


def comms(*, quick: bool) -> list[Row]:
    """All of them at once between two hosts; large messages and small ones."""
    return comms_measured(COMMS, 1 if quick else 3)


def comms_measured(count: int, rounds: int) -> list[Row]:
    """The same with so many comms, so many times each."""
    taken: dict[str, list[Figures]] = {}
    topology = Topology("bench-comms", hosts=2, rails=RAILS, spines=0, rate_bps=0)
    with Cluster(topology=topology) as cluster:
        for _ in range(rounds):
            # Per comm: 64 KB messages, and 4 KB, which the plugin keeps copies of.
            for name, size in (("64 KB", 64 << 10), ("4 KB", 4 << 10)):
                taken.setdefault(name, []).append(_one(cluster, count, size * count))
    return comms_rows(count, taken)


def _one(cluster: Cluster, count: int, size: int) -> Figures:
    perf = cluster.start_perf(
        "p2p",
        *("--channels", str(count), "--size", str(size), "--duration", "4", "--pingpong", "0"),
        *("--wait", "block", "--verify", "none", "--in-flight", "8"),
        env={"NCCL_SOCKET_IFNAME": "rail"},
        name="comms",
    )
    try:
        all_live_ns = _all_live_ns(perf, count)
        results = perf.wait(LIMIT_S)
    finally:
        perf.kill()
    for result in results:
        if result.status or result.errors:
            log = perf.log(result.rank).read_text()[-2000:]
            raise RuntimeError(f"rank {result.rank} failed ({result.status}): {log}")
    connected = [
        next(row for row in perf.rows(rank) if row["type"] == "connected") for rank in (0, 1)
    ]
    began_ns = min(int(row["t_ns"]) - float(row["seconds"]) * 1e9 for row in connected)
    kb = {}
    for end, row, result in zip(("sender", "receiver"), connected, results, strict=True):
        grown = int(result.end["rss_bytes"]) - int(row["rss_before_bytes"])
        own = int(result.end["buffer_bytes"])
        # Idle comms count as well: traffic must not look like less.
        idle = int(row["rss_bytes"]) - int(row["rss_before_bytes"])
        kb[end] = max(grown - own, idle) / 1024 / int(row["comms"])
    slowest = max(float(row["seconds"]) for row in connected)
    return Figures(slowest, (all_live_ns - began_ns) / 1e9, kb)


def _all_live_ns(perf: Perf, count: int) -> int:
    """CLOCK_MONOTONIC when both ends' pages were first seen to have all paths."""
    pages = [StatsDirectory(node.run_dir / "stats") for node in perf.nodes]
    missing = dict.fromkeys(range(len(perf.ranks)), -1)
    deadline = time.monotonic() + LIMIT_S
    while missing:
        now = time.monotonic_ns()
        for rank in list(missing):
            for found in pages[rank].scan(now):
                if found.page.pid != perf.ranks[rank].pid:
                    continue
                missing[rank] = sum(rail.live_paths for rail in found.page.rails)
                if missing[rank] >= count * RAILS:
                    missing.pop(rank)
                    break
        if time.monotonic() > deadline or not perf.running:
            raise RuntimeError(f"not all of {count * RAILS} paths came up: {missing}")
        time.sleep(0.005)
    return time.monotonic_ns()


def comms_rows(count: int, taken: Mapping[str, Sequence[Figures]]) -> list[Row]:
    """The rows of `comms` from its rounds. Pure."""
    every = [figures for rounds in taken.values() for figures in rounds]
    connect = [f.connect_s for f in every]
    paths = [f.paths_s for f in every]
    rows = [
        Row(
            f"{count} comms × {RAILS} rails: all connected",
            2,
            statistics.median(connect),
            "s",
            note=f"slower end; worst of {len(connect)}: {max(connect):.2f} s",
            samples={"seconds": connect},
        ),
        Row(
            f"{count} comms × {RAILS} rails: all {count * RAILS} paths live",
            2,
            statistics.median(paths),
            "s",
            note=f"both ends' stats pages; worst of {len(paths)}: {max(paths):.2f} s",
            samples={"seconds": paths},
        ),
    ]
    for end in ("sender", "receiver"):
        samples = {name: [f.kb_per_comm[end] for f in rounds] for name, rounds in taken.items()}
        medians = {name: statistics.median(values) for name, values in samples.items()}
        note = "; ".join(f"{name} messages {value:.0f}" for name, value in medians.items())
        rows.append(
            Row(
                f"{count} comms × {RAILS} rails: memory per comm, {end}",
                256,
                max(medians.values()),
                "KiB",
                note=f"resident, without sockets and the job's buffers: {note}",
                samples=samples,
            )
        )
    return rows
