"""The plugin over RDMA beside perftest, in the same guests.

Where the plugin carries TCP, its rows ask for nothing and say so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.plugin.rounds import alternate, beside, ratio
from bench.report import Row
from lab.node import build_dir
from lab.vm.rdma import namespaces
from lab.vm.rdma.lab import GuestLab

SIZES = {"64 KB": 64 << 10, "1 MB": 1 << 20, "8 MB": 8 << 20}
BYTES = 16 << 20
"""That a measurement of bandwidth moves, but at least `LEAST` messages."""
LEAST = 8
TRIPS = 500
SOURCE, TARGET, RAIL = 0, 1, 0
LIMIT_S = 240
RDMA_CARRIES = 50
"""Packets a second on one rail: far above what validations and answers make."""
LARGEST_MTU = 4096
"""Bytes of payload of an RDMA packet, at most."""
ENV = {"FABRIC_VERBS": "1", "NCCL_IB_HCA": "=rxe0", "NCCL_SOCKET_IFNAME": "=rail0"}


class BenchError(RuntimeError):
    """A measurement failed; the text has what the program printed."""


@contextmanager
def two_hosts() -> Iterator[GuestLab]:
    """A lab with the payload of this build."""
    with namespaces.booted("bench-verbs", hosts=2, rails=1) as lab:
        lab.push(build_dir())
        yield lab


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of fabric-perf: its figure, and the transport that carried it."""

    figure: float
    verbs: bool


def sent_packets(lab: GuestLab) -> int:
    """RDMA packets that the source has sent on the rail."""
    words = ["rdma", "-j", "statistic", "show", "link", f"rxe{RAIL}/1"]
    return int(json.loads(lab.run(SOURCE, words).check().out)[0]["sent_pkts"])


def _run(lab: GuestLab, rank: int, *args: str) -> tuple[dict[str, Any], bool]:
    """The end row of ``rank``, and whether verbs carried the job."""
    before = sent_packets(lab)
    job = lab.perf("p2p", *args, hosts=[SOURCE, TARGET], env=ENV, timeout=LIMIT_S)
    results = job.wait()
    for result in results:
        if result.status or result.errors:
            raise BenchError(f"rank {result.rank} failed ({result.status}): {result.errors}")
    end = results[rank].end
    verbs = sent_packets(lab) - before >= max(end["bytes"] // LARGEST_MTU, end["iterations"])
    return end, verbs


def stream(lab: GuestLab, size: int) -> Measured:
    """Mbit/s of messages of ``size`` bytes, every byte verified."""
    count = max(LEAST, BYTES // size)
    words = ["--size", str(size), "--iters", str(count), "--interval-ms", "1000"]
    words += ["--pingpong", "0", "--wait", "block"]
    end, verbs = _run(lab, TARGET, *words)
    return Measured(float(end["algbw_gbps"]) * 1000, verbs)


def half_round_trip(lab: GuestLab) -> Measured:
    """Median of half round trips of 8 bytes, µs."""
    words = ["--size", "8", "--iters", "8", "--pingpong", str(TRIPS), "--wait", "spin"]
    end, verbs = _run(lab, SOURCE, *words)
    return Measured(float(end["latency_us"]["p50"]), verbs)


def row(
    name: str,
    asked: float,
    unit: str,
    taken: Mapping[str, list[Measured]],
    *,
    higher: bool,
) -> Row:
    """The ratio of the rounds' ``fabric`` to the other way's. Pure."""
    (peer,) = [way for way in taken if way != "fabric"]
    samples = {way: [m.figure for m in measured] for way, measured in taken.items()}
    verbs = all(measured.verbs for measured in taken["fabric"])
    return Row(
        name if verbs else f"{name} (the plugin carries TCP)",
        asked if verbs else None,
        ratio(samples["fabric"], samples[peer]),
        "",
        better="higher" if higher else "lower",
        note=beside(samples, unit),
        samples=samples,
    )


def bandwidth(*, quick: bool) -> list[Row]:
    """Messages of 64 KB to 8 MB, beside ``ib_write_bw``."""
    rows = []
    with two_hosts() as lab:
        for label, size in SIZES.items():
            count = max(LEAST, BYTES // size)

            def perftest(size: int = size, count: int = count) -> Measured:
                return Measured(lab.write_bw(SOURCE, TARGET, RAIL, size, count).gbps * 1000, True)

            def fabric(size: int = size) -> Measured:
                return stream(lab, size)

            ways = {"ib_write_bw": perftest, "fabric": fabric}
            taken = alternate(3 if quick else 9, ways)
            name = f"{label} over soft-RoCE, verified, part of ib_write_bw's"
            rows.append(row(name, 0.9, "Mbit/s", taken, higher=True))
    return rows


def latency(*, quick: bool) -> list[Row]:
    """8 bytes, beside ``ib_write_lat``."""
    with two_hosts() as lab:

        def perftest() -> Measured:
            return Measured(lab.write_lat(SOURCE, TARGET, RAIL, 8, TRIPS).typical_us, True)

        ways = {"ib_write_lat": perftest, "fabric": lambda: half_round_trip(lab)}
        taken = alternate(3 if quick else 9, ways)
    name = "8 B over soft-RoCE, half round trip, part of ib_write_lat's"
    return [row(name, 1.3, "µs", taken, higher=False)]
