"""The points that a path's line is made of. Pure."""

from __future__ import annotations

from typing import NamedTuple

from clocksync.fit import FEWEST, Cloud
from clocksync.pair import SECOND, Rules
from clocksync.points import Points


class Window(NamedTuple):
    """The newest points of both directions."""

    origin: int
    """Our clock: the middle of the window."""
    base: int
    """Whole nanoseconds that were taken off the clocks' difference."""
    length_ns: int
    since_ns: int
    """Our clock: from here on both directions have points,"""
    till_ns: int
    """and to here."""
    clouds: tuple[Cloud, Cloud]
    nu: tuple[float, float]
    """Share of each cloud that makes its edge (`clocksync.fit.fit`)."""
    kept: tuple[float, float]
    """Share of the trains that the filter kept."""


def newest(
    ways: tuple[Points, Points], now_ns: int, length_ns: int, rules: Rules, *, known: bool
) -> Window | None:
    """The window as of now.

    Args:
        ways: points of either direction, our packets' first.
        now_ns: our clock.
        length_ns: of a window that has points enough; it grows until it has.
        rules: how many these are, and what share of them makes an edge.
        known: whether there is a line, of not long ago. A first one takes longer.

    Returns:
        None: too few points.
    """
    out, back = ways
    length = length_ns
    while True:
        since = now_ns - length
        upper, lower = out.since(since), back.since(since)
        if min(len(upper[0]), len(lower[0])) >= rules.enough or length >= rules.longest_ns:
            break
        length = min(2 * length, rules.longest_ns)
    if min(len(upper[0]), len(lower[0])) < FEWEST:
        return None
    first, last = max(upper[0][0], lower[0][0]), min(upper[0][-1], lower[0][-1])
    if not known and last - first < rules.first_ns:
        return None
    origin = now_ns - length // 2
    base = int(upper[1].min()) // 2 + int(lower[1].max()) // 2
    over, under = (
        Cloud((at - origin) / SECOND, (apart - base).astype(float)) for at, apart in (upper, lower)
    )
    kept = out.rate(first), back.rate(first)
    # The fewer trains met no queue, the fewer of those that passed for it did. And a window that
    # grew is to find packets that are rarer, not more of the same.
    part = rules.nu * rules.window_ns / length_ns
    nu = (max(rules.least_nu, part * kept[0]), max(rules.least_nu, part * kept[1]))
    return Window(origin, base, length, int(first), int(last), (over, under), nu, kept)
