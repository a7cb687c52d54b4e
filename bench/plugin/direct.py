"""What the plugin costs where nothing but two cores limits it: a bare veth pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.plugin.pair import DIRECT, FIFO, WIDE, Pair, Small, Stream, wire_directly
from bench.plugin.quiet import Quiet
from bench.plugin.rounds import alternate, beside, difference, interval, ratio
from bench.report import Row
from lab.cluster import Cluster
from lab.topology import Topology

PLAIN = "libnccl-net-plain.so"
ON: Mapping[str, str] = {"FABRIC_FAILOVER": "1", "FABRIC_STRIPE": "0"}
OFF: Mapping[str, str] = {"FABRIC_FAILOVER": "0", "FABRIC_STRIPE": "0"}


@contextmanager
def direct_pair(name: str) -> Iterator[Pair]:
    """Two hosts and two veth pairs; comms are at home on the first, the second is their backup."""
    with Cluster(topology=Topology(name, hosts=2, rails=1, spines=0, rate_bps=0)) as cluster:
        wire_directly(cluster)
        yield Pair(cluster, "=direct0,direct1", f"{DIRECT[0]}.2")


def bulk(*, quick: bool) -> list[Row]:
    """Large messages: iperf3, one socket without reliability, ours with and without failover.

    In as much memory as NCCL's buffers have, and through more than the cache has. iperf3 always
    sends one buffer, of 128 KiB.
    """
    return bulk_measured(5 if quick else 31, 1)


def bulk_measured(rounds: int, seconds: int) -> list[Row]:
    """The same, so many rounds of so many seconds each way."""
    quiet = Quiet()
    with direct_pair("bench-bulk") as pair:
        taken = alternate(
            rounds,
            {
                "iperf3": lambda: pair.iperf(seconds),
                "plain": lambda: pair.stream(seconds, wait="spin", plugin=PLAIN, shape=FIFO),
                "fabric": lambda: pair.stream(seconds, wait="spin", env=ON, shape=FIFO),
                "failover off": lambda: pair.stream(seconds, wait="spin", env=OFF, shape=FIFO),
                "blocking": lambda: pair.stream(seconds, wait="block", env=ON, shape=FIFO),
                "plain, wide": lambda: pair.stream(seconds, wait="spin", plugin=PLAIN, shape=WIDE),
                "fabric, wide": lambda: pair.stream(seconds, wait="spin", env=ON, shape=WIDE),
            },
            quiet.measure,
        )
    return quiet.noted(bulk_rows(taken))


def bulk_rows(taken: Mapping[str, list[Stream]]) -> list[Row]:
    """The rows of `bulk` from its rounds. Pure."""
    gbps = {name: [s.gbps for s in streams] for name, streams in taken.items()}
    cpu = {name: [s.cpu_s_per_gb for s in streams] for name, streams in taken.items()}

    def rate_row(name: str, asked: float, ours: str, theirs: str) -> Row:
        samples = {ours: gbps[ours], theirs: gbps[theirs]}
        got = ratio(gbps[ours], gbps[theirs])
        low, high = interval([a / b for a, b in zip(gbps[ours], gbps[theirs], strict=True)])
        # On cores that others share one stream has twice the rate of the next.
        note = f"90 % sure: {low:.3g} to {high:.3g}; {beside(samples, 'Gbit/s')}"
        return Row(name, asked, got, "", better="higher", note=note, samples=samples)

    costs = {"blocking": cpu["blocking"], "iperf3": cpu["iperf3"]}
    return [
        rate_row("unshaped veth, large messages, part of iperf3's", 0.9, "fabric", "iperf3"),
        rate_row("the same, part of one plain socket's", 0.98, "fabric", "plain"),
        rate_row("resilience: throughput, part of that without", 0.99, "fabric", "failover off"),
        rate_row("through 64 MiB, part of one plain socket's", 0.98, "fabric, wide", "plain, wide"),
        rate_row("through 64 MiB, part of iperf3's through 128 KiB", 0.9, "fabric, wide", "iperf3"),
        Row(
            "CPU per byte, blocking, unshaped, part of iperf3's",
            1.15,
            ratio(costs["blocking"], costs["iperf3"]),
            "",
            note=beside(costs, "s/GB, both ends"),
            samples=costs,
        ),
    ]


def pingpong(*, quick: bool) -> list[Row]:
    """8 bytes: two bare connections, and ours with and without failover; all of them spin."""
    return pingpong_measured(*((3, 10_000, 20_000) if quick else (11, 20_000, 50_000)))


def pingpong_measured(rounds: int, trips: int, messages: int) -> list[Row]:
    """The same, so many rounds, round trips in each, and messages of the stream."""
    quiet = Quiet()
    with direct_pair("bench-pingpong") as pair:
        taken = alternate(
            rounds,
            {
                "bare TCP": lambda: pair.bare(trips),
                "fabric": lambda: pair.small(trips, messages, env=ON),
                "failover off": lambda: pair.small(trips, messages, env=OFF),
            },
            quiet.measure,
        )
    return quiet.noted(pingpong_rows(taken))


def pingpong_rows(taken: Mapping[str, list[Small]]) -> list[Row]:
    """The rows of `pingpong` from its rounds. Pure."""
    rows = []
    p50 = {name: [s.p50 for s in small] for name, small in taken.items()}
    p99 = {name: [s.p99 for s in small] for name, small in taken.items()}
    for what, values in (("p50", p50), ("p99", p99)):
        samples = {name: values[name] for name in ("fabric", "bare TCP")}
        rows.append(
            Row(
                f"8 B ping-pong {what}, part of bare TCP's",
                1.25,
                ratio(values["fabric"], values["bare TCP"]),
                "",
                note=beside(samples, "µs, half round trip"),
                samples=samples,
            )
        )
    pair = ("fabric", "failover off")
    halves = {name: p50[name] for name in pair}
    rows.append(
        Row(
            "resilience: 8 B half round trip, more than without",
            1.0,
            difference(*(halves[name] for name in pair)),
            "µs",
            note=beside(halves, "µs"),
            samples=halves,
        )
    )
    spacing = {name: [1e6 / s.rate for s in taken[name]] for name in pair}
    rows.append(
        Row(
            "resilience: 8 B stream, time per message, more than without",
            1.0,
            difference(*(spacing[name] for name in pair)),
            "µs",
            note=beside(spacing, "µs"),
            samples=spacing,
        )
    )
    return rows
