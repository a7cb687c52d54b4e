"""Bent images into the parsers of modules, and lines of sysfs into those of PCIe.

Sound images are bent in 1 to 8 places, and their check codes put right half of the time so that the
bend gets past them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from lab.fuzz.parsers import Target
from telemetry.counters.optics.memory import A2, HALF, LOWER, UPPER, Half
from telemetry.counters.optics.source import parse
from telemetry.counters.pci import aer, speed, width

Image = dict[Half, bytes]
_CODES: dict[int, dict[Half, tuple[tuple[int, int, int], ...]]] = {
    0x03: {LOWER: ((0, 62, 63), (64, 94, 95)), A2: ((0, 94, 95),)},
    0x11: {UPPER: ((0, 62, 63), (64, 94, 95))},
    0x18: {
        UPPER: ((0, 93, 94),),
        Half(upper=True, page=1): ((2, 126, 127),),
        Half(upper=True, page=2): ((0, 126, 127),),
    },
}
_PAGES = (1, 2, 3, 0x11, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x2F)


def image(rng: random.Random) -> Image:
    """A module of random content with a known identifier and right check codes."""
    identifier = rng.choice((0x03, 0x11, 0x18))
    halves = [LOWER, UPPER, A2] + [
        Half(upper=True, page=page, bank=bank) for page in _PAGES for bank in (0, 1)
    ]
    data = {half: bytearray(rng.randbytes(HALF)) for half in halves}
    data[LOWER][0] = data[UPPER][0] = identifier
    if identifier == 0x03:
        data[LOWER][92] = rng.choice((0x68, 0x58))
        data[A2][110] &= 0xFE
    elif identifier == 0x11:
        data[LOWER][2] = 0
    else:
        data[LOWER][1:4] = bytes([0x50, 0, 3 << 1])
        data[LOWER][85] = 2
    right(data, identifier)
    return {half: bytes(each) for half, each in data.items()}


def right(data: dict[Half, bytearray], identifier: int) -> None:
    """Put the check codes right."""
    for half, codes in _CODES[identifier].items():
        each = data[half]
        for first, last, at in codes:
            each[at] = sum(each[first : last + 1]) & 0xFF


def bend(rng: random.Random, sound: Image) -> Image:
    """A copy with some bytes changed, or a half cut off or lost."""
    bent = dict(sound)
    half = rng.choice(tuple(bent))
    chance = rng.random()
    if chance < 0.05:
        del bent[half]
    elif chance < 0.1:
        bent[half] = bent[half][: rng.randrange(HALF)]
    else:
        data = {half: bytearray(bent[half])}
        for _ in range(rng.randint(1, 8)):
            data[half][rng.randrange(HALF)] = rng.randrange(256)
        bent[half] = bytes(data[half])
        identifier = sound[LOWER][0]
        if rng.random() < 0.5 and half in _CODES.get(identifier, {}):
            whole = {key: bytearray(value) for key, value in bent.items()}
            right(whole, identifier)
            bent[half] = bytes(whole[half])
    return bent


def line(rng: random.Random) -> str:
    """Something like a line of sysfs."""
    words = ("RxErr 1\n", "TOTAL_ERR_COR 9", "16.0 GT/s PCIe\n", "x", " ", "8", "-", "\n", "\x00")
    return "".join(rng.choice(words) for _ in range(rng.randint(0, 6)))


def module() -> Target:
    """Images of modules, bent one after another; a new sound one every 200."""
    state: dict[str, Image] = {}

    def make(rng: random.Random) -> Image:
        if not state or rng.random() < 1 / 200:
            state["sound"] = image(rng)
        return bend(rng, state["sound"])

    return Target(make, parse)


def pcie() -> Target:
    """Lines of sysfs into the parsers of AER counters, link speed and width."""
    texts: tuple[Callable[[str], object], ...] = (aer, speed, width)
    return Target(lambda rng: (rng.choice(texts), line(rng)), lambda chosen: chosen[0](chosen[1]))
