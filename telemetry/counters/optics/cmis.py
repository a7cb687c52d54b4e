"""CMIS 3 to 5 (QSFP-DD, OSFP, QSFP112, SFP-DD): up to 8 lanes a bank, 32 in all. Pure.

Byte numbers are those of OIF-CMIS-05.2: lower memory (table 8-4 on), page 00h (identity), 01h
(what is implemented), 02h (thresholds), 11h (lane states, flags, readings), 20h–2Fh (`vdm`). Page
00h to 02h carry check codes; 11h, as all that changes, has none.
"""

from __future__ import annotations

from dataclasses import replace

from telemetry.counters.optics import vdm
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

IDENTIFIERS = {
    0x18: "QSFP-DD",
    0x19: "OSFP",
    0x1E: "QSFP with CMIS",
    0x1F: "SFP-DD",
    0x20: "SFP with CMIS",
    0x21: "OSFP-XD",
}
"""SFF-8024 table 4-1."""

REVISIONS = (3, 4, 5)
BANK_LANES = 8
ADVERTISING, LIMITS = Half(upper=True, page=1), Half(upper=True, page=2)

_FLAT = 1 << 7
_OPTICAL_MEDIA = (1, 2)
"""Byte 85: multimode, single mode; 3 to 5 are copper and active cables without lane monitors."""
_ACTIVE_CABLE = 4
_READY = 3
"""Module state (byte 3, bits 3–1)."""
_VDM = 1 << 6
_BANKS = {0: 1, 1: 2, 2: 4}
_BIAS_SCALE = {0: 1, 1: 2, 2: 4}

_FLAG_BYTES = {
    "tx_fault": 135,
    "tx_los": 136,
    "tx_lol": 137,
    "rx_los": 147,
    "rx_lol": 148,
    **{f"tx_power_{level}": 139 + i for i, level in enumerate(LEVELS)},
    **{f"tx_bias_{level}": 143 + i for i, level in enumerate(LEVELS)},
    **{f"rx_power_{level}": 149 + i for i, level in enumerate(LEVELS)},
}
"""Page 11h: one bit a lane."""

_MONITORS = {"tx_bias": 1, "tx_power": 2, "rx_power": 4}
"""Page 01h, byte 160."""
_HAS_FLAG = {
    "tx_fault": (157, 1 << 0), "tx_los": (157, 1 << 1), "tx_lol": (157, 1 << 2),
    "rx_los": (158, 1 << 1), "rx_lol": (158, 1 << 2),
}  # fmt: skip
"""Page 01h: byte and bit that say whether a module has the flag (8.4.7)."""


def lanes_page(bank: int) -> Half:
    """Page 11h of a bank."""
    return Half(upper=True, page=0x11, bank=bank)


def wanted(memory: Memory) -> list[Half]:
    """What is still to be read, given what was."""
    halves = [LOWER, UPPER]
    if LOWER in memory and not take(memory, LOWER)[2] & _FLAT:
        halves += [ADVERTISING, LIMITS]
        if ADVERTISING in memory:
            page = take(memory, ADVERTISING)
            for bank in range(_BANKS.get(page[142 - HALF] & 3, 1)):
                halves.append(lanes_page(bank))
                if page[142 - HALF] & _VDM:
                    halves += vdm.wanted(memory, bank)
    return [half for half in halves if half not in memory]


def parse(memory: Memory) -> Module:
    """One reading.

    Raises:
        CounterError: not such a module, an unknown revision, or its identity is damaged.
    """
    low, up = take(memory, LOWER), take(memory, UPPER)
    if low[0] not in IDENTIFIERS:
        raise CounterError(f"identifier {low[0]:#04x} is not that of a module with CMIS")
    if up[0] != low[0]:
        raise CounterError(f"page 00h names {up[0]:#04x}, lower memory {low[0]:#04x}")
    if low[1] >> 4 not in REVISIONS:
        raise CounterError(f"CMIS revision {low[1] >> 4}.{low[1] & 15} is not known")
    verify(up, 0, 221 - HALF, 222 - HALF, "page 00h")
    notes = Notes()
    optical = low[85] in _OPTICAL_MEDIA or (low[85] == _ACTIVE_CABLE and not low[2] & _FLAT)
    base = Module(
        standard=f"CMIS {low[1] >> 4}.{low[1] & 15}",
        form=IDENTIFIERS[low[0]],
        vendor=text(up, 129 - HALF, 16),
        part=text(up, 148 - HALF, 16),
        revision=text(up, 164 - HALF, 2),
        serial=text(up, 166 - HALF, 16),
        firmware=f"{low[39]}.{low[40]}" if low[39] | low[40] else "",
        optical=optical,
        skipped=notes,
    )
    if low[2] & _FLAT:
        # A passive cable: it may still have a thermometer, but does not say whether.
        notes["readings"] = "flat memory: no monitors"
        return base
    if ADVERTISING not in memory:
        notes["readings"] = f"{ADVERTISING} was not read: what it measures is not known"
        return base
    advertised = take(memory, ADVERTISING)
    verify(advertised, 130 - HALF, 254 - HALF, 255 - HALF, "page 01h")
    monitors = u16(advertised, 159 - HALF)
    temperature = voltage = None
    if monitors >> 8 & 1:
        temperature = notes.temperature(s16(low, 14) * CELSIUS)
    else:
        notes["temperature"] = "not implemented"
    if monitors >> 8 & 2:
        voltage = notes.voltage(u16(low, 16) * VOLTS)
    else:
        notes["voltage"] = "not implemented"
    if low[3] >> 1 & 7 != _READY:
        notes["lanes"] = f"module state {low[3] >> 1 & 7}: not ready"
    lanes: list[Lane] = []
    flags = _module_flags(low, temperature is not None, voltage is not None)
    ber: dict[int, float] = {}
    if optical and "lanes" not in notes:
        for bank in range(_banks(advertised)):
            if lanes_page(bank) not in memory:
                notes[f"lanes of bank {bank}"] = f"{lanes_page(bank)} was not read"
                continue
            some, raised = _bank(memory, up, bank, monitors & 0xFF, advertised, notes)
            lanes += some
            flags |= raised
            if advertised[142 - HALF] & _VDM:
                ber |= vdm.pre_fec_ber(memory, bank, notes)
    return replace(
        base,
        temperature=temperature,
        voltage=voltage,
        lanes=tuple(lanes),
        flags=frozenset(flags),
        thresholds=_thresholds(memory, monitors & 0xFF, optical, notes),
        ber=ber,
    )


