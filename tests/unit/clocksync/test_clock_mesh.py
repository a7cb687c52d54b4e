"""One step of a host towards its neighbours' time; where steps lead is in tests/bench."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocksync.mesh.solver import DAMPING, Pull, step

pytestmark = pytest.mark.virtual_time


@given(st.floats(-1e9, 1e9), st.floats(-1e-4, 1e-4), st.floats(1e-6, 1))
def test_a_step_goes_its_share_of_the_way_to_the_weighted_mean(off, faster, weight):
    one = step([Pull(off, faster, weight)])
    assert one.ns == pytest.approx(DAMPING * off, abs=1e-6)
    assert one.faster == pytest.approx(DAMPING * faster, abs=1e-15)
    assert one.residual_ns == pytest.approx(abs(off), abs=1e-6)
    two = step([Pull(off, faster, weight), Pull(-3 * off, -3 * faster, weight)], 1.0)
    assert two.ns == pytest.approx(-off, abs=1e-6)
    assert two.residual_ns == pytest.approx(2 * abs(off), abs=1e-6)
