"""The failure risk of each link, with the evidence named. Pure.

Fed once a window (5 minutes) with what was read of every link in it; many links at once, so that
the simulator runs the very code that the daemon runs. Each rule of `RULES` gives a strength from 0
to 1; they combine as independent reasons do: risk = 1 − Π(1 − strength). From `Rules.alarm` on a
link is *named*. The weak rules together stay below it: they explain and prefer, but never accuse.

A link without FEC counters is judged by its light alone, a copper cable by FEC alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabricd.predict.signal import Array, poisson_tail, q_of_ber
from fabricd.predict.slope import TemperatureCompensation
from fabricd.predict.trend import Trend, TrendRules, plain

Flags = NDArray[np.bool_]

LASER = TrendRules(parts=(3, 8, 12), least=(0.6, 0.5, 0.45))
"""A laser ages by days: quarters of an hour, 2 h, 1 day."""
_DAY = -1
"""The scale of days, the last."""

RULES: dict[str, tuple[float, str]] = {
    "fec_trend": (0.7, "signal quality falls steadily; what is in hand is used up soon"),
    "fec_limit": (0.6, "more bit errors than the standard allows, and more than the link had"),
    "fec_steps": (0.6, "signal quality fell by steps, twice and more; little is left in hand"),
    "fec_bursts": (0.6, "uncorrectable bursts, again and again for more than an hour"),
    "laser_trend": (0.6, "the laser wears out: bias rises or its light falls, limit in sight"),
    "light_trend": (0.6, "received light falls steadily towards its limit; no FEC counters"),
    "light_falls": (0.15, "received light falls steadily"),
    "fec_tail": (0.1, "codewords near the end of what FEC corrects, more than the link is used to"),
    "flaps": (0.15, "more flaps in a day than this link is used to"),
    "retransmits": (0.1, "retransmissions that no congestion explains"),
    "hot": (0.1, "warmer than its maker's warning limit"),
}
"""Evidence → (strength, meaning)."""


_ARRAYS = (
    *("risk", "named", "_bursts", "_burst_now", "_calm", "_usual", "_excess"),
    *("_flaps_day", "_flaps_month", "_again", "_best", "_lately"),
)


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters; each with its reason.

    Attributes:
        ber_limit: what IEEE 802.3 allows before RS(544,514); a little above frames are lost.
        ahead: blocks of a scale (5 min, 15 min, 2 h, 1 day) that its trend foretells: of six seen,
            about twice as many are believed.
        beyond_db: of `fec_limit`: by a tenth more errors than allowed.
        fallen_db: of `fec_limit`: below what the link had lately (its best level, forgotten within
            days): one that lives near the limit is no news.
        steps, hand: of `fec_steps`: one may be a moved cable; this share of what was in hand is
            left.
        mixed_db: a window with uncorrectable codewords and this much in hand was a mixture.
        warm_quality, warm_bias: what a degree may do (dB): receivers lose up to 0.05; bias rises by
            up to 2 %. A link's own slope is learnt within these: what dies must not pass for warm.
        burst_blocks, burst_of: quarters of an hour with bursts, of how many: longer than any work
            on a neighbouring cable.
        laser_db: what a laser has in hand from its first day on: bias + 50 % (GR-468-CORE) is
            1.76 dB; light − 3 dB.
        flaps, flaps_times: in a day at least, and this many times the link's own mean.
        tail: decades of the CUSUM: a few windows ten times worse than usual.
        alarm, clear: named from here on, until a day without more than that: weights do not flap.
    """

    window_s: int = 300
    ber_limit: float = 2.4e-4
    ahead: tuple[float, ...] = (10.0, 10.0, 12.0, 16.0)
    beyond_db: float = 0.03
    fallen_db: float = 0.8
    steps: int = 2
    hand: float = 0.4
    mixed_db: float = 0.3
    warm_quality: tuple[float, float] = (-0.05, 0.0)
    warm_bias: tuple[float, float] = (0.0, 0.086)
    burst_blocks: int = 5
    burst_of: int = 16
    bias_db: float = 1.76
    light_db: float = 3.0
    flaps: float = 4.0
    flaps_times: float = 10.0
    retransmits: float = 300.0
    tail: float = 5.0
    alarm: float = 0.5
    clear: float = 0.3


