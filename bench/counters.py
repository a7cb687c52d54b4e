"""What a sweep over all counters of eight links costs the daemon, each second.

System calls are real (netlink and ioctl on veth devices in a namespace, sysfs files on tmpfs), the
answers are those of a host with eight ConnectX ports: a stand-in replaces what veth said by replies
of full size, packed here. So it is all the daemon itself does; what a real driver or its firmware
takes to answer is not in it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from pyroute2 import netns as pr_netns

from bench.report import Row
from lab.inputs import kernel_replies as kernel
from lab.network import netns
from telemetry.counters import ethdriver, sweep
from telemetry.counters.messages import (
    ETHTOOL_MSG_FEC_GET,
    ETHTOOL_MSG_PAUSE_GET,
    ETHTOOL_MSG_STATS_GET,
)
from telemetry.counters.nlattr import Message
from telemetry.counters.nlsocket import NETLINK_GENERIC, NETLINK_ROUTE, Netlink
from telemetry.counters.rtnl import RTM_GETSTATS
from telemetry.counters.tables.ethtool import MLX5_CORE
from telemetry.counters.tables.ib_port import IB_PORT
from telemetry.counters.tables.rdma import MLX5

LINKS = 8
FIRST = 100
"""ifindex of the first veth."""
STATISTICS = 1600
"""``ethtool -S`` of a mlx5 with 32 channels."""
S = 10**9


def _replies(count: int) -> dict[int, bytes]:
    """What a device with everything says to each ethtool command; all counters at `count`."""
    groups = {group: dict.fromkeys(range(n), count) for group, n in enumerate((1, 22, 3, 4))}
    bins = [kernel.fec_bin(n, n, count, *[count] * 8) for n in range(16)]
    lanes = [count] * 9
    return {
        ETHTOOL_MSG_STATS_GET: kernel.standard_reply(groups, buckets=10),
        ETHTOOL_MSG_FEC_GET: kernel.fec_reply(lanes, lanes, lanes, *bins),
        ETHTOOL_MSG_PAUSE_GET: kernel.pause_reply(count, count),
    }


def _rdma_reply(index: int, count: int) -> bytes:
    names = [row.native for row in MLX5.rows] + [f"other_{n}" for n in range(12)]
    return kernel.rdma_reply(dict.fromkeys(names, count), f"mlx5_{index}\0".encode(), index)


class _Asked(Netlink):
    """Asks the kernel for real, then answers as a ConnectX would."""

    def prepare(self, count: int) -> None:
        """Pack the replies, outside what is measured."""
        self._replies = {
            command: memoryview(b"\0\0\0\0" + reply) for command, reply in _replies(count).items()
        }

    def generic(self, family: str, payload: bytes) -> list[Message]:
        with contextlib.suppress(OSError):  # veth has no such thing
            super().generic(family, payload)
        return [Message(0, 0, 0, self._replies[payload[0]])]


class _Rdma(Netlink):
    """No RDMA in this kernel: a request of rtnetlink stands for the round trip."""

    def prepare(self, count: int) -> None:
        """Pack the replies, outside what is measured."""
        self._replies = [memoryview(_rdma_reply(n, count)) for n in range(LINKS)]

    def ask(
        self, kind: int, payload: bytes, *, dump: bool = False, ack: bool = False
    ) -> list[Message]:
        del ack
        if dump:
            return [Message(kind, 0, 0, reply) for reply in self._replies]
        (index,) = struct.unpack_from("=I", payload, 4)
        super().ask(RTM_GETSTATS, struct.pack("=BBHII", 0, 0, 0, FIRST + index, 1))
        return [Message(kind, 0, 0, self._replies[index])]


class _Ioctl(ethdriver.Ioctl):
    """The ioctls of a mlx5 with many channels, after the real ones of a veth."""

    def prepare(self, count: int) -> None:
        """Pack the values, outside what is measured."""
        self._values = kernel.gstats([count] * STATISTICS)
        known = [row.native.replace("[i]", "3") for row in MLX5_CORE.rows]
        names = known + [f"rx{n}_packets" for n in range(STATISTICS - len(known))]
        self._names = kernel.gstrings(names)

    def driver(self, netdev: str) -> str:
        super().driver(netdev)
        return "mlx5_core"

    def count(self, netdev: str) -> int:
        super().count(netdev)
        return STATISTICS

    def ask(self, netdev: str, request: bytes) -> None:
        super().ask(netdev, request)
        (command,) = struct.unpack_from("=I", request)
        if command == ethdriver.GSTRINGS:
            self.buffer[:12] = struct.pack("=III", command, 1, STATISTICS)
            self.buffer[12 : 12 + len(self._names)] = self._names
        elif command == ethdriver.GSTATS:
            self.buffer[:8] = struct.pack("=II", command, STATISTICS)
            self.buffer[8 : 8 + len(self._values)] = self._values


def _port(sysfs: Path, device: str) -> None:
    folder = sysfs / device / "ports" / "1" / "counters"
    folder.mkdir(parents=True)
    for row in IB_PORT.rows:
        (folder / row.native).write_text("3\n")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


def _measure(sysfs: Path, rounds: int) -> tuple[list[float], int, int]:
    sockets = sweep.Sockets()
    generic, rdma, ioctl = _Asked(NETLINK_GENERIC), _Rdma(NETLINK_ROUTE), _Ioctl()
    sockets.generic, sockets.rdma, sockets.ioctl = generic, rdma, ioctl
    links = {
        f"v{n}": sweep.link(f"v{n}", (f"mlx5_{n}", 1), sockets, sysfs=sysfs) for n in range(LINKS)
    }
    opened = sweep.Sweep(links, sockets)
    now = time.monotonic_ns()
    readings = {}
    out = []
    for number in range(rounds + 1):
        for stand_in in (generic, rdma, ioctl):
            stand_in.prepare(number)
        now += S
        before = _cpu_s()
        readings = opened.read(now)
        out.append(_cpu_s() - before)
    opened.close()
    reading = readings["v0"]
    off = [status for status in reading.statuses if not status.on]
    if off:
        raise RuntimeError(f"a source did not answer: {off}")
    return out[1:], len(reading.steps), sum(len(update.steps) for update in reading.updates)


def run(*, quick: bool) -> list[Row]:
    """CPU of one sweep each second, as a part of one core."""
    rounds = 200 if quick else 1000
    ns = f"bench-counters-{os.getpid()}"
    pr_netns.create(ns)
    try:
        for n in range(LINKS):
            argv = ["ip", "-n", ns, "link", "add", f"v{n}", "index", str(FIRST + n), "type", "veth"]
            subprocess.run([*argv, "peer", "name", f"w{n}"], check=True)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            for n in range(LINKS):
                _port(Path(folder), f"mlx5_{n}")
            gc.collect()
            cost, merged, all_of = netns.run_in(ns, lambda: _measure(Path(folder), rounds))
    finally:
        pr_netns.remove(ns)
    mean = sum(cost) / len(cost)
    note = f"{LINKS} links, {all_of} counters each of which {merged} canonical; {rounds} sweeps"
    return [
        Row("sweep of 8 links each second, CPU", 1.0, mean * 100, "% of a core", note=note),
        Row(
            "one sweep, CPU",
            None,
            mean * 1e3,
            "ms",
            note="without what a real driver or firmware takes",
            samples={"sweep_ms": [round(each * 1e3, 3) for each in cost[:200]]},
        ),
    ]
