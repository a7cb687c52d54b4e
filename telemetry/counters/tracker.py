"""Absolute readings into exact increases and rates, with what is not exact said so. Pure.

A step between two readings of one counter is one of

* **rise**: the difference;
* **wrap** of a counter narrower than 64 bits: the value fell, and going on past its maximum would
  need an increase that is plausible;
* **reset**: the value fell to what can have been counted since the last reading. Of a narrow
  counter the increase is the new value, and what was counted between the last reading and the reset
  is lost. One of 64 bits may be a sum, and its new value what is left of one that lost a part (a
  driver adds up its queues, and some were closed): that counts nothing;
* **setback**: the value fell, but to more than can have been counted since (a sum lost a part, a
  driver corrected itself). It counts nothing: a million old errors must not pass for new ones;
* **leap**: the value rose by more than any hardware counts in the time (an underflow, a register
  that reads as all ones). It counts nothing, and is a new baseline;
* **saturated**: at its maximum, where the counter stays; how much more there was is unknown;
* **reborn**: another incarnation of the device; its counters are a new baseline.

All but rise and wrap make the counter inexact from then on, with the reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from telemetry.counters.types import WIDE, Bin, Sample, Shape

BURST = 1024
"""A fall to at most this many is a reset at any rate: a burst within one period."""
HASTE = 16
"""How many times its last rate a counter may reach and still be plausible."""
WRAP_SHARE = 16
"""A wrap may need at most this part of the counter's range at any rate."""
MAX_PER_S = 2**42
"""No hardware counts faster: 40 times the bytes of a link of 800 Gbit/s."""
LEAST_S = 1
"""Counters that a driver refreshes by itself rise in leaps: a leap is looked at as of so long."""
MAX_STEP = 2**56
"""No step is believed to be larger, however long it took: sums of some hundred fit in 64 bits."""
_NO_BASELINE = -1


class Step(NamedTuple):
    """What one counter did between two readings.

    Attributes:
        increase: at least so much was counted.
        interval_ns: between the readings of this counter.
        inexact: why it may have been more; empty: exact.
        fell: the value fell, and not by a wrap: what it shows may be older than the interval.
    """

    increase: int
    interval_ns: int
    inexact: str = ""
    fell: bool = False

    @property
    def per_s(self) -> float:
        """Rate over the interval."""
        return self.increase * 1e9 / self.interval_ns


@dataclass(frozen=True, slots=True)
class Update:
    """What one sample said beyond the one before.

    Attributes:
        sample: the sample.
        steps: canonical counter → step; absent on its first reading.
        histograms: canonical histogram → bins with the increase of each; absent when the bins
            themselves changed or fell.
        reborn: the device is another than at the last sample.
    """

    sample: Sample
    steps: Mapping[str, Step]
    histograms: Mapping[str, tuple[Bin, ...]]
    reborn: bool


@dataclass(slots=True)
class Total:
    """One counter since the tracker first saw it.

    Attributes:
        count: increases added up.
        inexact: the first reason for which the count may be too low; empty: it is exact.
        resets: falls, saturations excluded.
    """

    count: int = 0
    inexact: str = ""
    resets: int = 0
    value: int = 0
    at_ns: int = _NO_BASELINE
    rate: float = 0.0


@dataclass(slots=True)
class _Device:
    incarnation: Hashable
    at_ns: int
    totals: dict[str, Total] = field(default_factory=dict)
    histograms: dict[str, tuple[Bin, ...]] = field(default_factory=dict)


