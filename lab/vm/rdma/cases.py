"""The faults that the matrix of tests and ``bench verbs`` play under a job of an RDMA lab.

One rail of two has the fault; the other rail carries on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from lab.vm.rdma.fault import GuestFault
from lab.vm.rdma.faults import (
    AckDrop,
    AddressRemoved,
    AdminDown,
    BlackHole,
    Carrier,
    Flap,
    Frozen,
    GidMoved,
    IpDrop,
    LeafDown,
    Loss,
    Mtu,
    Netem,
    RoceDrop,
    RxeRemoved,
)
from lab.vm.rdma.perf import Collective

Noticed = Literal["event", "silence", "nothing carries"]
HOSTS: dict[Collective, list[int]] = {"p2p": [0, 1], "ring": [0, 1, 2, 3]}
"""Ranks of each collective."""


@dataclass(frozen=True, slots=True)
class Case:
    """One fault: what makes it, how many seconds it lasts in the guest, how it can be noticed.

    ``event``: a device of an end tells. ``silence``: nobody tells. ``nothing carries``: the job
    stands still as long as the fault lasts, whatever is noticed.
    """

    make: Callable[[], GuestFault]
    seconds: float
    noticed: Noticed


CASES = {
    "carrier": Case(lambda: Carrier("h1:rail0"), 2, "event"),
    "admin": Case(lambda: AdminDown("h1:rail0"), 2, "event"),
    "both ends": Case(lambda: LeafDown("leaf0"), 2, "event"),
    "flap of 37 ms": Case(lambda: Flap("h1:rail0", down_ms=37, up_ms=200, count=3), 0, "event"),
    "flap of 300 ms": Case(lambda: Flap("h1:rail0", down_ms=300, up_ms=300, count=3), 0, "event"),
    "black hole": Case(lambda: BlackHole("h1:rail0"), 2, "silence"),
    "black hole, one way": Case(lambda: BlackHole("h1:rail0", "rx"), 2, "silence"),
    "RDMA broken, IP fine": Case(lambda: RoceDrop("h1:rail0"), 2, "silence"),
    "IP broken, RDMA fine": Case(lambda: IpDrop("h1:rail0"), 2, "silence"),
    "ACKs dropped": Case(lambda: AckDrop("h1:rail0"), 2, "silence"),
    "loss": Case(lambda: Loss("h1:rail0", 5), 2, "silence"),
    "delay": Case(lambda: Netem("h1:rail0", "delay 20ms 5ms"), 2, "silence"),
    "MTU": Case(lambda: Mtu("h1:rail0", 640), 2, "silence"),
    "GID moved": Case(lambda: GidMoved("h1:rail0"), 2, "event"),
    "address removed": Case(lambda: AddressRemoved("h1:rail0"), 2, "event"),
    "device removed": Case(lambda: RxeRemoved("h1:rail0"), 2, "event"),
    "process stopped": Case(lambda: Frozen("h1"), 5, "nothing carries"),
    "all rails": Case(lambda: Carrier("h1"), 3, "nothing carries"),
}
