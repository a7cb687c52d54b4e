"""A window from polls: medians, sums, and nothing where nothing was read."""

import numpy as np
import pytest

from fabricd.predict.gather import Gather
from fabricd.predict.risk import Predictor, Window
from telemetry.counters.types import Bin

SPEEDS = {"rail0": 400e9}


def test_readings_are_medians_of_the_weakest_lane():
    gather = Gather(["rail0", "rail1"])
    for power in (1e-3, 1e-3, 1e-9):
        gather.read("rail0", {"rx_power/0": 2e-3, "rx_power/1": power, "tx_bias/0": 0.06})
    seen = Window.of(gather.window(SPEEDS))
    assert seen.rx_dbm[0] == pytest.approx(0.0)
    assert seen.bias[0] == pytest.approx(0.06)
    assert np.isnan(seen.rx_dbm[1])
    assert np.isnan(Window.of(gather.window(SPEEDS)).rx_dbm[0]), "the next window begins empty"


def test_counts_add_up_and_bits_follow_the_time_that_they_span():
    gather = Gather(["rail0", "rail1"])
    for _ in range(3):
        gather.count("rail0", {"fec_corrected_bits": 40, "fec_uncorrectable": 1}, 10.0)
    gather.histogram("rail0", [Bin(0, 0, 900), Bin(7, 7, 50), Bin(8, 8, 3), Bin(9, 15, 2)])
    seen = Window.of(gather.window(SPEEDS))
    assert (seen.errors[0], seen.lost[0], seen.tail[0]) == (120, 3, 5)
    assert seen.bits[0] == pytest.approx(400e9 * 30)
    assert np.isnan([seen.bits[1], seen.errors[1]]).all()


def test_a_window_with_a_flap_is_no_level():
    gather = Gather(["rail0", "rail1"])
    gather.out("rail0", flaps=2)
    seen = Window.of(gather.window(SPEEDS))
    assert seen.up.tolist() == [False, True]
    assert seen.flaps.tolist() == [2, 0]


def test_darkness_is_no_level_and_limits_are_in_dbm():
    gather = Gather(["rail0"])
    gather.read("rail0", {"rx_power/0": 0.0})
    gather.limits("rail0", 1e-4, 70.0)
    seen = Window.of(gather.window(SPEEDS))
    assert np.isnan(seen.rx_dbm[0])
    assert (seen.rx_low_dbm[0], seen.hot_celsius[0]) == (pytest.approx(-10.0), 70.0)


def test_a_lane_without_light_or_monitor_hides_no_other():
    """A breakout uses some of the lanes; some modules read 0 where they measure nothing."""
    gather = Gather(["rail0"])
    gather.read("rail0", {"rx_power/0": 1e-3, "rx_power/1": 0.0, "tx_power/0": 0.0})
    gather.read("rail0", {"tx_power/1": 2e-3, "module_temperature": 0.0})
    seen = Window.of(gather.window(SPEEDS))
    assert seen.rx_dbm[0] == pytest.approx(0.0)
    assert seen.tx_dbm[0] == pytest.approx(3.01, abs=0.01)
    assert seen.celsius[0] == 0.0


def test_the_predictor_takes_it():
    gather, predictor = Gather(["rail0", "rail1"]), Predictor(["rail0", "rail1"])
    for _ in range(10):
        gather.read("rail0", {"module_temperature": 80.0})
        gather.limits("rail0", None, 70.0)
        predictor.step(Window.of(gather.window(SPEEDS)))
    assert predictor.risk.tolist() == [pytest.approx(0.1), 0]
    assert list(predictor.evidence(0)) == ["hot"]
