"""``bench migrate`` itself: it finds nothing wrong where nothing is, and sees what is wrong."""

import pytest

from bench.migrate import backend, takeovers
from bench.migrate.jobs import JobError, plain, run_job
from bench.migrate.kills import measure
from bench.training.trace import UNLIMITED

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.parametrize("strike", [takeovers.kill, takeovers.crash])
def test_takeovers_are_exact(strike):
    got = measure(strike, 2, seed=1)
    assert takeovers.exact(got.found, got.events, got.wrong) == 2
    assert (got.wrong, got.dropped, got.doubled) == ([], 0, 0)
    assert [one.lost_steps for one in got.found] == [0, 0]
    assert all(pause > 0 for pause in got.pauses_ms())


def test_a_job_without_protection_ends_and_is_not_called_a_success():
    with run_job(plain(100_000)) as job:
        job.control.allow(UNLIMITED)
        job.wait_running(3)
        takeovers.kill(job, job.ranks()[2], None)
        with pytest.raises(JobError, match="ended before: 4 ranks"):
            job.wait_running(10)


def test_gloo_and_the_plugin_are_measured_in_turn():
    taken = backend.measured(2)
    assert set(taken) == {"gloo", "plugin"}
    for times in taken.values():
        assert set(times) == {"reduce_ms", "vote_us"}
        assert all(len(each) == 2 and min(each) > 0 for each in times.values())