def _banks(advertised: bytes) -> int:
    code = advertised[142 - HALF] & 3
    if code not in _BANKS:
        raise CounterError(f"reserved number of banks {code} on page 01h")
    return _BANKS[code]


def _module_flags(low: bytes, temperature: bool, voltage: bool) -> set[str]:
    """Latched flags of the module (byte 9): temperature in the low nibble, voltage in the high.

    Of a quantity that is not measured, or not credibly, they say nothing.
    """
    found = set()
    for name, shift, measured in (("temperature", 0, temperature), ("voltage", 4, voltage)):
        if measured:
            found |= {f"{name}_{x}" for i, x in enumerate(LEVELS) if low[9] >> (shift + i) & 1}
    return found


def _bias_unit(monitors: int, notes: Notes) -> float | None:
    scale = _BIAS_SCALE.get(monitors >> 3 & 3)
    if scale is None:
        notes["tx_bias"] = "reserved scale of the bias current"
        return None
    return scale * AMPERES


def _bank(
    memory: Memory, up: bytes, bank: int, monitors: int, advertised: bytes, notes: Notes
) -> tuple[list[Lane], set[str]]:
    """The lanes of a bank, and the flags raised on them."""
    page = take(memory, lanes_page(bank))
    # Byte 210: media lanes that are not there, known for the first eight only.
    absent = up[210 - HALF] if bank == 0 else 0
    bias = _bias_unit(monitors, notes)
    # Quantity → where it stands, unit, implemented or not (byte 160).
    table: dict[str, tuple[int, float, bool]] = {
        "rx_power": (186, WATTS, bool(monitors & _MONITORS["rx_power"])),
        "tx_power": (154, WATTS, bool(monitors & _MONITORS["tx_power"])),
        "tx_bias": (170, bias or 0.0, bool(monitors & _MONITORS["tx_bias"]) and bias is not None),
    }
    # A module may set bits of a monitor, or of a flag, that it lacks.
    named = {x: at for x, at in _FLAG_BYTES.items() if _has(x, advertised, monitors)}
    lanes, flags = [], set()
    for bit in range(BANK_LANES):
        if absent >> bit & 1:
            continue
        lane = bank * BANK_LANES + bit
        values = {
            name: notes.raw(f"{name}/{lane}", u16(page, at - HALF + 2 * bit), unit)
            for name, (at, unit, there) in table.items()
            if there
        }
        lanes.append(Lane(lane, **values))
        flags |= {f"{x}/{lane}" for x, at in named.items() if page[at - HALF] >> bit & 1}
    for name, (_, _, there) in table.items():
        if not there:
            notes.setdefault(name, "not implemented")
    return lanes, flags


def _has(flag: str, advertised: bytes, monitors: int) -> bool:
    """Whether a module has a flag of page 11h: that of a quantity where it has the monitor."""
    if flag in _HAS_FLAG:
        at, bit = _HAS_FLAG[flag]
        return bool(advertised[at - HALF] & bit)
    return any(flag.startswith(name) and monitors & bit for name, bit in _MONITORS.items())


def _thresholds(
    memory: Memory, monitors: int, optical: bool, notes: Notes
) -> dict[str, Thresholds]:
    try:
        page = take(memory, LIMITS)
        verify(page, 0, 126, 127, "page 02h")
    except CounterError as error:
        notes["thresholds"] = str(error)
        return {}
    places: list[tuple[str, int, float | None]] = [
        ("temperature", 128, CELSIUS),
        ("voltage", 136, VOLTS),
    ]
    if optical:
        places += [("tx_power", 176, WATTS), ("rx_power", 192, WATTS)]
        places += [("tx_bias", 184, _bias_unit(monitors, notes))]
    found: dict[str, Thresholds] = {}
    for name, at, unit in places:
        if unit is None or name in notes:
            continue
        where = range(at - HALF, at - HALF + 8, 2)
        raws = [s16(page, x) if name == "temperature" else u16(page, x) for x in where]
        found |= notes.limits(name, *(raw * unit for raw in raws))
    return found
