"""Is a quantity falling, and when will it reach its limit? For many links at once. Pure.

Robust by construction. A quantity is looked at on several scales; on each, blocks of time have one
value, the median of the medians of the next finer scale, so a bad reading or a burst changes
nothing. A trend is called when of the last six differences between blocks at least three are falls
that stand out from this link's own noise, none is such a rise, and no single fall makes up most of
the whole: a step, which is a repair or a moved cable, is no trend. The pace is the mean fall since
the first (the idea of Theil–Sen: many pairs vote, outliers do not), the rest follows by division.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ARRAYS = ("parts", "diffs", "last", "noise", "blocks", "pace", "steps", "age")

LOOK = 6
"""Differences between blocks that are looked at."""


@dataclass(frozen=True, slots=True)
class TrendRules:
    """Parameters.

    Attributes:
        parts: how many blocks of the finer scale make one; the first is of windows. With windows of
            5 min: 5 min, 15 min, 2 h, 1 day.
        noise: a fall counts from this many times the link's mean absolute difference on.
        floor: and from this many units (dB) on.
        falls: that many of `LOOK` have to count.
        largest: no single one may be more than this share of the whole fall.
        wander: the whole fall exceeds this many times the noise of the next coarser scale, once
            that is known: what a link does within hours anyway is no trend of minutes.
        least: the whole fall in dB, by scale: less is what temperature and polarization do.
        settle: blocks before the noise of a scale is known.
        memory: weight of a new difference in the noise, in which it counts for at most twice the
            noise: a trend must not pass for noise before it is over.
        step_db, step_noise: a single fall of this much is a step down.
        step_memory: blocks after which steps are forgotten, if there was no other.
    """

    parts: tuple[int, ...] = (1, 3, 8, 12)
    noise: float = 3.0
    floor: float = 0.02
    falls: int = 3
    largest: float = 0.6
    wander: float = 4.0
    settle: int = 8
    memory: float = 0.02
    least: tuple[float, ...] = (0.6, 0.6, 0.5, 0.45)
    step_db: float = 0.5
    step_noise: float = 6.0
    step_memory: int = 50


@dataclass(slots=True)
class _Scale:
    """One scale of all links."""

    parts: Array
    """parts × links: the finer blocks of the block that is being filled."""
    filled: int
    diffs: Array
    """LOOK × links, oldest first: fall from block to block, NaN unknown."""
    last: Array
    noise: Array
    blocks: Array
    """How many differences the noise was made of."""
    pace: Array
    """Fall per block while a trend is on; 0: none."""
    steps: Array
    """Steps down since the last step up."""
    age: Array
    """Blocks since the last step down."""


@dataclass(slots=True)
class Trend:
    """One quantity of many links, on all scales.

    Attributes:
        links: how many.
        rules: parameters.
    """

    links: int
    rules: TrendRules = field(default_factory=TrendRules)
    _scales: list[_Scale] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self._scales:
            n = self.links
            self._scales = [
                _Scale(
                    np.full((parts, n), np.nan),
                    0,
                    np.full((LOOK, n), np.nan),
                    np.full(n, np.nan),
                    np.zeros(n),
                    np.zeros(n),
                    np.zeros(n),
                    np.zeros(n),
                    np.zeros(n),
                )
                for parts in self.rules.parts
            ]

    def step(self, value: Array) -> None:
        """Take one window's values (shape: links); NaN: not known."""
        coarse = [*self._scales[1:], None]
        for scale, coarser, least in zip(self._scales, coarse, self.rules.least, strict=True):
            scale.parts[scale.filled] = value
            scale.filled += 1
            if scale.filled < scale.parts.shape[0]:
                return
            scale.filled = 0
            value = _median(scale.parts)
            self._advance(scale, coarser, value, least)

    def windows_left(self, margin: Array, ahead: tuple[float, ...]) -> Array:
        """Windows until ``margin`` (≥ 0) is used up at the pace of the quickest trend; inf: none.

        ``ahead``: by scale: a trend counts when its end is less than this many of its own blocks
        away: what is further off is not foreseen by six blocks.
        """
        left = np.full(self.links, np.inf)
        length = 1
        for scale, reach in zip(self._scales, ahead, strict=True):
            length *= scale.parts.shape[0]
            with np.errstate(divide="ignore", invalid="ignore"):
                blocks = np.where(scale.pace > 0, margin / scale.pace, np.inf)
            left = np.where(blocks < reach, np.fmin(left, blocks * length), left)
        return left

    def falling(self) -> NDArray[np.bool_]:
        """Whether it falls on any scale."""
        found = np.zeros(self.links, bool)
        for scale in self._scales:
            found |= scale.pace > 0
        return found

    def level(self, scale: int) -> Array:
        """The value of the last whole block; NaN: none yet."""
        return self._scales[scale].last

    def _advance(self, scale: _Scale, coarser: _Scale | None, value: Array, least: float) -> None:
        rules = self.rules
        fall = scale.last - value
        scale.last = np.where(np.isnan(value), scale.last, value)
        scale.diffs[:-1] = scale.diffs[1:]
        scale.diffs[-1] = fall
        # Judged by the noise before: a fall must not raise its own bar.
        bar = np.maximum(rules.floor, rules.noise * scale.noise)
        with np.errstate(invalid="ignore"):
            falls, rises = scale.diffs >= bar, scale.diffs <= -bar
        known = np.where(np.isnan(scale.diffs), 0.0, scale.diffs)
        first = np.where(falls.any(0), falls.argmax(0), LOOK)
        since = np.arange(LOOK)[:, None] >= first
        total = (known * since).sum(0)
        on = (
            (falls.sum(0) >= rules.falls)
            & ~rises.any(0)
            & (known.max(0) <= rules.largest * total)
            & (total >= least)
            & (scale.blocks >= rules.settle)
        )
        if coarser is not None:
            known_noise = np.where(coarser.blocks >= rules.settle, coarser.noise, 0.0)
            on &= total >= rules.wander * known_noise
        scale.pace = np.where(on, total / np.maximum(LOOK - first, 1), 0.0)
        self._stairs(scale, fall)
        size = np.abs(fall)
        new = ~np.isnan(size)
        weight = np.maximum(rules.memory, 1 / (scale.blocks + 1))
        most = np.maximum(rules.floor, 2 * scale.noise)
        clipped = np.where(scale.blocks < rules.settle, size, np.fmin(size, most))
        scale.noise = np.where(new, scale.noise + weight * (clipped - scale.noise), scale.noise)
        scale.blocks = scale.blocks + new

    def _stairs(self, scale: _Scale, fall: Array) -> None:
        """Count steps down; a step up, or a long time without any, begins anew."""
        rules = self.rules
        bar = np.maximum(rules.step_db, rules.step_noise * scale.noise)
        with np.errstate(invalid="ignore"):
            # One step may fall into two blocks, and the median between them.
            down = (fall >= bar) & (scale.blocks >= rules.settle) & (scale.age >= 3)
            up = fall <= -bar / 2
        scale.age = np.where(down, 0.0, scale.age + 1)
        scale.steps = np.where(up | (scale.age > rules.step_memory), 0.0, scale.steps + down)

    def steps(self, scales: Sequence[int]) -> Array:
        """Steps down on the scale with most of them."""
        return np.asarray(np.max([self._scales[i].steps for i in scales], axis=0))

    def disturb(self, links: NDArray[np.bool_]) -> None:
        """The links were retrained: what lies between before and after is no trend."""
        if links.any():
            for scale in self._scales:
                scale.last = np.where(links, np.nan, scale.last)
                scale.parts[:, links] = np.nan

    def save(self) -> dict[str, Any]:
        """A JSON document; NaN as null."""
        return {
            "scales": [
                {
                    "filled": scale.filled,
                    **{name: plain(getattr(scale, name)) for name in _ARRAYS},
                }
                for scale in self._scales
            ]
        }

    def restore(self, document: dict[str, Any]) -> None:
        """Take over what `save` gave for the same links and rules.

        Raises:
            KeyError, TypeError, ValueError: not such a document; nothing is changed.
        """
        fresh = Trend(self.links, self.rules)._scales  # noqa: SLF001 (our own)
        if len(document["scales"]) != len(fresh):
            raise ValueError("another number of scales")
        for scale, saved in zip(fresh, document["scales"], strict=True):
            for name in _ARRAYS:
                values = np.array(saved[name], dtype=float)
                if values.shape != getattr(scale, name).shape:
                    raise ValueError(f"{name} has shape {values.shape}")
                if np.isinf(values).any():
                    raise ValueError(f"{name} is not finite")
                setattr(scale, name, values)
            scale.filled = int(saved["filled"])
            if not 0 <= scale.filled < scale.parts.shape[0]:
                raise ValueError(f"filled {scale.filled}")
        self._scales = fresh


def _median(parts: Array) -> Array:
    """Median of each column's known values; NaN when fewer than half are known."""
    many = parts.shape[0]
    if many == 1:
        return np.array(parts[0])
    count = many - np.isnan(parts).sum(0)
    ordered = np.sort(parts, axis=0)  # NaN sorts last
    columns = np.arange(parts.shape[1])
    low = ordered[np.maximum(count - 1, 0) // 2, columns]
    high = ordered[np.minimum(count // 2, many - 1), columns]
    return np.where(2 * count >= many, (low + high) / 2, np.nan)


def plain(values: NDArray[Any]) -> list[Any]:
    """For JSON: NaN is null."""
    return (
        [None if x != x else x for x in values.tolist()]
        if values.ndim == 1
        else [plain(x) for x in values]
    )
