"""What the clock bench makes of what it saw: rows, a lost reference, a picture."""

import math

import pytest

from bench.clock.live import CHRONY, PTP4L, live_rows
from bench.clock.peers import led, ptp4l_offsets
from bench.clock.plot import Story, draw, ptp4l_points
from bench.clock.reference import jump, ptp4l_lost_s
from bench.clock.services import Seen

LOG = """\
ptp4l[100.500]: master offset      -1200 s0 freq      +0 path delay      9000
ptp4l[101.250]: master offset        300 s2 freq      +0 path delay      9000
ptp4l[101.900]: port 1: SLAVE to LISTENING on ANNOUNCE_RECEIPT_TIMEOUT_EXPIRES
ptp4l[109.125]: port 1: LISTENING to LISTENING on ANNOUNCE_RECEIPT_TIMEOUT_EXPIRES
"""


def test_a_jump_is_from_where_each_host_was():
    moments = {
        1: [(-1.1, 500.0), (-0.9, 9.0), (0.0, 11.0), (0.1, 12.0), (1.6, 90.0)],
        2: [(-0.5, -5.0), (1.5, -12.0)],
        3: [(0.5, 900.0)],  # it knew no time before
    }
    assert jump(moments, 0, 1.5) == 7.0
    assert jump(moments, 0, 4.0) == 80.0
    assert jump({1: moments[1]}, 0, 1.5) == 2.0
    assert math.isnan(jump({3: moments[3]}, 0, 1.5))


def test_when_ptp4l_lost_its_grandmaster_is_read_from_its_log():
    assert ptp4l_lost_s(LOG, 100.0) == 101.9
    assert ptp4l_lost_s(LOG, 102.0) == 109.125
    assert ptp4l_lost_s(LOG, 110.0) is None


def test_ptp4ls_offsets_are_points_from_the_beginning_on():
    assert ptp4l_points(LOG, 101.0) == [(0.25, 300.0)]
    assert ptp4l_points(LOG, 100.0) == [(0.5, 1200.0), (1.25, 300.0)]


def test_a_peers_line_goes_by_when_it_said_what():
    """At one a second or at eight: 50 ns a second lead to 3 us in a minute."""
    log = "".join(f"ptp4l[{100 + at}.000]: master offset {50 * at} s0\n" for at in range(40))
    assert led(ptp4l_offsets(log), 60.0, 15.0) == pytest.approx(39 * 50 + 60 * 50)
    many = [(at / 8, 50 * at / 8) for at in range(320)]
    assert led(many, 60.0, 15.0) == pytest.approx((319 / 8 + 60) * 50)
    early = [(0.0, 1e6), (1.0, 1e6), (20.0, 0.0), (21.0, 0.0), (22.0, 0.0)]
    assert led(early, 60.0, 15.0) == pytest.approx(0.0, abs=1e-6), "what is older does not count"


def test_ratios_are_of_the_others_over_ours():
    seen = Seen(
        pairs=[10.0], mesh=[2.0], loaded=[5.0], bounds=[900.0], ptp4l=[5000.0], chrony=[100.0]
    )  # fmt: skip
    rows = {row.name: row for row in live_rows("tcp", seen)}
    ratio = rows["TCP one way: between the loaded hosts: ptp4l's median, in ours"]
    assert (ratio.got, ratio.asked, ratio.ok) == (1000.0, PTP4L, True)
    ratio = rows["TCP one way: between the loaded hosts: the p99 of chronyd's regression, in ours"]
    assert (ratio.got, ratio.asked, ratio.ok) == (20.0, CHRONY, True)
    assert not any("their own path" in name for name in rows), "they have none"
    seen.loaded_pair = [30.0]
    own = {row.name: row for row in live_rows("tcp", seen)}
    assert own["TCP one way: between the loaded hosts: their own path, median"].ok is False
    assert own["TCP one way: between the loaded hosts: their own path, p99"].ok is True
    seen.ptp4l, seen.loaded_pair = [], []
    assert len(live_rows("tcp", seen)) == len(rows) - 1, "no ratio to what was not said"
    assert rows["TCP one way: bound a hop, p99"].asked == 1000.0
    assert {row.name: row for row in live_rows("idle", seen)}["idle: bound a hop, p99"].ok is None


@pytest.mark.filterwarnings("error")
def test_a_picture_is_drawn(tmp_path):
    story = Story(
        loads=[(0.0, 5.0, "idle"), (5.0, 9.0, "tcp")], fabric=[(1.0, 0.0), (2.0, 9.0)],
        ptp4l=[(1.0, 7000.0)], chrony=[(1.5, 80.0)],
    )  # fmt: skip
    draw(story, tmp_path / "images" / "clock.png")
    data = (tmp_path / "images" / "clock.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert 10_000 < len(data) < 200_000
