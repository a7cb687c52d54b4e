"""Count datagrams between two hosts: what a fault really does to packets."""

from __future__ import annotations

import contextlib
import socket
import time

from lab.network import netns
from lab.node import Node

SO_RCVBUFFORCE = 33
BUFFER = 8 << 20
TICK_S = 0.05
QUIET_TICKS = 6
LONGEST_S = 10.0


def udp_socket(node: Node, rail: int, family: int = 4, port: int = 0) -> socket.socket:
    """A UDP socket inside ``node``, bound to the address of ``rail``."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        made.bind((node.address(rail, family), port))
        return made

    return netns.run_in(node.ns, make)


def delivered(
    sender: Node,
    receiver: Node,
    count: int,
    *,
    rail: int = 0,
    to_rail: int | None = None,
    family: int = 4,
    interval_s: float = 0.0,
    flows: int = 1,
) -> int:
    """How many of ``count`` datagrams arrive, sent from ``rail`` to ``to_rail`` (default the same).

    They are spread over ``flows`` source ports. Ends when nothing came for 0.3 s, of which a time
    in which the machine did not run us in time is no part.
    """
    target = udp_socket(receiver, rail if to_rail is None else to_rail, family)
    sources = [udp_socket(sender, rail, family) for _ in range(flows)]
    try:
        address = target.getsockname()
        for number in range(count):
            # An unreachable network is a datagram that does not arrive.
            with contextlib.suppress(OSError):
                sources[number % flows].sendto(number.to_bytes(8, "big"), address)
            if interval_s:
                time.sleep(interval_s)
            elif number % 64 == 63:
                time.sleep(0.001)  # stay far below the shaper's queue
        target.settimeout(TICK_S)
        seen: set[bytes] = set()
        quiet, last = 0, time.monotonic()
        while len(seen) < count and quiet < QUIET_TICKS:
            asked = time.monotonic()
            try:
                seen.add(target.recv(64))
                quiet, last = 0, asked
            except TimeoutError:
                now = time.monotonic()
                if now - asked < 1.5 * TICK_S or now - last > LONGEST_S:
                    quiet += 1
        return len(seen)
    finally:
        target.close()
        for source in sources:
            source.close()
