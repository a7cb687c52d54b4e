"""Two hosts, what goes between them by one means or another, and what it costs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from bench.plugin import iperf
from lab.cluster import Cluster
from lab.services.perf import RankResult, pinned

CORES = [0, 1]
"""The sender has one core and the receiver the other, whatever they run: the same for all."""
LIMIT_S = 60.0
BATCH_S = 0.2
"""fabric-perf pauses between the batches of a stream, which no peer does: seldom enough."""
PINGPONG_PORT = 29500
DIRECT = ("10.99.0", "10.99.1")
"""The first three numbers of the addresses of the direct wires; the host's comes last."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a stream of messages is like."""

    size: int
    """Bytes of a message."""
    in_flight: int
    memory: int
    """Bytes of each of two buffers that messages take turns in, at either end."""


FIFO = Shape(1 << 20, 4, 4 << 20)
"""NCCL's of one channel: NCCL_BUFFSIZE is 4 MiB in 8 steps, and a ring's slice in the protocol
Simple is two of them (NCCL's src/include/collectives.h, ALLREDUCE_SLICESTEPS)."""
WIDE = Shape(4 << 20, 8, 32 << 20)
"""Through more memory than the cores have cache."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream: goodput in Gbit/s, CPU seconds of both ends together per 10⁹ bytes."""

    gbps: float
    cpu_s_per_gb: float


@dataclass(frozen=True, slots=True)
class Small:
    """8 bytes: half round trips in µs, and messages a second (0 where it was not measured)."""

    p50: float
    p99: float
    rate: float = 0.0


def wire_directly(cluster: Cluster) -> None:
    """Two veth pairs between h0 and h1 without a switch or a shaper: ``direct0``, ``direct1``."""
    first, second = cluster.nodes
    for number, net in enumerate(DIRECT):
        name = f"direct{number}"
        # The ends must differ in their index, see docs/design/lab.md.
        add = (
            f"ip link add {name} index {3000 + number} type veth peer name {name} netns {second.ns}"
        )
        first.run(add.split())
        for node in (first, second):
            node.run(["ip", "address", "add", f"{net}.{node.index + 1}/24", "dev", name])
            node.run(["ip", "link", "set", name, "up"])


class Pair:
    """Hosts 0 and 1 of a lab over the devices ``devices`` (an NCCL_SOCKET_IFNAME)."""

    def __init__(self, cluster: Cluster, devices: str, address: str, *, gbps: float = 20) -> None:
        self.cluster = cluster
        self.devices = devices
        self.address = address
        """The receiver's, for those that take an address."""
        self.gbps = gbps
        """About what a stream will do."""

    def iperf(self, seconds: int) -> Stream:
        """One TCP stream of iperf3."""
        sender, receiver = self.cluster.nodes[:2]
        got = iperf.run(sender, receiver, self.address, seconds, CORES)
        return Stream(got.gbps, got.cpu_s / (got.bytes / 1e9))

    def stream(
        self,
        seconds: int,
        *,
        wait: str,
        env: Mapping[str, str] | None = None,
        plugin: str = "",
        shape: Shape = WIDE,
    ) -> Stream:
        """One comm of a plugin (ours by default), not verified."""
        batch = max(8, round(self.gbps * 1e9 / 8 * BATCH_S / shape.size))
        sender, receiver = self._perf(
            *("--size", str(shape.size), "--in-flight", str(shape.in_flight)),
            *("--memory", str(shape.memory), "--batch", str(batch)),
            *("--duration", str(seconds), "--wait", wait, "--pingpong", "0"),
            env=env,
            plugin=plugin,
        )
        moved = float(receiver.end["bytes"])
        return Stream(
            moved * 8e-9 / float(receiver.end["seconds"]),
            (float(sender.end["cpu_seconds"]) + float(receiver.end["cpu_seconds"])) / (moved / 1e9),
        )

    def small(
        self, trips: int, messages: int, *, env: Mapping[str, str] | None = None, plugin: str = ""
    ) -> Small:
        """8 bytes through a plugin, spinning: ping-pong, then a stream of them."""
        sender, _ = self._perf(
            *("--size", "8", "--iters", str(messages), "--wait", "spin"),
            *("--pingpong", str(trips)),
            env=env,
            plugin=plugin,
        )
        latency = sender.end["latency_us"]
        rate = float(sender.end["iterations"]) / float(sender.end["seconds"])
        return Small(float(latency["p50"]), float(latency["p99"]), rate)

    def bare(self, trips: int) -> Small:
        """8 bytes over two bare TCP connections, spinning: ``tcp-pingpong``.

        Raises:
            RuntimeError: it failed.
        """
        program = str(self.cluster.binaries.perf.with_name("tcp-pingpong"))
        first, second = self.cluster.nodes[:2]
        common = [program, self.address, str(PINGPONG_PORT)]
        work = ["8", str(trips)]
        listener = second.popen(
            [*pinned(CORES, 1), *common, "listen", *work],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            done = first.run(
                [*pinned(CORES, 0), *common, "dial", *work], check=False, timeout=LIMIT_S
            )
            listener.wait(10)
        finally:
            if listener.poll() is None:
                listener.kill()
            said = listener.communicate()[1]
        if done.returncode or listener.returncode:
            raise RuntimeError(f"tcp-pingpong: {done.stderr} {said}")
        latency = json.loads(done.stdout)["latency_us"]
        return Small(float(latency["p50"]), float(latency["p99"]))

    def _perf(
        self, *args: str, env: Mapping[str, str] | None, plugin: str
    ) -> tuple[RankResult, RankResult]:
        base = self.cluster.binaries.plugin
        perf = self.cluster.start_perf(
            "p2p",
            *args,
            *("--channels", "1", "--device", "0", "--verify", "none", "--interval-ms", "1000"),
            nodes=self.cluster.nodes[:2],
            env={"NCCL_SOCKET_IFNAME": self.devices} | dict(env or {}),
            plugin=base.with_name(plugin) if plugin else None,
            cores=CORES,
        )
        results = perf.wait(LIMIT_S)
        for result in results:
            if result.status or result.errors:
                log = perf.log(result.rank).read_text()[-2000:]
                raise RuntimeError(f"rank {result.rank} failed ({result.status}): {log}")
        return results[0], results[1]
