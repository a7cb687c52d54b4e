"""A real ptp4l as grandmaster on a host of a lab. It runs free and touches no clock.

All hosts share the kernel's clock, and ptp4l stamps in software: what it gives is CLOCK_REALTIME.
"""

from __future__ import annotations

import subprocess
from typing import Any

from lab.cluster import wait_until
from lab.node import REPO, Node

UNPACKED = REPO / "build" / "unpacked"
PTP4L = str(UNPACKED / "usr/sbin/ptp4l")
PMC = str(UNPACKED / "usr/sbin/pmc")
"""``./run`` puts them there: they are not installed."""
UTC_OFFSET_S = 37
MOST_AHEAD_S = 2.0
ANSWER_S = 15.0


class Grandmaster:
    """Serves whoever asks for unicast, on one interface of a host."""

    def __init__(self, node: Node, *, netdev: str = "rail0", transport: str = "UDPv4") -> None:
        self._node, self._netdev, self._transport = node, netdev, transport
        self._socket = node.dir / "grandmaster.sock"
        self.log = node.dir / "grandmaster.log"
        self.process: subprocess.Popen[Any] | None = None

    def start(self, *, priority: int = 128, ahead_s: float = 0.0) -> None:
        """Start it.

        Args:
            priority: priority1; the smaller, the better.
            ahead_s: so much later than the machine's clock its time is, at most 2 s: it takes all
                its stamps as being late by that.
        """
        shift = round(min(MOST_AHEAD_S, ahead_s) * 1e9)
        config = self._node.dir / "grandmaster.conf"
        config.write_text(
            "[global]\nmasterOnly 1\ntime_stamping software\nfree_running 1\n"
            f"network_transport {self._transport}\nunicast_listen 1\n"
            "inhibit_multicast_service 1\n"
            f"priority1 {priority}\negressLatency {shift}\ningressLatency {-shift}\n"
            f"uds_address {self._socket}\n"
        )
        with self.log.open("a") as log:
            self.process = self._node.popen(
                [PTP4L, "-f", str(config), "-i", self._netdev, "-m", "-q"], stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def settings(
        self, *, clock_class: int = 6, accuracy: int = 0x21, utc_offset_s: int = UTC_OFFSET_S,
        tai: bool = True,
    ) -> None:  # fmt: skip
        """Have it say this of itself: left alone it says that its time is no TAI.

        Raises:
            TimeoutError: it does not answer.
        """
        on = int(tai)
        words = [
            PMC, "-u", "-b", "0", "-s", str(self._socket),
            f"SET GRANDMASTER_SETTINGS_NP clockClass {clock_class} clockAccuracy {accuracy:#x} "
            f"offsetScaledLogVariance 0x4e5d currentUtcOffset {utc_offset_s} leap61 0 leap59 0 "
            f"currentUtcOffsetValid {on} ptpTimescale {on} timeTraceable {on} "
            f"frequencyTraceable {on} timeSource 0x20",
        ]  # fmt: skip
        # pmc ends well also when nobody answers: ptp4l may have just begun.
        wait_until(lambda: "RESPONSE" in self._node.run(words).stdout, ANSWER_S, "pmc's answer")

    def kill(self) -> None:
        """As a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
