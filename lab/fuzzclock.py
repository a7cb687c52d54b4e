"""Inputs for the page on which a clock service asks for source ports."""

from __future__ import annotations

import random

from clocksync.page import latch, ports
from lab.fuzzbytes import Target, damaged

_ASKED = {ports.Ends("10.0.0.1", "10.0.0.2", 9200, 7): 61001,
          ports.Ends("fd00::1", "fd00::2", 9200, 8): 61002}  # fmt: skip


def clock_ports() -> Target:
    """Records of source ports; half of the damaged ones are sealed again."""
    whole = ports.encode(_ASKED)

    def parse(data: bytes) -> None:
        found = ports.decode(data)
        if ports.decode(ports.encode(found)) != found:
            raise AssertionError(found)

    def make(rng: random.Random) -> bytes:
        data = damaged(whole, whole[16:], rng)
        if rng.random() < 0.5:
            return data
        return latch.seal(data[: len(whole)].ljust(len(whole), b"\0"))

    return Target(make, parse, (ports.PortsError,))
