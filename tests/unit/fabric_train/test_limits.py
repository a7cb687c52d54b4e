import pytest

from fabric_train.rules.limits import FROZEN_S, LimitError, check_order, frozen_s, hang_s, timeout_s


def test_the_limits_of_a_job_are_in_order_unless_somebody_changes_one():
    check_order({})
    check_order({"FABRIC_TRAIN_TIMEOUT_S": ""})
    check_order({"FABRIC_TRAIN_TIMEOUT_S": "30.5"})
    assert timeout_s({"FABRIC_TRAIN_TIMEOUT_S": "30.5"}) == 30.5


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_what_is_no_time_is_refused_by_name(text):
    with pytest.raises(LimitError, match=f"FABRIC_TRAIN_TIMEOUT_S={text}"):
        check_order({"FABRIC_TRAIN_TIMEOUT_S": text})


@pytest.mark.parametrize(("text", "limit"), [("", None), ("0", 0.0), ("5", 5.0), ("7200", 7200.0)])
def test_how_long_a_rank_may_work_by_itself(text, limit):
    assert hang_s({"FABRIC_TRAIN_HANG_S": text}) == limit


@pytest.mark.parametrize(("text", "limit"), [("", FROZEN_S), ("0", 0.0), ("2", 2.0), ("60", 60.0)])
def test_how_long_a_rank_may_be_frozen(text, limit):
    assert frozen_s({"FABRIC_TRAIN_FROZEN_S": text}) == limit


def test_a_rank_cannot_be_frozen_for_less_than_its_heartbeats_allow():
    with pytest.raises(LimitError, match=r"FABRIC_TRAIN_FROZEN_S=1: neither 0 nor .* from 2 on"):
        check_order({"FABRIC_TRAIN_FROZEN_S": "1"})


@pytest.mark.parametrize("text", ["never", "4.9", "-1", "nan", "inf"])
def test_what_is_no_such_limit_is_refused_by_name(text):
    with pytest.raises(LimitError, match=f"FABRIC_TRAIN_HANG_S={text}: neither 0 nor a number"):
        check_order({"FABRIC_TRAIN_HANG_S": text})


@pytest.mark.parametrize(
    ("given", "collective_s", "text"),
    [
        ("0.2", 1800, r"missed, 0.3 s, has to be below FABRIC_TRAIN_TIMEOUT_S, 0.2 s"),
        ("120", 1800, r"FABRIC_TRAIN_TIMEOUT_S, 120 s, .* limit of a recovery, 120 s"),
        ("60", 100, r"limit of a recovery, 120 s, .* time-out of a collective, 100 s"),
    ],
)
def test_a_wrong_order_is_refused_and_both_limits_are_named(given, collective_s, text):
    with pytest.raises(LimitError, match=text):
        check_order({"FABRIC_TRAIN_TIMEOUT_S": given}, collective_s)
