"""CMIS versatile diagnostics (pages 20h–2Fh): the bit error ratio before FEC, by lane. Pure.

OIF-CMIS-05.2 section 8.19: page 2Fh says how many groups there are; group g has 64 two-byte
descriptors on page 20h+g (lane in bits 3–0 of the first byte, type in the second) and their values
in the same places of page 24h+g. Types (table 8-182): 15 is the ratio of the media input now, a
number in F16. Nothing is frozen or written: reading a value that changes is all we do.
"""

from __future__ import annotations

from telemetry.counters.optics.memory import HALF, Half, Memory, f16, take, u16
from telemetry.counters.optics.reading import Notes
from telemetry.counters.types import CounterError

MEDIA_BER_NOW = 15
DESCRIPTORS, VALUES, CONTROL = 0x20, 0x24, 0x2F
_WORST = 0.5
"""A bit error ratio above this is no such thing."""


def _half(page: int, bank: int) -> Half:
    return Half(upper=True, page=page, bank=bank)


def _groups(memory: Memory, bank: int) -> int:
    return 1 + (take(memory, _half(CONTROL, bank))[0] & 3)


def wanted(memory: Memory, bank: int) -> list[Half]:
    """Page 2Fh, then the descriptors, then the values of those groups that have a BER."""
    halves = [_half(CONTROL, bank)]
    if halves[0] not in memory:
        return halves
    for group in range(_groups(memory, bank)):
        halves.append(_half(DESCRIPTORS + group, bank))
        if halves[-1] in memory and MEDIA_BER_NOW in memory[halves[-1]][1::2]:
            halves.append(_half(VALUES + group, bank))
    return halves


def pre_fec_ber(memory: Memory, bank: int, notes: Notes) -> dict[int, float]:
    """Lane → bit error ratio now; what cannot be had is noted."""
    found: dict[int, float] = {}
    try:
        for group in range(_groups(memory, bank)):
            half = _half(DESCRIPTORS + group, bank)
            # A group may be empty, and then its page is all zeros.
            if not any(memory.get(half, b"")):
                continue
            descriptors = take(memory, half)
            for at in range(0, HALF, 2):
                if descriptors[at + 1] != MEDIA_BER_NOW:
                    continue
                # Without an error every value is zero, so a page of zeros is an answer.
                page = memory.get(_half(VALUES + group, bank), b"")
                if len(page) != HALF:
                    raise CounterError(f"{_half(VALUES + group, bank)} was not read")
                lane, ratio = 8 * bank + (descriptors[at] & 15), f16(u16(page, at))
                if ratio <= _WORST:
                    found[lane] = ratio
                else:
                    notes[f"pre_fec_ber/{lane}"] = f"{ratio:.3g} is no bit error ratio"
    except CounterError as error:
        notes["pre_fec_ber"] = str(error)
    return found
