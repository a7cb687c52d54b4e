"""Millions of damaged inputs for the parsers of counters: ``python -m lab.parserfuzz -n 10000000``.

Each target has whole inputs; an input is one of them with a few bytes set, flipped, cut off, put
in, doubled or spliced with another. A parser may return or raise CounterError with a reason;
anything else is a finding, printed with the input in hexadecimal. Seeded, so that a finding can be
had again. Two targets at a time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from lab import kernelreplies as kernel
from telemetry.counters import ethdriver, ethnl, ib, messages, rdma, rtnl
from telemetry.counters.nlattr import decode, error_code, layout
from telemetry.counters.nlattr import messages as split
from telemetry.counters.tables.ethtool import MLX5_CORE
from telemetry.counters.tables.ib_port import IB_PORT
from telemetry.counters.tables.rdma import MLX5
from telemetry.counters.tables.standard import ETH_STANDARD
from telemetry.counters.types import CounterError

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
TARGETS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
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


@dataclass(frozen=True, slots=True)
class Result:
    """Of one target: inputs, how many the parser refused, seconds, and the finding or ``""``."""

    target: str
    inputs: int
    refused: int
    seconds: float
    finding: str = ""


def fuzz(target: str, inputs: int, seed: int = 1) -> Result:
    """Give a target so many inputs; ends at the first finding."""
    parse, wholes = TARGETS[target]
    rng = random.Random(seed)
    began, refused = time.monotonic(), 0
    for number in range(inputs):
        data = damaged(rng.choice(wholes), rng.choice(wholes), rng)
        try:
            parse(data)
        except CounterError as error:
            refused += bool(str(error))
        except Exception as error:
            finding = f"{type(error).__name__}: {error}: {data.hex()}"
            return Result(target, number + 1, refused, time.monotonic() - began, finding)
    return Result(target, inputs, refused, time.monotonic() - began)


def main() -> int:
    """Fuzz; 1 when there was a finding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", "--inputs", type=int, default=10_000_000, help="of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("targets", nargs="*", help="of: " + ", ".join(TARGETS))
    given = parser.parse_args()
    unknown = set(given.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {min(unknown)}")
    findings = 0
    with ProcessPoolExecutor(max_workers=2) as pool:
        names = given.targets or list(TARGETS)
        work = [pool.submit(fuzz, name, given.inputs, given.seed) for name in names]
        for job in work:
            got = job.result()
            share = 100 * got.refused / got.inputs
            text = got.finding or "no finding"
            print(
                f"{got.target}: {text} in {got.inputs} inputs ({share:.0f} % refused),"
                f" {got.seconds:.0f} s",
                flush=True,
            )
            findings += bool(got.finding)
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
