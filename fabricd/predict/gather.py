"""Polls of a window → what the predictor takes: medians of readings, sums of counts. Pure.

Speaks the canonical names of `telemetry.counters.vocabulary`; counts come as differences, which the
counters' tracker makes (resets, wraps and driver reloads are its business). Without NumPy: the
daemon gathers, a process of its own judges (`fabricd.predict.child`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from telemetry.counters.types import Bin

TAIL_FROM = 8
"""Of the 15 symbols that RS(544,514) corrects: from here on a codeword is of the tail."""

_MARKS = ("ecn_marked", "cnp_received")
_AGAIN = ("retransmits", "out_of_sequence", "packet_seq_err")


Rows = dict[str, list[float]]
"""Field of `fabricd.predict.risk.Window` → value by link; NaN: not known; ``up`` is 0 or 1."""


@dataclass(slots=True)
class _Link:
    readings: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    down: bool = False


class Gather:
    """Collects one window of all links; `window` gives it and begins the next.

    A window in which a link had no carrier for a moment, was in maintenance or flapped is no
    measurement of its level (`Window.up`). The bit rate is the link's speed times the time that the
    polls of its FEC counters span.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._links = {name: _Link() for name in self._names}
        self._limits: dict[str, tuple[float, float]] = {}

    def read(self, link: str, gauges: Mapping[str, float]) -> None:
        """Gauges of a poll; lanes as ``rx_power/0`` in W, bias in A, temperature in °C.

        A lane that reads no light at all is left out: it is not used, or not measured. The others
        have a level.
        """
        weakest: dict[str, list[float]] = {}
        for name, value in gauges.items():
            quantity = name.split("/")[0]
            if math.isfinite(value) and (value > 0 or quantity == "module_temperature"):
                weakest.setdefault(quantity, []).append(value)
        for name, pick in (
            ("rx_power", min),
            ("tx_power", min),
            ("tx_bias", max),
            ("module_temperature", max),
        ):
            if name in weakest:
                value = pick(weakest[name])
                self._links[link].readings.setdefault(name, []).append(value)

    def count(self, link: str, more: Mapping[str, int], seconds: float) -> None:
        """Differences of counters over ``seconds``."""
        row = self._links[link]
        row.seconds += seconds if "fec_corrected_bits" in more else 0.0
        for name, value in more.items():
            row.counts[name] = row.counts.get(name, 0.0) + value

    def histogram(self, link: str, more: Iterable[Bin]) -> None:
        """Differences of the bins of ``fec_errors``."""
        tail = sum(each.count for each in more if each.low >= TAIL_FROM)
        row = self._links[link]
        row.counts["tail"] = row.counts.get("tail", 0.0) + tail

    def out(self, link: str, flaps: int = 0) -> None:
        """The link was down, or somebody is at work on it; with ``flaps`` carrier losses."""
        row = self._links[link]
        row.down = True
        row.counts["flaps"] = row.counts.get("flaps", 0.0) + flaps

    def limits(self, link: str, rx_low_w: float | None, hot_celsius: float | None) -> None:
        """The maker's low alarm of received light and high warning of temperature."""
        low = _dbm(rx_low_w) if rx_low_w is not None else math.nan
        self._limits[link] = (low, math.nan if hot_celsius is None else hot_celsius)

    def window(self, speeds: Mapping[str, float]) -> Rows:
        """The window that ends now; ``speeds``: bit/s by link, absent: not known.

        `fabricd.predict.risk.Window.of` takes it.
        """
        rows = [self._links[name] for name in self._names]
        self._links = {name: _Link() for name in self._names}

        def counted(*names: str) -> list[float]:
            found = []
            for row in rows:
                known = [row.counts[name] for name in names if name in row.counts]
                found.append(sum(known) if known else math.nan)
            return found

        def middle(name: str) -> list[float]:
            return [median(row.readings.get(name) or [math.nan]) for row in rows]

        limits = [self._limits.get(name, (math.nan, math.nan)) for name in self._names]
        bits = [
            speeds[name] * row.seconds if name in speeds and row.seconds else math.nan
            for name, row in zip(self._names, rows, strict=True)
        ]
        flaps = _known(counted("flaps"))
        return {
            "up": [float(not row.down and not n) for row, n in zip(rows, flaps, strict=True)],
            "bits": bits,
            "errors": counted("fec_corrected_bits"),
            "tail": counted("tail"),
            "lost": counted("fec_uncorrectable"),
            "rx_dbm": [_dbm(x) for x in middle("rx_power")],
            "tx_dbm": [_dbm(x) for x in middle("tx_power")],
            "bias": middle("tx_bias"),
            "celsius": middle("module_temperature"),
            "retransmits": _known(counted(*_AGAIN)),
            "marks": _known(counted(*_MARKS)),
            "flaps": flaps,
            "rx_low_dbm": [low for low, _ in limits],
            "hot_celsius": [hot for _, hot in limits],
        }


def _known(values: Sequence[float]) -> list[float]:
    """0 for what is not known."""
    return [0.0 if math.isnan(value) else value for value in values]


def _dbm(watts: float) -> float:
    """NaN for no light: a laser that is off is no level."""
    return 10 * math.log10(watts * 1e3) if watts > 0 else math.nan
