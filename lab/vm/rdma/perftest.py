"""``ib_write_bw`` and ``ib_write_lat``: their arguments and what they print. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Program = Literal["ib_write_bw", "ib_write_lat"]
GID_INDEX = 1
"""Of the IPv4-mapped address of a soft-RoCE device; 0 is the link-local one."""
SMALLEST_COUNT = 5
"""perftest refuses fewer messages."""


class PerftestError(RuntimeError):
    """perftest failed, or printed what is no result; the text says what."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """One row of ``ib_write_bw``: a message size, how many, and Gbit/s (10⁹ bits)."""

    size: int
    count: int
    gbps: float


@dataclass(frozen=True, slots=True)
class Latency:
    """One row of ``ib_write_lat``: half round trips in µs."""

    size: int
    count: int
    min_us: float
    typical_us: float
    average_us: float
    p99_us: float


def arguments(
    program: Program, *, rail: int, size: int, count: int, port: int, server: str = ""
) -> list[str]:
    """Command line of the server, or with ``server`` (its address) of the client.

    Raises:
        PerftestError: fewer than `SMALLEST_COUNT` messages.
    """
    if count < SMALLEST_COUNT:
        raise PerftestError(f"count = {count}: at least {SMALLEST_COUNT}")
    argv = [program, "-F", "-d", f"rxe{rail}", "-x", str(GID_INDEX)]
    argv += ["-s", str(size), "-n", str(count), "-p", str(port)]
    argv += ["--report_gbits"] if program == "ib_write_bw" else []
    return [*argv, server] if server else argv


def _row(text: str, columns: int) -> list[float]:
    """The numbers below the header that begins with ``#bytes``."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.split()[:1] == ["#bytes"]:
            words = next(lines, "").split()
            try:
                numbers = [float(word) for word in words]
            except ValueError:
                break
            if len(numbers) >= columns:
                return numbers
            break
    raise PerftestError(f"no row of results in: {text[-1000:]}")


def bandwidth(text: str) -> Bandwidth:
    """The row that ``ib_write_bw --report_gbits`` prints.

    Raises:
        PerftestError: there is none.
    """
    size, count, _peak, average, *_ = _row(text, 4)
    return Bandwidth(int(size), int(count), average)


def latency(text: str) -> Latency:
    """The row that ``ib_write_lat`` prints.

    Raises:
        PerftestError: there is none.
    """
    size, count, least, _most, typical, average, _deviation, p99, *_ = _row(text, 8)
    return Latency(int(size), int(count), least, typical, average, p99)
