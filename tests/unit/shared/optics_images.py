"""Memory images of modules, laid out byte by byte from the specifications.

Origin of the layouts: SFF-8472 rev 12.4, SFF-8636 rev 2.11, OIF-CMIS-05.2. The values are typical
ones of a 10GBASE-LR SFP+, a 100GBASE-CWDM4 QSFP28 and a 400GBASE-DR4 QSFP-DD; none is taken from a
parser of ours. The decoders were also held against the public dumps of five real modules.
"""

import errno
import os
import struct

from telemetry.counters.optics.memory import A2, LOWER, UPPER, Half


def checked(data: bytearray, first: int, last: int, at: int) -> None:
    data[at] = sum(data[first : last + 1]) & 0xFF


def words(data: bytearray, at: int, *values: int) -> None:
    for i, value in enumerate(values):
        struct.pack_into(">h" if value < 0 else ">H", data, at + 2 * i, value)


def put(data: bytearray, at: int, size: int, value: str) -> None:
    data[at : at + size] = value.encode().ljust(size)


def sfp(*, external: bool = False) -> dict[Half, bytearray]:
    """10GBASE-LR: 36.5 °C, 3.3 V, 30 mA, tx 0.5 mW, rx 0.4 mW."""
    a0, a2 = bytearray(128), bytearray(128)
    a0[0], a0[1], a0[2], a0[11], a0[12], a0[14] = 0x03, 0x04, 0x07, 0x06, 0x67, 10
    a0[3] = 0x20
    put(a0, 20, 16, "ACME OPTICS")
    put(a0, 40, 16, "AO-10G-LR")
    put(a0, 56, 4, "B2")
    words(a0, 60, 1310)
    put(a0, 68, 16, "AO24A00017")
    put(a0, 84, 8, "240117")
    a0[92] = 0x58 if external else 0x68
    a0[93], a0[94] = 0xB0, 0x08
    checked(a0, 0, 62, 63)
    checked(a0, 64, 94, 95)
    words(a2, 0, 75 * 256, -5 * 256, 70 * 256, 0)
    words(a2, 8, 36300, 29700, 34650, 31350)
    words(a2, 16, 42500, 1000, 40000, 2500)
    words(a2, 24, 22387, 1585, 11220, 1995)
    words(a2, 32, 22387, 234, 11220, 363)
    struct.pack_into(">5f", a2, 56, 0.0, 0.0, 0.0, 1.0, 0.0)
    words(a2, 76, 256, 0, 256, 0, 256, 0, 256, 0)
    words(a2, 96, 36 * 256 + 128, 33000, 15000, 5000, 4000)
    if external:
        # T = 2·raw - 2 °C, V = raw + 1 mV, rx = 1e-4·raw² + 0.5·raw + 3 (units of 0.1 µW).
        struct.pack_into(">5f", a2, 56, 0.0, 0.0, 1e-4, 0.5, 3.0)
        words(a2, 84, 512, -512, 256, 10)
        words(a2, 0, 38 * 256, -2 * 256, 36 * 256, 0)
        words(a2, 96, 19 * 256, 32990, 15000, 5000, 2000)
    checked(a2, 0, 94, 95)
    return {LOWER: a0, A2: a2}


def qsfp() -> dict[Half, bytearray]:
    """100GBASE-CWDM4: 41.25 °C, 3.28 V; lane n: rx 0.7 + n/10 mW, 35 mA, tx 0.8 mW."""
    low, up, limits = bytearray(128), bytearray(128), bytearray(128)
    low[0], low[1], low[2] = 0x11, 0x08, 0x00
    words(low, 22, 41 * 256 + 64)
    words(low, 26, 32800)
    words(low, 34, 7000, 8000, 9000, 10000)
    words(low, 42, 17500, 17500, 17500, 17500)
    words(low, 50, 8000, 8000, 8000, 8000)
    up[0], up[2], up[11], up[12] = 0x11, 0x07, 0x05, 0xFF
    up[19] = 0x40
    put(up, 20, 16, "ACME OPTICS")
    put(up, 40, 16, "AO-Q28-CWDM4")
    put(up, 56, 2, "A1")
    checked(up, 0, 62, 63)
    put(up, 68, 16, "AO24Q00042")
    put(up, 84, 8, "240201")
    up[66], up[67] = 0x30, 0x0A
    up[92] = 0x3C
    checked(up, 64, 94, 95)
    words(limits, 0, 75 * 256, -5 * 256, 70 * 256, 0)
    words(limits, 16, 36300, 29700, 34650, 31350)
    words(limits, 48, 22387, 363, 17783, 724)
    words(limits, 56, 37500, 5000, 35000, 7500)
    words(limits, 64, 22387, 1820, 17783, 2884)
    return {LOWER: low, UPPER: up, Half(upper=True, page=3): limits}


