"""Inputs of bytes: how whole ones are damaged, and the parsers of netlink, sysfs files and PTP.

Each has whole inputs; an input is one of them with a few bytes set, flipped, cut off, put in,
doubled or spliced with another.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clocksync.mesh import codec
from clocksync.mesh import messages as clock_messages
from clocksync.ptp import messages as ptp
from fabricd.clock import drift_file
from fabricd.detect import receive_path
from fabricd.links import rtnl as links
from fabricd.links.inventory import Inventory
from lab.inputs import kernel_replies as kernel
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
    close: Callable[[], None] = lambda: None
    """Lets go of what the target opened."""


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


def _news(data: bytes) -> None:
    try:
        found = links.parse(data)
    except ValueError as error:
        raise CounterError(str(error)) from error
    for message in found:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            Inventory().take(message)


def _sysfs(data: bytes) -> None:
    name, _, text = data.partition(b":")
    values, _, skipped = ib.parse({name.decode("latin-1"): text}, IB_PORT)
    # One file: it has a value or a reason, and both only at the end of its range.
    both = values and any("stands at its end" not in why for why in skipped.values())
    if any(value < 0 for value in values.values()) or both:
        raise AssertionError(f"{values} {skipped}")


def _driver(data: bytes) -> None:
    names, numbers = data[: 32 * 8], data[32 * 8 :]
    picked = ethdriver.pick(ethdriver.strings(names, 8), MLX5_CORE)
    ethdriver.values(memoryview(numbers), picked)


def _clock_message(data: bytes) -> None:
    try:
        message = codec.decode(data)
    except codec.ClockMessageError as error:
        raise CounterError(str(error)) from error
    if codec.decode(codec.encode(message)) != message:
        raise AssertionError(message)
    if isinstance(message, clock_messages.Phc) and message.line is not None:
        message.line.phc(message.line.raw(message.phc_ns)[0])


def _clock_rate(data: bytes) -> None:
    try:
        kept = drift_file.parse(data)
    except drift_file.ModelError as error:
        raise CounterError(str(error)) from error
    if abs(kept.start(drift_file.RawClock("", steady=True), 1.8e9)) > drift_file.MOST_RATE:
        raise AssertionError(kept)


def _softnet(data: bytes) -> None:
    try:
        queues = receive_path.parse(data)
    except receive_path.SoftnetError as error:
        raise CounterError(str(error)) from error
    if not all(0 <= number < 1 << 32 for queue in queues for number in queue):
        raise AssertionError(queues)
    waits = receive_path.ReceivePath(lambda: receive_path.Reading(10**9, queues))
    waits.begin()
    if waits.ask(0, 10**9, 3_000_000).wait != any(queue.waiting for queue in queues):
        raise AssertionError(queues)


def _ptp(data: bytes) -> None:
    try:
        message = ptp.decode(data)
    except ptp.PtpError as error:
        raise CounterError(str(error)) from error
    if ptp.decode(ptp.encode(message)) != message:
        raise AssertionError("another message when it is said again")


layout_of = {
    "standard": layout(messages.ethtool_stats_msg),
    "fec": layout(messages.ethtool_fec_msg),
    "pause": layout(messages.ethtool_pause_msg),
    "rdma": layout(messages.rdma_nldev_msg),
    "link": layout(messages.link_stats_msg),
}
_BINS = [kernel.fec_bin(n, n, 1 << 10 * n, 1, 2) for n in range(4)]
_ERROR = b"\x14\0\0\0\2\0\0\0\1\0\0\0\0\0\0\0\xa1\xff\xff\xff"
_TAG = clock_messages.MeshId(7, 10**18).tag
_CLOCK_MESSAGES = [
    codec.encode(message)
    for message in (
        clock_messages.Mesh(_TAG, 10**12, 10**18, 0.5, 1e-6, 7),
        clock_messages.Time(_TAG, 7, 1, 10**12, 10**18, 900.0, 1e-9),
        clock_messages.Reference(_TAG, 100, 7, 1, 10**18, 5, 0.5, 1e-6),
        clock_messages.MeshId(7, 10**18),
        clock_messages.AsymmetryReport(clock_messages.MeshId(7, 10**18), 77, -512.5),
        clock_messages.Phc(9, 3, 10**12, 10**18, 0.5, 1e-5, 300.0, 2.0),
        clock_messages.Trace(_TAG, 7, 10**18, -(10**15), 1e-6, 5e3, 1e-9, 9),
        clock_messages.Origin(_TAG, 7, 10**18, 3, 6, 0x21, 0, 37, True, 0),
    )
]
_RATE = b'{"rate": -1.25e-05, "learnt_s": 1800000000.0, "boot": "0f8e", "steady": true}'
_DRIVER = [row.native.replace("[i]", "0") for row in MLX5_CORE.rows[:8]]


_HEAD = ptp.Header(ptp.PortIdentity(b"\0\1\2\3\4\5\6\7", 1), 8, 0, ptp.Flag.TWO_STEP, 1.5)
_TLVS = (ptp.Request(11, 0, 60), ptp.Grant(0, -3, 60), ptp.Cancel(9), ptp.Acknowledge(0))
_PTP: list[ptp.Message] = [
    ptp.Sync(_HEAD, 10**18), ptp.FollowUp(_HEAD, 10**18), ptp.DelayReq(_HEAD),
    ptp.DelayResp(_HEAD, 10**18, _HEAD.source), ptp.Signaling(_HEAD, ptp.ANY_PORT, _TLVS),
    ptp.Announce(_HEAD, 37, 128, 6, 0x21, 0x4E5D, 128, b"grandmas", 1),
]  # fmt: skip


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
    "link_news": (_news, [kernel.link_news(7, "rail0", carrier=1), kernel.address_news(7)]),
    "clock_messages": (_clock_message, _CLOCK_MESSAGES),
    "clock_rate": (_clock_rate, [_RATE]),
    "link_stats": (_link, [kernel.u64(1, *range(25))]),
    "softnet_stat": (_softnet, [kernel.softnet_stat((7, 0), (0xFFFF_FFF0, 40))]),
    "ptp_messages": (_ptp, [ptp.encode(message) for message in _PTP]),
}
"""Name → parser and whole inputs."""
