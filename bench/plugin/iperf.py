"""iperf3 between two hosts of a lab."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from lab.node import Node
from lab.services.perf import pinned

PORT = 5201


class IperfError(RuntimeError):
    """iperf3 failed, or printed what is no result; the text says what."""


@dataclass(frozen=True, slots=True)
class IperfResult:
    """What the receiving end got."""

    bytes: float
    seconds: float
    cpu_s: float
    """User and system time of both ends during the test."""

    @property
    def gbps(self) -> float:
        """Goodput, Gbit/s (10⁹ bits)."""
        return self.bytes * 8e-9 / self.seconds


def parse(text: str) -> IperfResult:
    """The JSON that ``iperf3 -c … -J`` prints after a TCP test.

    Raises:
        IperfError: it is none, tells of an error, or nothing was received.
    """
    try:
        body: Any = json.loads(text)
    except ValueError as error:
        raise IperfError(f"iperf3 printed no JSON: {error}") from None
    if not isinstance(body, dict):
        raise IperfError("iperf3 printed no JSON object")
    if "error" in body:
        raise IperfError(f"iperf3: {body['error']}")
    try:
        received = body["end"]["sum_received"]
        seconds = float(received["seconds"])
        used = body["end"]["cpu_utilization_percent"]
        percent = float(used["host_total"]) + float(used["remote_total"])
        result = IperfResult(float(received["bytes"]), seconds, percent / 100 * seconds)
    except (KeyError, TypeError, ValueError) as error:
        raise IperfError(f"iperf3's JSON lacks received bytes or CPU: {error!r}") from None
    if result.bytes <= 0 or result.seconds <= 0:
        raise IperfError("iperf3 received nothing")
    return result


def run(sender: Node, receiver: Node, address: str, seconds: int, cores: list[int]) -> IperfResult:
    """One TCP stream to ``address`` of the receiver; both ends have ended when it returns.

    iperf3 knows whole seconds only.

    Raises:
        IperfError: it failed.
    """
    server = receiver.popen(
        [*pinned(cores, 1), "iperf3", "-s", "-1", "-B", address, "-p", str(PORT)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _listening(receiver, address)
        client = [*pinned(cores, 0), "iperf3", "-c", address, "-p", str(PORT), "-J"]
        done = sender.run([*client, "-t", str(seconds)], check=False, timeout=seconds + 30)
        result = parse(done.stdout)
        server.wait(10)
        return result
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def _listening(node: Node, address: str) -> None:
    deadline = time.monotonic() + 10
    while address not in node.run(["ss", "-Hltn", f"sport = :{PORT}"]).stdout:
        if time.monotonic() > deadline:
            raise IperfError(f"no iperf3 listens at {address}:{PORT}")
        time.sleep(0.02)
