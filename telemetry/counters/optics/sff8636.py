"""SFF-8636 (QSFP+, QSFP28, QSFP56): four lanes. Pure.

Byte numbers are those of SFF-8636 rev 2.11, section 6.2 (lower memory: status, flags, readings),
6.3 (page 00h: identity), 6.6 (page 03h: thresholds).
"""

from __future__ import annotations

from dataclasses import replace

from telemetry.counters.optics.memory import (
    AMPERES,
    CELSIUS,
    HALF,
    LOWER,
    UPPER,
    VOLTS,
    WATTS,
    Half,
    Memory,
    s16,
    take,
    text,
    u16,
    verify,
)
from telemetry.counters.optics.reading import LEVELS, Lane, Module, Notes, Thresholds
from telemetry.counters.types import CounterError

IDENTIFIERS = {0x0C: "QSFP", 0x0D: "QSFP+", 0x11: "QSFP28"}
"""SFF-8024 table 4-1."""

LANES = 4
PAGE_THRESHOLDS = Half(upper=True, page=3)

_FLAT, _NOT_READY = 1 << 2, 1 << 0
"""Byte 2."""
_COPPER = 0xA
"""Page 00h byte 147, bits 7–4: from here on a cable without lasers."""
_HAS_TX_POWER, _HAS_VOLTAGE, _HAS_TEMPERATURE = 1 << 2, 1 << 4, 1 << 5
"""Page 00h byte 220; the last two since revision 2.8 (byte 1 ≥ 8)."""
_REV_2_8 = 8
_HAS_FLAG = {
    "tx_fault": (195, 1 << 3), "tx_los": (195, 1 << 1),
    "tx_lol": (194, 1 << 5), "rx_lol": (194, 1 << 4),
}  # fmt: skip
"""Page 00h, options: byte and bit of the flags that a module may lack; none may lack rx_los."""


def wanted(memory: Memory) -> list[Half]:
    """What is still to be read, given what was."""
    halves = [LOWER, UPPER]
    if LOWER in memory and not take(memory, LOWER)[2] & _FLAT:
        halves.append(PAGE_THRESHOLDS)
    return [half for half in halves if half not in memory]


def parse(memory: Memory) -> Module:
    """One reading of a QSFP.

    Raises:
        CounterError: not such a module, or its identity is damaged.
    """
    low, up = take(memory, LOWER), take(memory, UPPER)
    if low[0] not in IDENTIFIERS:
        raise CounterError(f"identifier {low[0]:#04x} is not that of a QSFP")
    if up[0] not in IDENTIFIERS:
        raise CounterError(f"page 00h names {up[0]:#04x}, lower memory {low[0]:#04x}")
    verify(up, 0, 62, 63, "the QSFP's base fields (CC_BASE)")
    verify(up, 64, 94, 95, "the QSFP's extended fields (CC_EXT)")
    notes = Notes()
    optical = up[147 - HALF] >> 4 < _COPPER
    base = Module(
        standard="SFF-8636",
        form=IDENTIFIERS[low[0]],
        vendor=text(up, 148 - HALF, 16),
        part=text(up, 168 - HALF, 16),
        revision=text(up, 184 - HALF, 2),
        serial=text(up, 196 - HALF, 16),
        optical=optical,
        skipped=notes,
    )
    if low[2] & _NOT_READY:
        notes["readings"] = "not ready yet"
        return base
    monitors = up[220 - HALF]
    # Before 2.8 there were no bits for temperature and voltage: what reads 0 is not implemented.
    told = low[1] >= _REV_2_8
    temperature = voltage = None
    if (monitors & _HAS_TEMPERATURE) if told else s16(low, 22):
        temperature = notes.temperature(s16(low, 22) * CELSIUS)
    else:
        notes["temperature"] = "not implemented"
    if (monitors & _HAS_VOLTAGE) if told else u16(low, 26):
        voltage = notes.voltage(u16(low, 26) * VOLTS)
    else:
        notes["voltage"] = "not implemented"
    measured = {"temperature"} if temperature is not None else set()
    measured |= {"voltage"} if voltage is not None else set()
    if optical:
        measured |= {"rx_power", "tx_bias"}
        measured |= {"tx_power"} if monitors & _HAS_TX_POWER else set()
    return replace(
        base,
        temperature=temperature,
        voltage=voltage,
        lanes=_lanes(low, bool(monitors & _HAS_TX_POWER), notes) if optical else (),
        flags=_flags(low, up, measured, optical),
        thresholds=_thresholds(memory, low, optical, notes),
    )


def _lanes(low: bytes, tx_power: bool, notes: Notes) -> tuple[Lane, ...]:
    if not tx_power:
        notes["tx_power"] = "not implemented"
    return tuple(
        Lane(
            lane,
            rx_power=notes.raw(f"rx_power/{lane}", u16(low, 34 + 2 * lane), WATTS),
            tx_power=notes.raw(f"tx_power/{lane}", u16(low, 50 + 2 * lane), WATTS)
            if tx_power
            else None,
            tx_bias=notes.raw(f"tx_bias/{lane}", u16(low, 42 + 2 * lane), AMPERES),
        )
        for lane in range(LANES)
    )


def _flags(low: bytes, up: bytes, measured: set[str], optical: bool) -> frozenset[str]:
    """Latched alarms and warnings (6–14), loss of signal (3), faults (4), loss of lock (5).

    A module may set bits of a monitor that it lacks: only those of ``measured`` quantities count.
    """
    found = set()
    for name, at in (("temperature", 6), ("voltage", 7)):
        if name in measured:
            found |= {f"{name}_{x}" for i, x in enumerate(LEVELS) if low[at] >> (7 - i) & 1}
    if not optical:
        return frozenset(found)
    for name, at in (("rx_power", 9), ("tx_bias", 11), ("tx_power", 13)):
        for lane in range(LANES) if name in measured else ():
            bits = low[at + lane // 2] >> (0 if lane % 2 else 4)
            found |= {f"{name}_{x}/{lane}" for i, x in enumerate(LEVELS) if bits >> (3 - i) & 1}
    for name, at, shift in (
        ("tx_los", 3, 4),
        ("rx_los", 3, 0),
        ("tx_fault", 4, 0),
        ("tx_lol", 5, 4),
        ("rx_lol", 5, 0),
    ):
        option, bit = _HAS_FLAG.get(name, (0, 0))
        if bit and not up[option - HALF] & bit:
            continue
        found |= {f"{name}/{lane}" for lane in range(LANES) if low[at] >> (shift + lane) & 1}
    return frozenset(found)


def _thresholds(memory: Memory, low: bytes, optical: bool, notes: Notes) -> dict[str, Thresholds]:
    """Page 03h, which has no check code: limits out of order are refused one by one."""
    if low[2] & _FLAT:
        notes["thresholds"] = "flat memory: no page 03h"
        return {}
    try:
        page = take(memory, PAGE_THRESHOLDS)
    except CounterError as error:
        notes["thresholds"] = str(error)
        return {}
    places = [("temperature", 128, CELSIUS), ("voltage", 144, VOLTS)]
    if optical:
        places += [("rx_power", 176, WATTS), ("tx_bias", 184, AMPERES), ("tx_power", 192, WATTS)]
    found: dict[str, Thresholds] = {}
    for name, at, unit in places:
        where = range(at - HALF, at - HALF + 8, 2)
        raws = [s16(page, x) if name == "temperature" else u16(page, x) for x in where]
        found |= notes.limits(name, *(raw * unit for raw in raws))
    return found
