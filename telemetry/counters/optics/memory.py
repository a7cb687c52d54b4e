"""A module's management memory: which half pages there are, and how numbers lie in them. Pure.

All three maps are made of halves of 128 bytes: the lower one, and upper ones chosen by page (and,
for CMIS, bank). SFF-8472 has a second two-wire address, A2h. Numbers are big-endian.

What can be told from garbage is: a half that is short, or reads as all zeros or all ones (an I2C
bus that nobody answers on), a wrong identifier, a wrong check code. Sources: SFF-8024, SFF-8472
rev 12.4, SFF-8636 rev 2.11, OIF-CMIS-05.2.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.counters.types import CounterError

HALF = 128
"""Bytes of a half page."""

MAIN, DIAGNOSTIC = 0x50, 0x51
"""Two-wire addresses, 7 bits: A0h and A2h of the specifications."""


@dataclass(frozen=True, slots=True, order=True)
class Half:
    """Which 128 bytes: the lower ones, or the upper ones under a page and bank."""

    upper: bool = False
    page: int = 0
    bank: int = 0
    device: int = MAIN

    @property
    def offset(self) -> int:
        """Where it begins in the 256 bytes that a page shows."""
        return HALF if self.upper else 0

    def __str__(self) -> str:
        where = f"page {self.page:02X}h" if self.upper else "lower memory"
        where += f" bank {self.bank}" if self.bank else ""
        return where + (" of A2h" if self.device == DIAGNOSTIC else "")


LOWER = Half()
UPPER = Half(upper=True)
A2 = Half(device=DIAGNOSTIC)

Memory = Mapping[Half, bytes]
"""What was read so far; a half that the module does not have is absent."""


def take(memory: Memory, half: Half) -> bytes:
    """The 128 bytes of a half.

    Raises:
        CounterError: it is absent, of another size, or blank.
    """
    data = memory.get(half)
    if data is None:
        raise CounterError(f"{half} was not read")
    if len(data) != HALF:
        raise CounterError(f"{half} has {len(data)} bytes instead of {HALF}")
    if data in (bytes(HALF), b"\xff" * HALF):
        raise CounterError(f"{half} reads as all {'ones' if data[0] else 'zeros'}: no answer")
    return data


def verify(data: bytes, first: int, last: int, at: int, what: str) -> None:
    """Check code: the low byte of the sum of ``first`` to ``last`` stands at ``at``.

    Raises:
        CounterError: it does not.
    """
    total = sum(data[first : last + 1]) & 0xFF
    if total != data[at]:
        raise CounterError(f"check code of {what} is {data[at]:#04x}, the bytes say {total:#04x}")


def text(data: bytes, at: int, size: int) -> str:
    """ASCII padded with spaces; what cannot be printed is shown as '?'."""
    raw = data[at : at + size].rstrip(b" \x00")
    return "".join(chr(x) if 0x20 <= x < 0x7F else "?" for x in raw).strip()


def u16(data: bytes, at: int) -> int:
    """Unsigned, 0 to 65535."""
    return int.from_bytes(data[at : at + 2], "big")


def s16(data: bytes, at: int) -> int:
    """Two's complement, -32768 to 32767."""
    return int.from_bytes(data[at : at + 2], "big", signed=True)


def f32(data: bytes, at: int) -> float:
    """IEEE 754 single.

    Raises:
        CounterError: not a finite number.
    """
    value = float(struct.unpack_from(">f", data, at)[0])
    if not math.isfinite(value):
        raise CounterError(f"calibration constant at {at} is {value}")
    return value


def f16(raw: int) -> float:
    """CMIS F16: exponent (bits 15–11, biased by 24) and mantissa (bits 10–0) of a power of ten."""
    return (raw & 0x7FF) * float(f"1e{(raw >> 11) - 24}")


CELSIUS = 1 / 256
"""°C of a unit of temperature."""
VOLTS = 100e-6
"""V of a unit of supply voltage."""
WATTS = 0.1e-6
"""W of a unit of optical power."""
AMPERES = 2e-6
"""A of a unit of laser bias."""