def step(last: Total, value: int, now_ns: int, shape: Shape = WIDE) -> Step:
    """What a counter did since `last`; pure arithmetic, see the module.

    Args:
        last: its value, time and rate at the last reading.
        value: now.
        now_ns: later than the last reading.
        shape: how it is kept.
    """
    interval = now_ns - last.at_ns
    most = min(MAX_STEP, int(MAX_PER_S * max(LEAST_S, interval / 1e9)))
    if value - last.value > most:
        return Step(0, interval, f"leap: from {last.value} to {value}")
    if value >= last.value and shape.width == WIDE.width:
        return Step(value - last.value, interval)
    if shape.saturates and value >= shape.maximum:
        return Step(max(value - last.value, 0), interval, f"saturated at {shape.maximum}")
    plausible = max(BURST, int(HASTE * last.rate * interval / 1e9))
    wraps = shape.width < WIDE.width and not shape.saturates
    if value >= last.value:
        unseen = ""
        if wraps and plausible > shape.maximum:
            unseen = "may have wrapped unseen"
        elif wraps and value == last.value == shape.maximum:
            unseen = f"stuck at {value}"
        return Step(value - last.value, interval, unseen)
    if wraps:
        onward = value + shape.maximum + 1 - last.value
        if onward <= min(most, max(plausible, (shape.maximum + 1) // WRAP_SHARE)):
            return Step(onward, interval)
    fell = f"fell from {last.value} to {value}"
    if value <= plausible:
        # Only counters of 64 bits are added up by whoever reads them.
        since = value if shape.width < WIDE.width else 0
        return Step(since, interval, f"reset: {fell}", fell=True)
    return Step(0, interval, f"set back: {fell}", fell=True)


class Tracker:
    """Follows any number of devices and sources."""

    def __init__(self) -> None:
        self._devices: dict[tuple[str, str], _Device] = {}

    def take(self, sample: Sample) -> Update:
        """Take a sample.

        Raises:
            ValueError: it is not later than the last one of that source and device.
        """
        key = (sample.source, sample.device)
        device = self._devices.get(key)
        if device is None:
            device = self._devices[key] = _Device(sample.incarnation, sample.at_ns)
        elif sample.at_ns <= device.at_ns:
            raise ValueError(f"{key}: sample of {sample.at_ns} after one of {device.at_ns}")
        reborn = device.incarnation != sample.incarnation
        if reborn:
            device.incarnation = sample.incarnation
            device.histograms.clear()
            for old in device.totals.values():
                old.resets += 1
                old.inexact = old.inexact or "the device was reborn"
                # Not zero: what firmware counts may outlive its driver.
                old.at_ns = _NO_BASELINE
        steps: dict[str, Step] = {}
        for name, value in sample.values.items():
            total = device.totals.get(name)
            if total is None:
                total = device.totals[name] = Total()
                if _full(value, sample.shapes.get(name, WIDE)):
                    total.inexact = f"saturated at {value}"
            if total.at_ns != _NO_BASELINE:
                steps[name] = _count(total, value, sample.at_ns, sample.shapes.get(name, WIDE))
            total.value, total.at_ns = value, sample.at_ns
        histograms = {
            name: grown
            for name, bins in sample.histograms.items()
            if (grown := _grown(device.histograms.get(name), bins)) is not None
        }
        device.histograms.update(sample.histograms)
        device.at_ns = sample.at_ns
        return Update(sample, steps, histograms, reborn)

    def totals(self, source: str, device: str) -> Mapping[str, Total]:
        """Counters of a source and device since first seen; empty when it never was."""
        known = self._devices.get((source, device))
        return known.totals if known is not None else {}

    def forget(self, source: str, device: str) -> None:
        """Forget a device that is gone for good."""
        self._devices.pop((source, device), None)


def _count(total: Total, value: int, now_ns: int, shape: Shape) -> Step:
    made = step(total, value, now_ns, shape)
    total.count += made.increase
    total.rate = made.per_s
    if made.inexact:
        total.inexact = total.inexact or made.inexact
        total.resets += value < total.value
    return made


def _full(value: int, shape: Shape) -> bool:
    return shape.saturates and value >= shape.maximum


def _grown(before: tuple[Bin, ...] | None, bins: tuple[Bin, ...]) -> tuple[Bin, ...] | None:
    if before is None or len(before) != len(bins):
        return None
    out = []
    for old, new in zip(before, bins, strict=True):
        if (old.low, old.high) != (new.low, new.high) or new.count < old.count:
            return None
        out.append(Bin(new.low, new.high, new.count - old.count))
    return tuple(out)
