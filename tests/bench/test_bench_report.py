"""What a benchmark stores: when, and on a machine of whose."""

import pytest

from bench.report import Lap, markdown, stolen_s

STAT = "cpu  2234647 762 515441 903067 5013 0 55249 99235 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


def test_stolen_time_is_read_of_all_cores():
    assert stolen_s(STAT) == pytest.approx(992.35)
    assert stolen_s("cpu 1 2 3 4\n") == 0.0, "an old kernel"


def test_a_lap_tells_seconds_and_share():
    told = Lap().meta()
    assert told["seconds"] >= 0
    assert told["stolen_percent"] >= 0


@pytest.mark.parametrize(("share", "said"), [(4.5, "4.5 % of them stolen"), (0.0, ""), (None, "")])
def test_the_table_says_what_was_stolen(share, said):
    part = {"quick": False, "date": "2026-01-01", "revision": "r", "kernel": "6", "cores": 2}
    if share is not None:
        part["stolen_percent"] = share
    last = markdown({"meta": {"parts": {"one": part}}, "rows": []}).splitlines()[-1]
    assert (said in last) if said else ("stolen" not in last)
