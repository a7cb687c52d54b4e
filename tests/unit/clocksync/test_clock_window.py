"""The window of points that a line is made of: how long it is, and which share makes an edge."""

import numpy as np
import pytest

from clocksync.pair.model import SECOND, Rules
from clocksync.pair.points import newest

RULES = Rules()
NOW = 10**12


class Way:
    """Points every so often, of which the filter kept a share."""

    def __init__(self, every_ns, share, apart_ns=1000):
        count = 20 * SECOND // every_ns
        at = NOW - np.arange(count, dtype=np.int64)[::-1] * every_ns
        self.points, self.share = np.stack([at, np.full(count, apart_ns)]), share

    def since(self, at_ns):
        return self.points[:, self.points[0] >= at_ns]

    def rate(self, _since_ns):
        return self.share


def window(out, back, length_ns=RULES.window_ns, *, known=True):
    return newest((out, back), NOW, length_ns, RULES, known=known)


@pytest.mark.parametrize(
    ("kept", "nu"),
    [(1.0, RULES.nu), (0.5, RULES.nu / 2), (0.2, RULES.nu / 5),
     (0.05, RULES.least_nu), (0.0, RULES.least_nu)],
)  # fmt: skip
def test_the_share_that_makes_an_edge_is_of_what_the_filter_kept(kept, nu):
    """Each direction by itself; of next to nothing it is the least, so that there is an edge."""
    found = window(Way(SECOND // 100, kept), Way(SECOND // 100, 1.0))
    assert found.kept == (kept, 1.0)
    assert found.nu == pytest.approx((nu, RULES.nu))


def test_a_wide_window_is_to_find_what_is_rarer_and_not_more_of_the_same():
    way = Way(SECOND // 100, 1.0)
    usual, wide = window(way, way), window(way, way, RULES.wide_ns)
    assert wide.length_ns == RULES.wide_ns
    assert wide.nu[0] * wide.length_ns == pytest.approx(usual.nu[0] * usual.length_ns)


def test_it_grows_until_both_directions_have_points_enough_and_keeps_its_share():
    rare = Way(8 * RULES.window_ns // RULES.enough // 2, 0.5)
    found = window(Way(SECOND // 100, 0.5), rare)
    assert found.length_ns == 4 * RULES.window_ns
    assert found.nu == pytest.approx((RULES.nu / 2, RULES.nu / 2))
    assert found.origin == NOW - found.length_ns // 2


def test_a_first_line_takes_longer():
    short = Way(SECOND // 100, 1.0)
    short.points = short.points[:, -int(100 * RULES.first_ns / SECOND) + 2 :]
    assert window(short, short) is not None
    assert window(short, short, known=False) is None
    few = Way(SECOND // 100, 1.0)
    few.points = few.points[:, -3:]
    assert window(few, few) is None
