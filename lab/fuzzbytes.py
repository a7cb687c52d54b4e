"""Inputs of bytes: how whole ones are damaged, and the parsers of netlink and of sysfs files.

Each has whole inputs; an input is one of them with a few bytes set, flipped, cut off, put in,
doubled or spliced with another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab import kernelreplies as kernel
from telemetry.counters import ethdriver, ethnl, ib, messages, rdma, rtnl
from telemetry.counters.nlattr import decode, error_code, layout
from telemetry.counters.nlattr import messages as split
from telemetry.counters.tables.ethtool import MLX5_CORE
from telemetry.counters.tables.ib_port import IB_PORT
from telemetry.counters.tables.rdma import MLX5
from telemetry.counters.tables.standard import ETH_STANDARD
from telemetry.counters.types import CounterError


@dataclass(frozen=True, slots=True)
class Target:
    """A parser, what makes inputs for it, and the errors it may raise."""

    make: Callable[[random.Random], Any]
    parse: Callable[[Any], object]
    """True: refused without an error."""
    refusals: tuple[type[Exception], ...] = (CounterError,)


TELLING = (0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 0x7F, 0x80, 0xFE, 0xFF)
"""Bytes that lengths and types break at."""


def damaged(whole: bytes, other: bytes, rng: random.Random) -> bytes:
    """A damaged copy of `whole`; parts may be of `other`."""
    data = bytearray(whole)
    for _ in range(1 + int(rng.expovariate(0.7))):
        if not data:
            break
        at = rng.randrange(len(data))
        way = rng.random()
        if way < 0.45:
            data[at] = rng.choice(TELLING)
        elif way < 0.65:
            data[at] ^= 1 << rng.randrange(8)
        elif way < 0.8:
            del data[at:]
        elif way < 0.9:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif way < 0.95:
            data[at:at] = data[at : at + rng.randrange(1, 40)]
        else:
            data[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(data)


def _standard(data: bytes) -> None:
    attributes = decode(data, layout_of["standard"])
    ETH_STANDARD.canonical(ethnl.standard(attributes))
    ethnl.ifindex(attributes)


def _fec(data: bytes) -> None:
    ethnl.fec(decode(data, layout_of["fec"]))


def _pause(data: bytes) -> None:
    ethnl.pause(decode(data, layout_of["pause"]))


def _rdma(data: bytes) -> None:
    MLX5.canonical(rdma.hwcounters(decode(data, layout_of["rdma"])))


def _link(data: bytes) -> None:
    for _, value in decode(data, layout_of["link"]):
        rtnl.stats64(value)


def _datagram(data: bytes) -> None:
    for message in split(data):
        if message.type in (2, 3):
            error_code(message)


def _sysfs(data: bytes) -> None:
    name, _, text = data.partition(b":")
    values, _, skipped = ib.parse({name.decode("latin-1"): text}, IB_PORT)
    if any(value < 0 for value in values.values()) or (values and skipped):
        raise AssertionError(f"{values} {skipped}")


def _driver(data: bytes) -> None:
    names, numbers = data[: 32 * 8], data[32 * 8 :]
    picked = ethdriver.pick(ethdriver.strings(names, 8), MLX5_CORE)
    ethdriver.values(memoryview(numbers), picked)


layout_of = {
    "standard": layout(messages.ethtool_stats_msg),
    "fec": layout(messages.ethtool_fec_msg),
    "pause": layout(messages.ethtool_pause_msg),
    "rdma": layout(messages.rdma_nldev_msg),
    "link": layout(messages.link_stats_msg),
}
_BINS = [kernel.fec_bin(n, n, 1 << 10 * n, 1, 2) for n in range(4)]
_ERROR = b"\x14\0\0\0\2\0\0\0\1\0\0\0\0\0\0\0\xa1\xff\xff\xff"
_DRIVER = [row.native.replace("[i]", "0") for row in MLX5_CORE.rows[:8]]


def of_bytes(parse: Callable[[bytes], object], wholes: Sequence[bytes]) -> Target:
    """A target whose inputs are damaged copies of `wholes`."""
    return Target(lambda rng: damaged(rng.choice(wholes), rng.choice(wholes), rng), parse)


PARSERS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
    "sysfs": (_sysfs, [b"symbol_error:65535\n", b"port_rcv_data:18126345378\n", b"link_downed:0"]),
    "netlink": (_datagram, [_ERROR, _ERROR * 3]),
    "ethtool_standard": (_standard, [kernel.standard_reply({0: {0: 1}, 1: {0: 2, 4: 3}})]),
    "ethtool_fec": (_fec, [kernel.fec_reply([3, 1, 2], [1], [], *_BINS)]),
    "ethtool_pause": (_pause, [kernel.pause_reply(1, 2)]),
    "ethtool_driver": (_driver, [kernel.gstrings(_DRIVER) + kernel.gstats(range(8))]),
    "rdma_statistic": (_rdma, [kernel.rdma_reply({"out_of_sequence": 1, "packet_seq_err": 2})]),
    "link_stats": (_link, [kernel.u64(1, *range(25))]),
}
"""Name → parser and whole inputs."""
