"""A loop that runs each attempt once, also when ranks are lost in it: `join(kept=True)`."""

from collections import Counter

import pytest
from test_takeover import RANKS, STEPS, struck, train, weights

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

MOMENTS = ("2:3:forward", "0:8:backward", "3:13:gate", "1:18:optimizer", "0:23:error")
KEPT = {"KEPT": "1"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed") / "job"
    done = train(directory, spares=0)
    assert done.returncode == 0, done.stderr
    return weights(directory)


def attempts(directory):
    """Of each process: rank:step of its attempts."""
    return [path.read_text().split() for path in directory.glob("attempts.*")]


def test_ranks_killed_at_any_moment_change_nothing_and_others_run_no_attempt_again(
    undisturbed, tmp_path
):
    done = train(tmp_path / "job", *MOMENTS, more=KEPT)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in MOMENTS}
    assert weights(tmp_path / "job") == undisturbed
    ran = attempts(tmp_path / "job")
    assert len(ran) == RANKS + len(MOMENTS)
    assert all(len(set(one)) == len(one) for one in ran)
    again = Counter(one for each in ran for one in each)
    assert again.total() == sum(again.values()) >= RANKS * STEPS
    # What a lost rank has not finished, its replacement alone has run anew.
    lost = {":".join(fault.split(":")[:2]) for fault in MOMENTS}
    assert {one for one, times in again.items() if times > 1} <= lost


@pytest.mark.nightly
def test_losses_during_a_recovery_change_nothing(undisturbed, tmp_path):
    faults = ("0:5:backward", "1:-1:sending", "0:20:forward", "3:20:gate", "1:30:gate", "2:30:gate")
    done = train(tmp_path / "job", *faults, spares=2, more=KEPT)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in faults}
    assert weights(tmp_path / "job") == undisturbed
    assert all(len(set(one)) == len(one) for one in attempts(tmp_path / "job"))


@pytest.mark.nightly
def test_connections_that_fail_without_a_loss_are_made_anew(undisturbed, tmp_path):
    done = train(tmp_path / "job", "2:11:disconnected", spares=0, more=KEPT)
    assert done.returncode == 0, done.stderr
    assert weights(tmp_path / "job") == undisturbed
    assert all(len(set(one)) == len(one) for one in attempts(tmp_path / "job"))
