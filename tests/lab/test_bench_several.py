"""Part several of the plugin benchmark in its smallest form: it measures, whatever that is."""

from dataclasses import replace

import pytest

from bench.plugin import repairs, several
from bench.plugin.checked import Ends, checked_ring
from lab.cluster import Cluster
from lab.faults.catalog import Carrier
from lab.topology import Topology

pytestmark = [pytest.mark.usefixtures("lab_root"), pytest.mark.nightly]


def assert_clean(rows):
    wrong, errors, *others = rows
    assert (wrong.got, errors.got) == (0, 0), errors.note
    assert wrong.samples["checked_bytes"][0] > 0
    return others


def test_rails_lost_at_once():
    (goodput,) = assert_clean(several.lost_at_once(4, 1, 0.5))
    assert list(goodput.samples) == ["k = 1", "k = 2", "k = 3"]
    assert goodput.got > 0


def test_rails_lost_in_turn():
    # Whether a loss falls into a fence is a matter of speed.
    in_fence, in_resend = assert_clean(several.lost_in_turn(1, every=3))
    assert in_fence.samples == in_resend.samples == {"losses": [12.0]}


def test_a_job_that_does_not_outlive_a_loss_is_counted():
    ends = Ends()
    survived = False
    with (
        Cluster(topology=Topology("several-dies", hosts=2, rails=2, spines=0)) as cluster,
        checked_ring(cluster, ends, hold_s=0.01, failover=False) as job,
        cluster.inject(Carrier("h1:rail0")),
    ):
        job.sleep(30)
        survived = True
    wrong, errors = ends.rows("job", "1 loss")
    assert not survived
    assert wrong.ok
    assert errors.got >= 1
    assert "ended with status 1" in errors.note


def test_repairs():
    short = replace(repairs.QUICK, flaps=(1, 3), outage=1.6, window=1.0)
    rows = assert_clean(repairs.repairs(short))
    assert len(rows) == 6
    assert all(row.got > 0 for row in rows)
