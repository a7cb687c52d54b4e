"""ptp4l and chronyd beside us in the same hosts of a lab, free-running: what they say of a truth.

All hosts share the kernel's clock, so whatever offset they report is their error. Neither touches
the machine's clock: ptp4l runs with ``free_running 1``, chronyd with ``-x``.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from lab.clocks import chronyd
from lab.clocks.grandmaster import PTP4L
from lab.cluster import Cluster, wait_until
from lab.node import Node

PTP_LOG_INTERVAL = -3
"""Syncs and delay requests eight times a second: eight times ptp4l's default."""
CHRONY_POLL = -4
"""Sixteen requests a second, the most that chrony knows."""
START_S = 30.0
TX_STAMP_MS = 100
"""So long ptp4l waits for the stamp of what it sent. Its default, 1 ms, is less than a shaper's
queue: in a flood it would declare its port faulty, and say nothing at all."""
_OFFSET = re.compile(r"ptp4l\[(\d+\.\d+)\]: master offset\s+(-?\d+) s\d")


def ptp4l_offsets(log: str) -> list[tuple[float, float]]:
    """What ptp4l's client logged: CLOCK_MONOTONIC, s, and its offset, ns. Pure."""
    return [(float(at), float(ns)) for at, ns in _OFFSET.findall(log)]


def led(offsets: Sequence[tuple[float, float]], ahead_s: float, last_s: float) -> float:
    """Where a line through the offsets of the last seconds leads to, ns. Pure.

    Args:
        offsets: s and ns, of three or more moments, in their order.
        ahead_s: from the last of them on.
        last_s: so much of them.
    """
    at, ns = np.array(offsets).T
    recent = at >= at[-1] - last_s
    slope, height = np.polyfit(at[recent] - at[-1], ns[recent], 1)
    return float(height + slope * ahead_s)


class Ptp4l:
    """A grandmaster on the first host, and a client on the second."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes = cluster.nodes[:2]
        self._log = cluster.nodes[1].dir / "ptp4l-client.log"
        self._server: subprocess.Popen[str] | None = None

    def kill_server(self) -> None:
        """The grandmaster is no more.

        Raises:
            RuntimeError: there is none.
        """
        if self._server is None:
            raise RuntimeError("no grandmaster runs")
        self._server.kill()

    def _start(self, node: Node, role: str) -> subprocess.Popen[str]:
        config = node.dir / f"ptp4l-{role}.conf"
        only = "masterOnly" if role == "server" else "slaveOnly"  # as linuxptp 3 has them
        config.write_text(
            f"[global]\n{only} 1\ntime_stamping software\nfree_running 1\n"
            f"network_transport UDPv4\nlogSyncInterval {PTP_LOG_INTERVAL}\n"
            f"logMinDelayReqInterval {PTP_LOG_INTERVAL}\nsummary_interval {PTP_LOG_INTERVAL}\n"
            f"freq_est_interval 0\ntx_timestamp_timeout {TX_STAMP_MS}\n"
            "fault_reset_interval ASAP\n"
            f"uds_address {node.dir}/ptp4l-{role}.sock\n"
        )
        log = (node.dir / f"ptp4l-{role}.log").open("w")
        return node.popen(
            [PTP4L, "-f", str(config), "-i", "rail0", "-m", "-q"], stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def offsets(self) -> list[tuple[float, float]]:
        """All that it reported: `ptp4l_offsets`. One a second, for it may not report oftener."""
        return ptp4l_offsets(self._log.read_text())

    def errors_ns(self, since: int = 0) -> list[float]:
        """Offsets reported, from the ``since``-th on."""
        return [ns for _, ns in self.offsets()[since:]]

    def led_ns(self, ahead_s: float, last_s: float = 15.0) -> float:
        """Where a line through the offsets of the last seconds leads to: the best it could say."""
        return led(self.offsets(), ahead_s, last_s)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Until the block ends."""
        with ExitStack() as stack:
            for node, role in zip(self._nodes, ("server", "client"), strict=True):
                process = self._start(node, role)
                self._server = self._server or process
                stack.callback(process.wait)
                stack.callback(process.terminate)
            wait_until(lambda: len(self.errors_ns()) > 3, START_S, "ptp4l's offsets")
            yield


