"""Delays in half octaves: counts from 0.3 µs to 3 s. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BUCKETS = 48
_SHIFT = 14
"""Bucket 0 ends at 2^8 ns: what is shorter is nothing."""


def bucket(ns: int) -> int:
    """Where a delay belongs; half an octave each (a value is known to a factor of √2)."""
    if ns < 256:
        return 0
    bits = ns.bit_length()
    return min(2 * bits + (ns >> bits - 2 & 1) - _SHIFT - 3, BUCKETS - 1)


def upper_ns(index: int) -> int:
    """The end of a bucket."""
    if index == 0:
        return 256
    octave, half = divmod(index + _SHIFT + 3, 2)
    start: int = 1 << octave - 1
    return start + (half + 1) * (start >> 1)


def total(parts: Iterable[Sequence[int]]) -> list[int]:
    """The sum of histograms."""
    return [sum(column) for column in zip(*parts, strict=True)]


def quantile_ns(counts: Sequence[int], share: float) -> int | None:
    """The delay below which that share lies, straight within a bucket; None: nothing counted."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    seen = 0
    for index, count in enumerate(counts):
        if seen + count >= wanted and count:
            low = upper_ns(index - 1) if index else 0
            return round(low + (upper_ns(index) - low) * (wanted - seen) / count)
        seen += count
    return upper_ns(BUCKETS - 1)
