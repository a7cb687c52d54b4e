"""What a job says of its protection, and which jobs it refuses: real ranks of one machine."""

import pytest
from test_takeover import records, struck, train, weights

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


@pytest.mark.nightly
def test_ranks_that_disagree_end_the_job_at_its_start_and_the_difference_is_named(tmp_path):
    done = train(tmp_path / "job", spares=0, more={"ODD_RANK": "2"})
    assert done.returncode == 1
    assert "optimizer group 0 lr is 0.002 on rank 2 and 0.001 on rank 0" in done.stderr


@pytest.mark.nightly
def test_a_gradient_scaler_goes_on_as_undisturbed(tmp_path):
    """Steps 8, 17, … overflow, and so skip the optimizer: one rank is lost in one of those."""
    more = {"SCALER": "1"}
    assert train(tmp_path / "undisturbed", more=more).returncode == 0
    faults = ("2:7:backward", "1:17:forward", "3:26:optimizer")
    done = train(tmp_path / "job", *faults, more=more)
    assert done.returncode == 0, done.stderr
    assert len(struck(tmp_path / "job")) == len(faults) - 1  # step 26 has no optimizer
    assert len(records(tmp_path / "job")) == len(faults) - 1
    assert weights(tmp_path / "job") == weights(tmp_path / "undisturbed")


def test_a_wrong_order_of_limits_is_refused_before_anything_starts(tmp_path):
    done = train(tmp_path / "job", more={"FABRIC_TRAIN_TIMEOUT_S": "600"})
    assert done.returncode == 2
    assert "FABRIC_TRAIN_TIMEOUT_S, 600 s, has to be below the limit of a recovery" in done.stderr