class Chrony:
    """A server on the first host, and a client on the second."""

    def __init__(self, cluster: Cluster) -> None:
        self._server, self._client = cluster.nodes[:2]
        self._socket = self._home(self._client) / "client.sock"
        self._serving: subprocess.Popen[str] | None = None

    def _home(self, node: Node) -> Path:
        """Chronyd wants a directory of its own for its socket."""
        path = node.dir / "chrony"
        path.mkdir(mode=0o750, exist_ok=True)
        return path

    def _start(self, node: Node, role: str) -> subprocess.Popen[str]:
        home = self._home(node)
        config = home / f"{role}.conf"
        lines = [f"pidfile {home}/{role}.pid", "cmdport 0", f"bindcmdaddress {home}/{role}.sock"]
        if role == "server":
            lines += ["local stratum 1", "allow 10.0.0.0/8", "port 123"]
        else:
            poll = f"minpoll {CHRONY_POLL} maxpoll {CHRONY_POLL}"
            lines += [f"server {self._server.address(0)} {poll} xleave noselect", "port 0"]
        config.write_text("\n".join(lines) + "\n")
        log = (home / f"{role}.log").open("w")
        return chronyd.start(node, config, log)

    def kill_server(self) -> None:
        """The server is no more.

        Raises:
            RuntimeError: there is none.
        """
        if self._serving is None:
            raise RuntimeError("no server runs")
        self._serving.kill()

    def _ask(self, what: str) -> list[str]:
        return chronyd.ask(self._client, self._socket, what)

    def error_ns(self) -> float | None:
        """The offset that its regression says now.

        ``noselect``: else it would take what it says of the clock it believes to have corrected.
        """
        return self.led_ns(0.0)

    def led_ns(self, ahead_s: float) -> float | None:
        """Where its regression leads to in so long."""
        fields = self._ask("sourcestats")
        try:
            led = float(fields[6]) * 1e9 + float(fields[4]) * 1e3 * ahead_s
            return led if int(fields[1]) > 3 else None
        except (IndexError, ValueError):
            return None

    def reached(self) -> bool:
        """Whether any of the last eight requests was answered."""
        fields = self._ask("sources")
        return len(fields) > 5 and fields[5] not in {"", "0"}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Until the block ends."""
        with ExitStack() as stack:
            for node, role in ((self._server, "server"), (self._client, "client")):
                process = self._start(node, role)
                self._serving = self._serving or process
                stack.callback(process.wait)
                stack.callback(process.terminate)
            wait_until(lambda: self.error_ns() is not None, START_S, "chronyd's offset")
            yield


@contextmanager
def load(
    cluster: Cluster, kind: str, wait: Callable[[float], object] = time.sleep
) -> Iterator[None]:
    """Traffic between the first two hosts until the block ends.

    Args:
        cluster: the lab.
        kind: ``idle``, ``udp400``, ``udp800``, ``tcp`` (one way) or ``tcp2`` (both).
        wait: so many seconds; what has to go on meanwhile does it.
    """
    one, other = cluster.nodes[:2]
    ways = {"idle": [], "tcp2": [(one, other), (other, one)]}.get(kind, [(one, other)])
    words = ["-u", "-b", f"{kind[3:]}M", "-l", "1400"] if kind.startswith("udp") else []
    with ExitStack() as stack:
        for number, (source, target) in enumerate(ways):
            port = str(5301 + number)
            address = target.address(0)
            commands = [
                (target, ["iperf3", "-s", "-B", address, "-p", port]),
                (source, ["iperf3", "-c", address, "-p", port, "-t", "600", *words]),
            ]
            for node, command in commands:
                process = node.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                stack.callback(process.wait)
                stack.callback(process.kill)
                wait(0.5)
        yield