@dataclass(frozen=True, slots=True)
class Window:
    """What was read of all links in one window; shape (links,), NaN: not known.

    Attributes:
        up: carrier was there all the time and nobody was at work on it.
        bits: received in it (line rate × seconds); errors: corrected bits; tail: codewords with at
            least half of the correctable symbols wrong; lost: uncorrectable codewords.
        rx_dbm: of the weakest lane; tx_dbm, bias: of the own laser, the weakest, the highest (any
            unit); celsius.
        rx_low_dbm, hot_celsius: the maker's low alarm and high warning.
    """

    up: Flags
    bits: Array
    errors: Array
    tail: Array
    lost: Array
    rx_dbm: Array
    tx_dbm: Array
    bias: Array
    celsius: Array
    retransmits: Array
    marks: Array
    flaps: Array
    rx_low_dbm: Array
    hot_celsius: Array

    @classmethod
    def of(cls, rows: Mapping[str, Sequence[float | None]]) -> Window:
        """From what `fabricd.predict.gather.Gather.window` gives; None is NaN.

        Raises:
            KeyError, TypeError, ValueError: not such rows.
        """
        arrays = {f.name: np.array(rows[f.name], dtype=float) for f in fields(cls)}
        if len({array.shape for array in arrays.values()}) != 1:
            raise ValueError("rows of different lengths")
        return cls(**arrays | {"up": arrays["up"] == 1})


