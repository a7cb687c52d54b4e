"""FRR's bfdd at its fastest between the hosts of a lab: the peer of the black hole rows.

bfdd runs in the hosts' own namespaces beside zebra, which tells it the interfaces, at the priority
of Debian's frr.service. One session for each rail between two hosts, 10 ms × 3 both ways: it
refuses a shorter interval. When a session goes down is what bfdd's own log says, to the µs.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from lab.cluster import Cluster, wait_until
from lab.node import Node

FRR = Path("/usr/lib/frr")
INTERVAL_MS, MULTIPLIER = 10, 3
NICE = "-5"
"""As in Debian's frr.service."""
START_S = 15.0
_CHANGE = re.compile(
    r"^(?P<time>\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}) BFD:.* state-change: "
    r"\[.*ifname:(?P<netdev>\S+)\] \S+ -> (?P<state>\S+)"
)


def configuration(node: Node, peer: Node, rails: int, log: Path) -> str:
    """bfdd.conf of a host with one session for each rail."""
    lines = [
        f"log file {log} debugging", "log timestamp precision 6", "debug bfd peer", "bfd",
        " profile fastest", f"  receive-interval {INTERVAL_MS}",
        f"  transmit-interval {INTERVAL_MS}", f"  detect-multiplier {MULTIPLIER}", " exit",
    ]  # fmt: skip
    for rail in range(rails):
        ends = f"{peer.address(rail)} local-address {node.address(rail)} interface rail{rail}"
        lines += [f" peer {ends}", "  profile fastest", "  no shutdown", " exit"]
    return "\n".join([*lines, "exit", ""])


def changes(text: str, wall_minus_mono_ns: int) -> list[tuple[int, str, str]]:
    """(CLOCK_MONOTONIC ns, netdev, new state) of each change in bfdd's log. Pure."""
    found = []
    for line in text.splitlines():
        if match := _CHANGE.match(line):
            at = datetime.strptime(match["time"], "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC)
            wall_ns = int(at.timestamp()) * 10**9 + at.microsecond * 1000
            found.append((wall_ns - wall_minus_mono_ns, match["netdev"], match["state"]))
    return found


class Bfd:
    """bfdd of all hosts, in pairs: 0 and 1, 2 and 3, and so on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._logs = {node.name: node.dir / "frr" / "bfdd.log" for node in cluster.nodes}
        self._wall_minus_mono = time.time_ns() - time.monotonic_ns()

    def start(self) -> None:
        """Start everything; returns when all sessions are up.

        Raises:
            TimeoutError: they do not come up.
        """
        rails = self._cluster.topology.rails
        for node in self._cluster.nodes:
            self._start(node, self._cluster.nodes[node.index ^ 1], rails)
        wait_until(
            lambda: all(
                self.up(f"{node.name}:rail{rail}")
                for node in self._cluster.nodes
                for rail in range(rails)
            ),
            START_S,
            "all BFD sessions up",
        )

    def _start(self, node: Node, peer: Node, rails: int) -> None:
        home = node.dir / "frr"
        home.mkdir()
        (home / "zebra.conf").touch()
        (home / "bfdd.conf").write_text(configuration(node, peer, rails, self._logs[node.name]))
        for path in (home, *home.iterdir()):
            shutil.chown(path, "frr", "frr")
        control = ["--bfdctl", str(home / "bfdd.ctl")]
        for name, more in (("zebra", list[str]()), ("bfdd", control)):
            node.popen(
                [
                    *("nice", "-n", NICE, str(FRR / name), "--vty_socket", str(home)),
                    *("-z", str(home / "zserv.api"), "-A", "127.0.0.1", "-P", "0"),
                    *("-f", str(home / f"{name}.conf"), "-i", str(home / f"{name}.pid"), *more),
                ],
                env={"TZ": "UTC"},
                stdout=(home / f"{name}.out").open("w"),
                stderr=(home / f"{name}.err").open("w"),
            )
            if name == "zebra":
                wait_until(lambda: (home / "zserv.api").exists(), START_S, "zebra")

    def _changes(self, host: str) -> list[tuple[int, str, str]]:
        log = self._logs[host]
        return changes(log.read_text(), self._wall_minus_mono) if log.exists() else []

    def up(self, target: str) -> bool:
        """Whether the session of a rail (``h1:rail2``) is up now."""
        host, netdev = target.split(":")
        return next((s for _, d, s in reversed(self._changes(host)) if d == netdev), "") == "up"

    def took_ms(self, target: str, began_ns: int, until_ns: int) -> float | None:
        """From a moment until the session of a rail went down; None: not by ``until_ns``."""
        host, netdev = target.split(":")
        for at, device, state in self._changes(host):
            if device == netdev and state == "down" and began_ns <= at < until_ns:
                return (at - began_ns) / 1e6
        return None


@contextmanager
def bfd(cluster: Cluster) -> Iterator[Bfd]:
    """Sessions between the hosts of a lab, up; they end with the lab."""
    sessions = Bfd(cluster)
    sessions.start()
    yield sessions