def cmis(*, banks: int = 0) -> dict[Half, bytearray]:
    """400GBASE-DR4, CMIS 5.0, firmware 2.7: four media lanes, VDM with pre-FEC BER."""
    low, up, page1, page2, page11 = (bytearray(128) for _ in range(5))
    low[0], low[1], low[3] = 0x18, 0x50, 3 << 1
    words(low, 14, 48 * 256 + 32, 33100)
    low[39], low[40], low[85] = 2, 7, 0x02
    up[0] = 0x18
    put(up, 1, 16, "ACME OPTICS")
    put(up, 20, 16, "AO-QDD-DR4")
    put(up, 36, 2, "C3")
    put(up, 38, 16, "AO25D00007")
    put(up, 54, 8, "250301")
    up[82] = 0xF0
    checked(up, 0, 93, 94)
    page1[14] = 0x40 | banks
    page1[29], page1[30] = 0x07, 0x06
    page1[31], page1[32] = 0x03, 0x07 | 1 << 3
    checked(page1, 2, 126, 127)
    words(page2, 0, 75 * 256, -5 * 256, 70 * 256, 0)
    words(page2, 8, 34650, 31350, 33990, 32010)
    words(page2, 48, 31623, 2570, 25119, 5129)
    words(page2, 56, 37500, 5000, 35000, 7500)
    words(page2, 64, 31623, 1288, 25119, 2570)
    checked(page2, 0, 126, 127)
    words(page11, 26, 12000, 12100, 12200, 12300)
    words(page11, 42, 15000, 15100, 15200, 15300)
    words(page11, 58, 9000, 9100, 9200, 0)
    memory = {
        LOWER: low,
        UPPER: up,
        Half(upper=True, page=1): page1,
        Half(upper=True, page=2): page2,
        Half(upper=True, page=0x11): page11,
    }
    control, descriptors, values = (bytearray(128) for _ in range(3))
    control[1] = 0xFF
    for lane in range(4):
        # Media input BER now (15) of each lane; host input (16) beside it is not ours.
        descriptors[4 * lane : 4 * lane + 4] = bytes([lane, 15, lane, 16])
        # 250 · 10^(14-24) = 2.5e-8, lane by lane ten times more.
        words(values, 4 * lane, (14 + lane) << 11 | 250, 13 << 11 | 1)
    memory[Half(upper=True, page=0x2F)] = control
    memory[Half(upper=True, page=0x20)] = descriptors
    memory[Half(upper=True, page=0x24)] = values
    for bank in range(1, {0: 1, 1: 2, 2: 4}[banks]):
        memory[Half(upper=True, page=0x11, bank=bank)] = bytearray(page11)
        memory |= {
            Half(upper=True, page=page, bank=bank): bytearray(data)
            for page, data in ((0x2F, control), (0x20, descriptors), (0x24, values))
        }
    return memory


def frozen(memory: dict[Half, bytearray]) -> dict[Half, bytes]:
    return {half: bytes(data) for half, data in memory.items()}


class Bus:
    """A module on a bus: some halves answer."""

    def __init__(self, memory, error=errno.EIO):
        self.memory = frozen(memory)
        self.error = error
        self.asked = []
        self.closed = False

    def read(self, half):
        self.asked.append(half)
        if half not in self.memory:
            raise OSError(self.error, os.strerror(self.error))
        return self.memory[half]

    def close(self):
        self.closed = True
