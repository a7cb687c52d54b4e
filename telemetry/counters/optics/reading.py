"""What a module says about itself, the same for all memory maps. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from telemetry.counters.types import Sample

_LIMIT = 0xFFFF
_TEMPERATURE = (-60.0, 150.0)
_VOLTAGE = (2.0, 4.5)
"""Beyond these a module of 3.3 V does not work: what it says then is not a measurement."""

LEVELS = ("high_alarm", "low_alarm", "high_warning", "low_warning")
"""Of a flag or a threshold, in the order in which all three memory maps have them."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The maker's limits, in the unit of the quantity."""

    high_alarm: float
    low_alarm: float
    high_warning: float
    low_warning: float

    @property
    def in_order(self) -> bool:
        """Whether they are limits at all: low alarm ≤ low warning < high warning ≤ high alarm."""
        return self.low_alarm <= self.low_warning < self.high_warning <= self.high_alarm


@dataclass(frozen=True, slots=True)
class Lane:
    """One optical lane; None: not measured by this module. Power in W, bias in A."""

    number: int
    rx_power: float | None = None
    tx_power: float | None = None
    tx_bias: float | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """One reading.

    Attributes:
        standard: ``SFF-8472``, ``SFF-8636`` or ``CMIS 5.0``.
        form: what is plugged, e.g. ``QSFP28``.
        optical: it has lasers; a copper cable has not.
        firmware: version of the running firmware; CMIS alone tells.
        temperature: °C.
        voltage: V.
        flags: canonical names (`telemetry.counters.vocabulary.FLAGS`), lane as ``/N``, raised now
            or since the last read (they are latched).
        thresholds: by quantity: ``temperature``, ``voltage``, ``rx_power``, ``tx_power``,
            ``tx_bias``.
        ber: lane → bit error ratio of the media input before FEC, now.
        skipped: what it does not tell, or not credibly → why.
    """

    standard: str
    form: str
    vendor: str
    part: str
    revision: str
    serial: str
    optical: bool
    firmware: str = ""
    temperature: float | None = None
    voltage: float | None = None
    lanes: tuple[Lane, ...] = ()
    flags: frozenset[str] = frozenset()
    thresholds: Mapping[str, Thresholds] = field(default_factory=dict)
    ber: Mapping[int, float] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)


class Notes(dict[str, str]):
    """Collects what is skipped, and lets only credible numbers pass."""

    def temperature(self, value: float) -> float | None:
        """``value``, or None with a note when no module can be that warm or cold."""
        return self._within("temperature", value, _TEMPERATURE, "°C")

    def voltage(self, value: float) -> float | None:
        """``value``, or None with a note when no module runs on that."""
        return self._within("voltage", value, _VOLTAGE, "V")

    def raw(self, name: str, value: int, unit: float) -> float | None:
        """``value × unit``, or None with a note when the field is at the end of its range."""
        if value == _LIMIT:
            self[name] = "reads as 0xffff: at the end of its range or not implemented"
            return None
        return value * unit

    def limits(self, name: str, *values: float) -> dict[str, Thresholds]:
        """``{name: thresholds}``, or nothing with a note when they are no limits."""
        thresholds = Thresholds(*values)
        if thresholds.in_order:
            return {name: thresholds}
        listing = ", ".join(f"{value:.6g}" for value in values)
        self[f"thresholds/{name}"] = f"not in order: {listing}"
        return {}

    def _within(
        self, name: str, value: float, span: tuple[float, float], unit: str
    ) -> float | None:
        if span[0] <= value <= span[1]:
            return value
        self[name] = f"{value:.6g} {unit} is not credible"
        return None


def sample(module: Module, device: str, incarnation: Hashable, now_ns: int) -> Sample:
    """A module's reading as what all counter sources give; base units, lanes from 0."""
    gauges: dict[str, float | None] = {
        "module_temperature": module.temperature,
        "module_voltage": module.voltage,
    }
    for lane in module.lanes:
        gauges[f"rx_power/{lane.number}"] = lane.rx_power
        gauges[f"tx_power/{lane.number}"] = lane.tx_power
        gauges[f"tx_bias/{lane.number}"] = lane.tx_bias
    gauges |= {f"pre_fec_ber/{lane}": value for lane, value in module.ber.items()}
    info = {
        "standard": module.standard,
        "form": module.form,
        "vendor": module.vendor,
        "part": module.part,
        "revision": module.revision,
        "serial": module.serial,
        "firmware": module.firmware,
    }
    return Sample(
        source="module",
        device=device,
        incarnation=(incarnation, module.vendor, module.serial),
        at_ns=now_ns,
        gauges={name: value for name, value in gauges.items() if value is not None},
        flags=module.flags,
        info={name: value for name, value in info.items() if value},
        skipped=dict(module.skipped),
    )