class Predictor:
    """State of all links; see the module.

    Attributes:
        names: the links, in the order of every array.
        risk: after the last window, 0 to 1.
        strengths: rule → strength by link.
        named: links that are, with hysteresis.
        left_s: seconds until the limit by the quickest trend; inf: none.
    """

    def __init__(self, names: Sequence[str], rules: Rules | None = None) -> None:
        self.names = tuple(names)
        self.rules = rules or Rules()
        self._day = 86_400 / self.rules.window_s
        n = len(self.names)
        self.risk: Array = np.zeros(n)
        self.strengths: dict[str, Array] = {}
        self.named: Flags = np.zeros(n, bool)
        self.left_s: Array = np.full(n, np.inf)
        self._quality, self._light = Trend(n), Trend(n)
        self._bias, self._sent = Trend(n, LASER), Trend(n, LASER)
        self._bias_compensation, self._quality_compensation = (
            TemperatureCompensation(n),
            TemperatureCompensation(n),
        )
        self._limit = float(q_of_ber(np.array(self.rules.ber_limit)))
        self._bursts = np.zeros((n, self.rules.burst_of), bool)
        self._burst_now = np.zeros(n, bool)
        self._count = 0
        self._flaps_day, self._flaps_month = np.zeros(n), np.zeros(n)
        self._again = np.zeros(n)
        self._calm, self._usual, self._excess = np.zeros(n), np.zeros(n), np.zeros(n)
        self._lately = np.full(n, np.nan)
        self._best = np.full((n, 3), np.nan)
        """Quality, −bias and light in their first day: what they had."""

    def step(self, seen: Window) -> Array:
        """Take one window; returns the risk by link."""
        rules, up = self.rules, seen.up
        quality = self._quality_of(seen)
        light = np.where(up, seen.rx_dbm, np.nan)
        used = self._laser(seen)
        # Retraining puts quality and light on another level.
        retrained = np.nan_to_num(seen.flaps) > 0
        self._quality.disturb(retrained)
        self._light.disturb(retrained)
        for trend, value in (
            (self._quality, quality),
            (self._light, light),
            (self._bias, -used),
            (self._sent, np.where(up, seen.tx_dbm, np.nan)),
        ):
            trend.step(value)
        self._count += 1
        self._remember()
        left = self._left(seen)
        self.left_s = left["any"] * rules.window_s
        hand, had = self._margin(quality)
        with np.errstate(invalid="ignore"):
            limit = (hand < -rules.beyond_db) & (
                self._lately - self._quality.level(1) > rules.fallen_db
            )
            steps = (self._quality.steps((1, 2)) >= rules.steps) & (hand < rules.hand * had)
        on: dict[str, Flags] = {
            "fec_trend": np.isfinite(left["fec"]),
            "fec_limit": limit,
            "fec_steps": steps,
            "fec_bursts": self._burst(seen),
            "laser_trend": np.isfinite(left["laser"]),
            "light_trend": np.isfinite(left["light"]) & np.isnan(quality) & up,
            "light_falls": self._light.falling(),
            "fec_tail": self._tail(seen),
            "flaps": self._flap(seen),
            "retransmits": self._retransmit(seen),
            "hot": seen.celsius > seen.hot_celsius,
        }
        self.strengths = {name: np.where(flag, RULES[name][0], 0.0) for name, flag in on.items()}
        spared = np.ones(len(self.names))
        for strength in self.strengths.values():
            spared *= 1 - strength
        self.risk = 1 - spared
        # Windows without a reason to be named.
        self._calm = np.where(self.risk >= rules.clear, 0.0, self._calm + 1)
        alarm = self.risk >= rules.alarm
        self.named = alarm | (self.named & (self._calm <= self._day))
        return self.risk

    def evidence(self, link: int) -> dict[str, str]:
        """Rule → what it says of the link, strongest first."""
        found = {name: row[link] for name, row in self.strengths.items() if row[link] > 0}
        return {name: RULES[name][1] for name in sorted(found, key=lambda x: -found[x])}

    def _quality_of(self, seen: Window) -> Array:
        """Q in dB of a window, at the link's usual temperature."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ber = np.where(seen.bits > 0, (seen.errors + 0.5) / seen.bits, np.nan)
            quality = np.where(seen.up, q_of_ber(ber), np.nan)
            # Bursts mix two levels; near the limit uncorrectable codewords are part of the level.
            mixed = (seen.lost > 0) & (quality > self._limit + self.rules.mixed_db)
        # What a link at its limit loses is explained by its level; with much in hand, by nothing.
        self._burst_now |= mixed
        quality = np.where(mixed, np.nan, quality)
        return self._quality_compensation.explain(quality, seen.celsius, self.rules.warm_quality)

    def _laser(self, seen: Window) -> Array:
        """Bias in dB, at the laser's usual temperature."""
        with np.errstate(invalid="ignore", divide="ignore"):
            bias = np.where(seen.bias > 0, 10 * np.log10(seen.bias), np.nan)
        return self._bias_compensation.explain(bias, seen.celsius, self.rules.warm_bias)

    def _remember(self) -> None:
        """The best day is what a link had; the best level, forgotten slowly, what it had lately."""
        level = self._quality.level(1)
        slow = self._lately + (level - self._lately) / self._day
        self._lately = np.fmax(level, np.where(np.isnan(slow), self._lately, slow))
        for i, trend in enumerate((self._quality, self._bias, self._sent)):
            self._best[:, i] = np.fmax(self._best[:, i], trend.level(_DAY))

    def _left(self, seen: Window) -> dict[str, Array]:
        rules = self.rules
        fec = self._time(self._quality, self._limit)
        light = self._time(self._light, seen.rx_low_dbm)
        laser = np.minimum(
            self._time(self._bias, self._best[:, 1] - rules.bias_db),
            self._time(self._sent, self._best[:, 2] - rules.light_db),
        )
        return {
            "fec": fec,
            "light": light,
            "laser": laser,
            "any": np.minimum(np.minimum(fec, light), laser),
        }

    def _time(self, trend: Trend, limit: Array | float) -> Array:
        margin = np.maximum(trend.level(0) - limit, 0.0)
        reach = self.rules.ahead[-len(trend.rules.parts) :]
        return trend.windows_left(np.where(np.isnan(margin), np.inf, margin), reach)

    def _margin(self, quality: Array) -> tuple[Array, Array]:
        """What is in hand by the last quarter of an hour, and was on the best day; dB."""
        now = np.where(np.isnan(quality), np.nan, self._quality.level(1))
        return now - self._limit, self._best[:, 0] - self._limit

    def _burst(self, seen: Window) -> Flags:
        # Without a ratio there is no level: every burst counts.
        self._burst_now |= seen.up & (seen.lost > 0) & ~(seen.bits > 0)
        if self._count % 3 == 0:
            self._bursts[:, :-1] = self._bursts[:, 1:]
            self._bursts[:, -1] = self._burst_now
            self._burst_now = np.zeros(len(self.names), bool)
        return np.asarray(self._bursts.sum(1) >= self.rules.burst_blocks)

    def _tail(self, seen: Window) -> Flags:
        """CUSUM of the tail's excess (decades) over what the mean ratio explains and its own mean.

        Errors that come in bursts; each link always has some of those.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            due = poisson_tail(5440 * seen.errors / seen.bits, 8) * seen.bits / 5440
            excess = np.where(
                seen.up, np.log10((np.maximum(seen.tail, 0) + 10) / (due + 10)), np.nan
            )
        known = ~np.isnan(excess)
        excess = np.where(known, excess, self._usual)
        self._excess = np.clip(self._excess + excess - self._usual - 0.3, 0.0, 20.0)
        self._usual = self._usual + (excess - self._usual) / (2 * self._day)
        return np.asarray(self._excess > self.rules.tail)

    def _flap(self, seen: Window) -> Flags:
        """Flaps decayed over a day, against the same over a month."""
        rules = self.rules
        day = self._day
        came = np.nan_to_num(seen.flaps)
        self._flaps_day = self._flaps_day * (1 - 1 / day) + came
        self._flaps_month = self._flaps_month * (1 - 1 / (30 * day)) + came
        used_to = (self._flaps_month - self._flaps_day) / 30
        return np.asarray(
            (self._flaps_day >= rules.flaps) & (self._flaps_day >= rules.flaps_times * used_to)
        )

    def _retransmit(self, seen: Window) -> Flags:
        """CUSUM of retransmissions in windows without congestion marks to speak of."""
        again, marks = np.nan_to_num(seen.retransmits), np.nan_to_num(seen.marks)
        unexplained = np.where(again > marks, again - marks - 10.0, -10.0)
        self._again = np.clip(self._again + unexplained, 0.0, 10 * self.rules.retransmits)
        return np.asarray(self._again > self.rules.retransmits)

    def save(self) -> dict[str, Any]:
        """A JSON document by which `restore` goes on."""
        return {
            "names": list(self.names),
            "trends": [x.save() for x in (self._quality, self._light, self._bias, self._sent)],
            "arrays": {
                name: plain(values.astype(float)) for name, values in self._arrays().items()
            },
            "slopes": [
                plain(self._bias_compensation.state),
                plain(self._quality_compensation.state),
            ],
            "count": self._count,
        }

    def restore(self, document: dict[str, Any]) -> None:
        """Take over what `save` gave for the same links.

        Raises:
            KeyError, TypeError, ValueError: not such a document; nothing is changed.
        """
        if list(document["names"]) != list(self.names):
            raise ValueError("other links")
        fresh = Predictor(self.names, self.rules)
        pairs = zip(
            (fresh._quality, fresh._light, fresh._bias, fresh._sent),
            document["trends"],
            strict=True,
        )
        for trend, saved in pairs:
            trend.restore(saved)
        for name, old in fresh._arrays().items():
            values = np.array(document["arrays"][name], dtype=float)
            if values.shape != old.shape or np.isinf(values).any():
                raise ValueError(f"{name} is not what it should be")
            setattr(fresh, name, values.astype(old.dtype))
        for slope, saved in zip(
            (fresh._bias_compensation, fresh._quality_compensation), document["slopes"], strict=True
        ):
            slope.restore(saved)
        fresh._count = int(document["count"])
        for name in (
            "_bias_compensation",
            "_quality_compensation",
            "_quality",
            "_light",
            "_bias",
            "_sent",
            "_count",
            *_ARRAYS,
        ):
            setattr(self, name, getattr(fresh, name))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in _ARRAYS}
