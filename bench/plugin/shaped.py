"""Where a link is the limit: one rail of a given rate, and one comm over four of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.plugin.pair import Pair, Stream
from bench.plugin.quiet import Quiet
from bench.plugin.rounds import alternate, beside, ratio
from bench.report import Row
from lab.cluster import Cluster
from lab.topology import Topology, parse_rate

LINES = ("1gbit", "10gbit")
STRIPE_RAILS = 4
STRIPE_RATE = "1gbit"
STRIPED = {"FABRIC_STRIPE": "1"}


def _topology(name: str, rails: int, rate: str) -> Topology:
    rate_bps = parse_rate(rate)
    # What passes in 0.2 ms: with less tbf cannot keep 10 Gbit/s, its timer being no better.
    burst = max(64 << 10, round(rate_bps / 8 * 200e-6))
    return Topology(name, hosts=2, rails=rails, spines=0, rate_bps=rate_bps, burst_bytes=burst)


def line(*, quick: bool) -> list[Row]:
    """One shaped rail through a bridge, blocking: goodput and CPU beside iperf3's."""
    return line_measured(LINES, *((3, 2) if quick else (7, 3)))


def line_measured(rates: Sequence[str], rounds: int, seconds: int) -> list[Row]:
    """The same, at these rates, so many rounds of so many seconds each way."""
    rows: list[Row] = []
    for rate in rates:
        quiet = Quiet()
        with Cluster(topology=_topology("bench-line", 1, rate)) as cluster:
            gbps = parse_rate(rate) / 1e9
            pair = Pair(cluster, "=rail0", cluster.nodes[1].address(0), gbps=gbps)
            taken = alternate(
                rounds,
                {
                    "iperf3": lambda pair=pair: pair.iperf(seconds),  # type: ignore[misc]
                    "fabric": lambda pair=pair: pair.stream(seconds, wait="block"),  # type: ignore[misc]
                },
                quiet.measure,
            )
        rows += quiet.noted(line_rows(rate.replace("gbit", " Gbit/s"), taken))
    return rows


def line_rows(rate: str, taken: Mapping[str, list[Stream]]) -> list[Row]:
    """Goodput and CPU at one rate. Pure."""
    ways = ("fabric", "iperf3")
    gbps = {way: [s.gbps for s in taken[way]] for way in ways}
    cpu = {way: [s.cpu_s_per_gb for s in taken[way]] for way in ways}
    return [
        Row(
            f"one rail of {rate}, goodput, part of iperf3's",
            0.97,
            ratio(gbps["fabric"], gbps["iperf3"]),
            "",
            better="higher",
            note=beside(gbps, "Gbit/s"),
            samples=gbps,
        ),
        Row(
            f"CPU per byte, blocking, at {rate}, part of iperf3's",
            1.15,
            ratio(cpu["fabric"], cpu["iperf3"]),
            "",
            note=beside(cpu, "s/GB, both ends"),
            samples=cpu,
        ),
    ]


def stripe(*, quick: bool) -> list[Row]:
    """One comm over four shaped rails, beside one over one of them."""
    return stripe_measured(STRIPE_RATE, *((3, 2) if quick else (7, 3)))


def stripe_measured(rate: str, rounds: int, seconds: int) -> list[Row]:
    """The same, at this rate, so many rounds of so many seconds each way."""
    quiet = Quiet()
    with Cluster(topology=_topology("bench-stripe", STRIPE_RAILS, rate)) as cluster:
        address = cluster.nodes[1].address(0)
        gbps_each = parse_rate(rate) / 1e9
        one = Pair(cluster, "=rail0", address, gbps=gbps_each)
        all_of_them = Pair(cluster, "rail", address, gbps=gbps_each * STRIPE_RAILS)
        taken = alternate(
            rounds,
            {
                "one rail": lambda: one.stream(seconds, wait="block", env=STRIPED),
                "four rails": lambda: all_of_them.stream(seconds, wait="block", env=STRIPED),
            },
            quiet.measure,
        )
    gbps = {way: [s.gbps for s in streams] for way, streams in taken.items()}
    return quiet.noted(
        [
            Row(
                f"one comm striped over 4 rails of {rate.replace('gbit', ' Gbit/s')}, "
                "part of 4 × one rail",
                0.95,
                ratio(gbps["four rails"], gbps["one rail"]) / STRIPE_RAILS,
                "",
                better="higher",
                note=beside(gbps, "Gbit/s"),
                samples=gbps,
            )
        ]
    )
