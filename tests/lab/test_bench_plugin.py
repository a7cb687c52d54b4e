"""The plugin benchmark's harness in its smallest form: it measures something, whatever that is.

Figures are `./run bench plugin`'s business; here nothing depends on how fast anything is.
"""

import shutil

import pytest

from bench.plugin import comms, congestion, direct, lossy, shaped, slow, stalls

# One part in each run, so that the harness cannot rot; the others nightly.
pytestmark = pytest.mark.usefixtures("lab_root")
needs_iperf = pytest.mark.skipif(
    shutil.which("iperf3") is None, reason="needs iperf3 (lab/packages/bench.txt)"
)


@pytest.fixture(autouse=True)
def one_try(monkeypatch):
    """How busy the machine is does not matter here."""
    monkeypatch.setattr("bench.plugin.quiet.SPARE", 0)


def assert_measured(rows, count):
    assert len(rows) == count
    for row in rows:
        assert row.samples, row
        assert all(values for values in row.samples.values()), row
        assert row.note
        assert row.asked is None or row.ok in (True, False)


@needs_iperf
@pytest.mark.nightly
def test_bulk():
    rows = direct.bulk_measured(1, 1)
    assert_measured(rows, 6)
    assert all(value > 0 for row in rows for values in row.samples.values() for value in values)


def test_pingpong():
    rows = direct.pingpong_measured(1, 200, 500)
    assert_measured(rows, 4)
    assert all(value > 0 for row in rows for values in row.samples.values() for value in values)


@needs_iperf
@pytest.mark.nightly
def test_a_shaped_line():
    goodput, cpu = shaped.line_measured(("100mbit",), 1, 1)
    assert_measured([goodput, cpu], 2)
    # More than the shaper lets through would mean that something else was measured.
    for values in goodput.samples.values():
        assert 0 < values[0] <= 0.2


@pytest.mark.nightly
def test_a_stripe():
    rows = shaped.stripe_measured("100mbit", 1, 1)
    assert_measured(rows, 1)


@pytest.mark.nightly
def test_stalls():
    rows = stalls.stalls_measured(1)
    assert_measured(rows, 3)
    assert all(row.got > 0 for row in rows)


@pytest.mark.nightly
def test_comms():
    rows = comms.comms_measured(8, 1)
    assert_measured(rows, 4)
    assert rows[0].got > 0
    assert rows[1].got > 0


@needs_iperf
@pytest.mark.nightly
def test_congestion():
    rows = congestion.congestion_measured(1, 1.0)
    assert_measured(rows, 2)
    assert all(value > 0 for value in rows[0].samples["fixed"])


@pytest.mark.nightly
def test_a_slow_rail():
    rows = slow.slow_measured(1, 1)
    assert_measured(rows, 2)
    for values in rows[0].samples.values():
        assert 0 < values[0] <= 1.6  # both ways, of four rails of 200 Mbit/s


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_lossy_rail():
    rows = lossy.lossy_measured(1, 1)
    assert_measured(rows, 2)
    for values in rows[0].samples.values():
        assert 0 < values[0] <= 1.6  # what four hosts accept over four rails of 100 Mbit/s
