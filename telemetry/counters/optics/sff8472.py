"""SFF-8472 (SFP, SFP+, SFP28): identity at A0h, diagnostics at A2h. Pure.

Byte numbers are those of SFF-8472 rev 12.4, tables 4-1 (A0h), 9-5 (thresholds), 9-6 (calibration
constants), 9-11 (readings), 9-12 (flags). With external calibration the readings and thresholds
are raw, and the constants turn them into units (section 9.3); rx power is a polynomial of the
fourth degree in the raw value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from telemetry.counters.optics.memory import (
    A2,
    AMPERES,
    CELSIUS,
    LOWER,
    VOLTS,
    WATTS,
    Half,
    Memory,
    f32,
    s16,
    take,
    text,
    u16,
    verify,
)
from telemetry.counters.optics.reading import LEVELS, Lane, Module, Notes, Thresholds
from telemetry.counters.types import CounterError

IDENTIFIERS = {0x03: "SFP", 0x0B: "DWDM-SFP"}
"""SFF-8024 table 4-1."""

_DDM, _INTERNAL, _EXTERNAL, _ADDRESS_CHANGE = 1 << 6, 1 << 5, 1 << 4, 1 << 2
"""A0h byte 92, diagnostic monitoring type."""
_FLAGS_IMPLEMENTED, _FAULT_IMPLEMENTED, _LOS_IMPLEMENTED = 1 << 7, 1 << 5, 1 << 4
"""A0h byte 93, enhanced options."""
_COPPER = 0x0C
"""A0h byte 8: passive (bit 2) or active (bit 3) cable."""
_NOT_READY = 1 << 0
"""A2h byte 110: set until the first readings are there."""

_QUANTITIES = ("temperature", "voltage", "tx_bias", "tx_power", "rx_power")
"""In the order of the thresholds, of the readings (96 on) and of the flag bits (112, 116 on)."""


@dataclass(frozen=True, slots=True)
class _Calibration:
    """Raw value → unit of the internally calibrated one, by quantity."""

    by_name: dict[str, Callable[[int], float]]

    def __call__(self, name: str, raw: int) -> float:
        return self.by_name[name](raw)


def wanted(memory: Memory) -> list[Half]:
    """What is still to be read, given what was."""
    halves = [LOWER] if LOWER not in memory else []
    if LOWER in memory and take(memory, LOWER)[92] & (_DDM | _ADDRESS_CHANGE) == _DDM:
        halves.append(A2)
    return [half for half in halves if half not in memory]


def parse(memory: Memory) -> Module:
    """One reading of an SFP.

    Raises:
        CounterError: not such a module, or its identity is damaged.
    """
    a0 = take(memory, LOWER)
    if a0[0] not in IDENTIFIERS:
        raise CounterError(f"identifier {a0[0]:#04x} is not that of an SFP")
    verify(a0, 0, 62, 63, "the SFP's base fields (CC_BASE)")
    verify(a0, 64, 94, 95, "the SFP's extended fields (CC_EXT)")
    notes = Notes()
    a2 = _diagnostics(memory, a0, notes)
    optical = not a0[8] & _COPPER
    base = Module(
        standard="SFF-8472",
        form=IDENTIFIERS[a0[0]],
        vendor=text(a0, 20, 16),
        part=text(a0, 40, 16),
        revision=text(a0, 56, 4),
        serial=text(a0, 68, 16),
        optical=optical,
        skipped=notes,
    )
    if a2 is None:
        return base
    sound = _sound(a2, notes)
    if a0[92] & _EXTERNAL:
        if not sound:
            notes["readings"] = "externally calibrated, and the constants are damaged"
            return base
        calibrate = _external(a2)
    else:
        calibrate = _internal()
    values = {name: _value(a2, name, 96 + 2 * at, calibrate, notes) for at, name in _each()}
    power = {name: values[name] for name in ("rx_power", "tx_power", "tx_bias")}
    measured = {name for name in ("temperature", "voltage") if values[name] is not None}
    measured |= power.keys() if optical else set()
    return replace(
        base,
        temperature=values["temperature"],
        voltage=values["voltage"],
        lanes=(Lane(0, **power),) if optical else (),
        flags=_flags(a0, a2, measured, optical),
        thresholds=_thresholds(a2, calibrate, notes) if sound else {},
    )


def _each() -> list[tuple[int, str]]:
    return list(enumerate(_QUANTITIES))


def _diagnostics(memory: Memory, a0: bytes, notes: Notes) -> bytes | None:
    """A2h, or None with a note."""
    if not a0[92] & _DDM:
        notes["readings"] = "no digital diagnostics"
    elif a0[92] & _ADDRESS_CHANGE:
        notes["readings"] = "diagnostics need an address change, which the kernel does not do"
    elif not a0[92] & (_INTERNAL | _EXTERNAL):
        notes["readings"] = "calibrated neither internally nor externally"
    elif A2 not in memory:
        notes["readings"] = f"{A2} was not read"
    else:
        a2 = take(memory, A2)
        if not a2[110] & _NOT_READY:
            return a2
        notes["readings"] = "not ready yet"
    return None


def _sound(a2: bytes, notes: Notes) -> bool:
    """Whether thresholds and calibration constants are whole."""
    try:
        verify(a2, 0, 94, 95, "the SFP's thresholds and calibration (CC_DMI)")
    except CounterError as error:
        notes["thresholds"] = str(error)
        return False
    return True


def _internal() -> _Calibration:
    return _Calibration(dict.fromkeys(_QUANTITIES, float))


def _external(a2: bytes) -> _Calibration:
    def line(at: int) -> Callable[[int], float]:
        slope, offset = u16(a2, at) / 256, s16(a2, at + 2)
        return lambda raw: slope * raw + offset

    terms = [f32(a2, 72 - 4 * power) for power in range(5)]
    return _Calibration(
        {
            "tx_bias": line(76),
            "tx_power": line(80),
            "temperature": line(84),
            "voltage": line(88),
            "rx_power": lambda raw: sum(term * raw**power for power, term in enumerate(terms)),
        }
    )


_UNITS = {
    "temperature": CELSIUS,
    "voltage": VOLTS,
    "tx_bias": AMPERES,
    "tx_power": WATTS,
    "rx_power": WATTS,
}


def _value(a2: bytes, name: str, at: int, calibrate: _Calibration, notes: Notes) -> float | None:
    raw = s16(a2, at) if name == "temperature" else u16(a2, at)
    if name not in ("temperature", "voltage") and notes.raw(name, raw, 1) is None:
        return None
    value = calibrate(name, raw) * _UNITS[name]
    if name == "temperature":
        return notes.temperature(value)
    if name == "voltage":
        return notes.voltage(value)
    # A polynomial may dip below zero in the dark; light cannot.
    return max(0.0, value)


def _thresholds(a2: bytes, calibrate: _Calibration, notes: Notes) -> dict[str, Thresholds]:
    found: dict[str, Thresholds] = {}
    for at, name in _each():
        places = range(8 * at, 8 * at + 8, 2)
        raws = [s16(a2, x) if name == "temperature" else u16(a2, x) for x in places]
        found |= notes.limits(name, *(calibrate(name, raw) * _UNITS[name] for raw in raws))
    return found


def _flags(a0: bytes, a2: bytes, measured: set[str], optical: bool) -> frozenset[str]:
    """Alarms (112), warnings (116), faults (110) that this module implements.

    A cable without a laser may set the bits of one: only ``measured`` quantities count.
    """
    found = set()
    if a0[93] & _FLAGS_IMPLEMENTED:
        for base, levels in ((112, LEVELS[:2]), (116, LEVELS[2:])):
            bits = u16(a2, base)
            for at, name in _each():
                for which, level in enumerate(levels):
                    if name in measured and bits >> (15 - 2 * at - which) & 1:
                        lane = "/0" if at >= 2 else ""
                        found.add(f"{name}_{level}{lane}")
    if optical and a0[93] & _FAULT_IMPLEMENTED and a2[110] & 1 << 2:
        found.add("tx_fault/0")
    if optical and a0[93] & _LOS_IMPLEMENTED and a2[110] & 1 << 1:
        found.add("rx_los/0")
    return frozenset(found)
