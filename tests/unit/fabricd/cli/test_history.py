"""Rows of a link for people: bursts of flaps are one, nothing else is touched, no flap is lost."""

from hypothesis import given
from hypothesis import strategies as st

from fabricd.views.history import condense
from fabricd.views.moments import moment


def row(kind, at, **more):
    return {"kind": kind, "wall_ns": at * 10**9, "link": "rail0", "count": 1} | more


def test_a_burst_is_one_row_with_its_end():
    burst = []
    for at in range(1, 41, 2):
        burst += [row("flap", at, data={"down_count": at}), row("carrier_up", at + 1)]
    down = row("link_state", 0, to="down")
    out = condense([down, *burst, row("steer", 50)])
    assert [r["kind"] for r in out] == ["link_state", "flap", "carrier_up", "steer"]
    assert (out[1]["count"], out[1]["wall_ns"], out[1]["until_wall_ns"]) == (20, 10**9, 39 * 10**9)
    assert out[1]["data"] == {"down_count": 39}
    assert moment([out[1]]).text == "lost its carrier 20 times in 38.0 s"


def test_single_flaps_stay():
    rows = [row("carrier_up", 1), row("flap", 2), row("carrier_up", 3), row("flap", 4)]
    assert condense(rows) == rows


@given(st.lists(st.sampled_from(["flap", "carrier_up", "link_state", "steer"]), max_size=40))
def test_no_flap_and_no_other_row_is_lost(kinds):
    rows = [row(kind, at) for at, kind in enumerate(kinds)]
    out = condense(rows)
    flaps = [r for r in out if r["kind"] == "flap"]
    assert sum(r["count"] for r in flaps) == kinds.count("flap")
    others = [r for r in rows if r["kind"] in ("link_state", "steer")]
    assert [r for r in out if r["kind"] in ("link_state", "steer")] == others
    assert [r["wall_ns"] for r in out] == sorted(r["wall_ns"] for r in out)
