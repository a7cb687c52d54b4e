"""Readings into increases: rises, wraps, resets, setbacks, saturation, rebirth."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from telemetry.counters.downs import PortDowns
from telemetry.counters.merge import Merger
from telemetry.counters.tracker import Total, Tracker, step
from telemetry.counters.types import WIDE, Bin, Sample, Shape

S = 10**9
W32 = Shape(32)
SAT8 = Shape(8, saturates=True)


def sample(at_s, values, *, source="s", device="d", incarnation=1, shapes=None, **more):
    return Sample(source, device, incarnation, at_s * S, values=values, shapes=shapes or {}, **more)


def run(*readings, shape=WIDE):
    """Take readings a second apart; returns the last update and the total."""
    tracker = Tracker()
    update = None
    for second, value in enumerate(readings, 1):
        update = tracker.take(sample(second, {"c": value}, shapes={"c": shape}))
    return update, tracker.totals("s", "d")["c"]


def test_the_first_reading_is_a_baseline():
    update, total = run(1000)
    assert update.steps == {}
    assert (total.count, total.inexact) == (0, "")


def test_a_rise_and_its_rate():
    tracker = Tracker()
    tracker.take(sample(1, {"c": 10}))
    got = tracker.take(sample(3, {"c": 40})).steps["c"]
    assert (got.increase, got.interval_ns, got.inexact, got.per_s) == (30, 2 * S, "", 15.0)


def test_a_wrap_of_32_bits_is_exact():
    _, total = run(2**32 - 3, 2, 10, shape=W32)
    assert (total.count, total.inexact, total.resets) == (13, "", 0)


def test_a_fall_of_a_32_bit_counter_far_from_its_end_is_a_reset():
    update, total = run(5_000, 7, shape=W32)
    assert update.steps["c"].increase == 7
    assert update.steps["c"].inexact == "reset: fell from 5000 to 7"
    assert total.inexact
    assert total.resets == 1


def test_a_fast_32_bit_counter_may_wrap_from_further_away():
    # 2**29 a second: from 2**31 the next second may well end past the maximum.
    fast = [i * 2**29 % 2**32 for i in range(12)]
    _, total = run(*fast, shape=W32)
    assert total.count == 11 * 2**29
    assert "may have wrapped unseen" in total.inexact  # 16 times faster would not show


def test_a_counter_that_was_thought_to_wrap_but_stays_at_its_maximum():
    # Whether mlx5's Q counters wrap or stay is written nowhere; both are told right.
    update, _ = run(2**32 - 2, 2**32 - 1, 2**32 - 1, shape=W32)
    assert update.steps["c"].inexact == "stuck at 4294967295"


def test_a_64_bit_counter_never_wraps():
    update, _ = run(2**64 - 2, 1)
    assert update.steps["c"].increase == 0, "what it shows may be what is left of a sum"
    assert update.steps["c"].inexact.startswith("reset")
    assert update.steps["c"].fell


@pytest.mark.parametrize("values", [(7, 3), (7, 1), (5000, 12)])
def test_what_is_left_of_a_sum_counts_nothing(values):
    # virtio_net's tx_timeouts are added up over its queues: with fewer of them the sum is smaller.
    update, total = run(*values)
    assert (update.steps["c"].increase, total.count, total.resets) == (0, 0, 1)
    assert total.inexact == f"reset: fell from {values[0]} to {values[1]}"
    _, total = run(*values, values[1] + 2)
    assert total.count == 2, "what comes after is new"


@pytest.mark.parametrize("value", [2**64 - 3, 2**64 - 1, 2**57])
def test_a_leap_that_no_hardware_makes_is_not_believed(value):
    update, total = run(5, value)
    assert (update.steps["c"].increase, total.count) == (0, 0)
    assert total.inexact == f"leap: from 5 to {value}"
    _, total = run(5, value, 7, 9)
    assert total.count == 2, "and it counts on from where it is then"


def test_what_a_fast_link_counts_is_believed():
    rate = 10**11  # bytes a second of 800 Gbit/s
    _, total = run(0, rate, 11 * rate)  # refreshed every 10 s
    assert (total.count, total.inexact) == (11 * rate, "")
    tracker = Tracker()
    tracker.take(sample(1, {"c": 0}))
    got = tracker.take(sample(1 + 86_400, {"c": 86_400 * rate})).steps["c"]
    assert (got.increase, got.inexact) == (86_400 * rate, "")


def test_a_setback_counts_nothing():
    # A million old errors must not pass for new ones when a sum loses one part.
    update, total = run(1_000_000, 999_990, 999_995)
    assert total.count == 5
    assert total.inexact == "set back: fell from 1000000 to 999990"
    assert update.steps["c"].inexact == ""


def test_a_saturated_counter_says_so():
    tracker = Tracker()
    shapes = {"link_downed": SAT8}
    for second, value in enumerate((250, 253, 255, 255), 1):
        update = tracker.take(sample(second, {"link_downed": value}, shapes=shapes))
    total = tracker.totals("s", "d")["link_downed"]
    assert (total.count, total.inexact) == (5, "saturated at 255")
    assert update.steps["link_downed"].increase == 0
    assert update.steps["link_downed"].inexact == "saturated at 255"
    assert total.resets == 0


def test_a_counter_that_was_full_at_first_sight_is_not_exact():
    _, total = run(255, shape=SAT8)
    assert total.inexact == "saturated at 255"


def test_a_cleared_saturating_counter_counts_on():
    _, total = run(255, 0, 3, shape=SAT8)
    assert (total.count, total.resets) == (3, 1)
    assert total.inexact == "saturated at 255"


def test_a_reborn_device_is_a_new_baseline():
    tracker = Tracker()
    tracker.take(sample(1, {"a": 100, "b": 5}))
    again = tracker.take(sample(2, {"a": 3}, incarnation=2))
    assert again.reborn
    assert again.steps == {}
    # What b shows may be of its former life: firmware outlives its driver.
    later = tracker.take(sample(3, {"a": 4, "b": 10**6}, incarnation=2))
    assert {name: step.increase for name, step in later.steps.items()} == {"a": 1}
    totals = tracker.totals("s", "d")
    assert totals["a"].count == 1
    assert totals["a"].inexact == totals["b"].inexact == "the device was reborn"


def test_a_counter_that_was_skipped_once_loses_nothing():
    tracker = Tracker()
    tracker.take(sample(1, {"a": 1, "b": 1}))
    assert "b" not in tracker.take(sample(2, {"a": 2})).steps
    got = tracker.take(sample(4, {"a": 3, "b": 7})).steps["b"]
    assert (got.increase, got.interval_ns, got.inexact) == (6, 3 * S, "")


def test_devices_and_sources_do_not_mix():
    tracker = Tracker()
    for device, value in (("d", 1), ("e", 100)):
        tracker.take(sample(1, {"c": value}, device=device))
    assert tracker.take(sample(2, {"c": 101}, device="e")).steps["c"].increase == 1
    assert tracker.totals("other", "d") == {}
    tracker.forget("s", "d")
    assert tracker.take(sample(2, {"c": 50})).steps == {}


def test_time_must_go_on():
    tracker = Tracker()
    tracker.take(sample(2, {}))
    with pytest.raises(ValueError, match="after one of"):
        tracker.take(sample(2, {}))


def test_histograms_by_increase():
    tracker = Tracker()
    bins = (Bin(0, 0, 1000), Bin(1, 3, 20), Bin(4, 15, 0))
    first = tracker.take(sample(1, {}, histograms={"fec_errors": bins}))
    assert first.histograms == {}
    more = (Bin(0, 0, 1500), Bin(1, 3, 21), Bin(4, 15, 2))
    second = tracker.take(sample(2, {}, histograms={"fec_errors": more}))
    assert second.histograms["fec_errors"] == (Bin(0, 0, 500), Bin(1, 3, 1), Bin(4, 15, 2))
    fewer = tracker.take(sample(3, {}, histograms={"fec_errors": bins}))
    assert fewer.histograms == {}
    other = (Bin(0, 1, 1), Bin(2, 3, 20), Bin(4, 15, 0))
    assert tracker.take(sample(4, {}, histograms={"fec_errors": other})).histograms == {}


@given(st.lists(st.integers(0, 2**16), min_size=1, max_size=40), st.integers(0, 2**32 - 1))
@example([1, 0, 2], 2**32 - 2)
def test_any_small_increases_of_a_wrapping_counter_add_up_exactly(increases, start):
    readings, value = [start], start
    for increase in increases:
        value = (value + increase) % 2**32
        readings.append(value)
    _, total = run(*readings, shape=W32)
    assert total.count == sum(increases)
    # One that rests at its very maximum looks as if it were stuck there.
    rests = (2**32 - 1, 2**32 - 1) in itertools.pairwise(readings)
    assert total.inexact == ("stuck at 4294967295" if rests else "")


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(1, 10**12),
    st.sampled_from([WIDE, W32, SAT8, Shape(4, saturates=True), Shape(16)]),
    st.floats(0, 1e9),
)
def test_no_step_counts_too_much(before, now, interval, shape, rate):
    before, now = before & shape.maximum, now & shape.maximum
    got = step(Total(value=before, at_ns=0, rate=rate), now, interval, shape)
    assert 0 <= got.increase <= shape.maximum
    if got.inexact == "":
        # What is called exact ends at the reading, whole rounds apart.
        assert (before + got.increase) % (shape.maximum + 1) == now
    else:
        assert got.increase <= max(now, now - before)


class TestDowns:
    def test_both_agree(self):
        downs = PortDowns()
        downs.event(3)
        got = downs.reading(3)
        assert (got.count, got.exact) == (3, True)

    def test_an_event_before_its_reading_is_no_disagreement(self):
        downs = PortDowns()
        downs.event()
        assert downs.reading(0).exact
        assert downs.reading(1).exact
        assert downs.state.count == 1

    def test_an_event_that_the_counter_never_shows(self):
        downs = PortDowns()
        downs.event(2)
        downs.reading(1)
        got = downs.reading(0)
        assert (got.count, got.exact) == (2, False)
        assert got.inexact == "link_downed counted 1, port events 2"

    def test_the_counter_knows_more_than_the_events(self):
        downs = PortDowns()
        assert downs.reading(4).exact  # the events may be on their way
        got = downs.reading(0)
        assert (got.count, got.inexact) == (4, "link_downed counted 4, port events 0")
        downs.event(4)
        assert downs.reading(0).exact

    def test_saturated_but_events_go_on(self):
        downs = PortDowns()
        downs.event(10)
        downs.reading(5, "saturated at 255")
        got = downs.reading(0, "saturated at 255")
        assert got.count == 10
        assert "link_downed saturated at 255" in got.inexact


class TestMerge:
    def updates(self, tracker, second, **values):
        return [tracker.take(sample(second, v, source=s)) for s, v in values.items()]

    def test_the_best_source_that_is_on_speaks(self):
        tracker, merger = Tracker(), Merger()
        on = {"ethtool_driver", "link_stats"}
        for second, (mine, other) in enumerate([(5, 7), (6, 9)], 1):
            updates = self.updates(
                tracker,
                second,
                link_stats={"crc_errors": other, "tx_errors": second},
                ethtool_driver={"crc_errors": mine},
            )
            got = merger.take(updates, on)
        assert (got["crc_errors"].increase, got["tx_errors"].increase) == (1, 1)

    def test_a_source_that_is_not_due_hands_over_nothing(self):
        tracker, merger = Tracker(), Merger()
        both = {"ib_hw": {"rcv_errors": 0}, "link_stats": {"rcv_errors": 0}}
        merger.take(self.updates(tracker, 1, **both), set(both))
        got = merger.take(self.updates(tracker, 2, link_stats={"rcv_errors": 4}), set(both))
        assert got == {}
        gone = merger.take(self.updates(tracker, 3, link_stats={"rcv_errors": 6}), {"link_stats"})
        assert gone["rcv_errors"].increase == 2

    def test_a_source_that_comes_back_tells_what_nobody_told(self):
        tracker, merger = Tracker(), Merger()
        total = 0

        def take(second, **values):
            nonlocal total
            counted = {source: {"timeouts": value} for source, value in values.items()}
            got = merger.take(self.updates(tracker, second, **counted), set(values))
            total += got["timeouts"].increase if got else 0
            return got

        take(1, rdma_stat=100)
        take(2, rdma_stat=101)
        # Netlink fails: sysfs begins with a baseline, so what came until then is not told...
        take(3, ib_hw=104)
        take(4, ib_hw=106)
        assert total == 1 + 2
        # ... until netlink is back. Nothing is told twice.
        back = take(5, rdma_stat=107)["timeouts"]
        assert (back.increase, back.interval_ns) == (107 - 101 - 2, S)
        assert take(6, rdma_stat=110)["timeouts"].increase == 3
        assert total == 110 - 100

    def test_a_counter_that_was_unreadable_for_a_while(self):
        tracker, merger = Tracker(), Merger()
        on = {"ib_port", "link_stats"}
        total = 0
        for second, best in enumerate([5, 6, None, None, 9, 10], 1):
            values = {"ib_port": {"x": 1} if best is None else {"x": 1, "rcv_errors": best}}
            values["link_stats"] = {"rcv_errors": 4 + second}
            got = merger.take(self.updates(tracker, second, **values), on)
            total += got["rcv_errors"].increase if "rcv_errors" in got else 0
        assert total == 10 - 5

    @given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=30))
    def test_sources_that_come_and_go_tell_each_event_once(self, rounds):
        tracker, merger = Tracker(), Merger()
        truth = told = 0
        for second, (more, best, other) in enumerate(
            [(0, True, True), *rounds, (0, True, True)], 1
        ):
            truth += more
            on = {name for name, is_on in (("ib_hw", best), ("link_stats", other)) if is_on}
            counted = {name: {"rcv_errors": truth} for name in on}
            got = merger.take(self.updates(tracker, second, **counted), on)
            told += got["rcv_errors"].increase if got else 0
            assert told <= truth
        assert told == truth
