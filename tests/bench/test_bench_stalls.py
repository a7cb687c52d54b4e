"""Part *stalls* of the detection bench: when does a job stand, and was its cause named?"""

import pytest

from bench.detect.live_stalls import _names, _wanted
from bench.detect.located_faults import SORTS, Element, Size, place
from bench.detect.stall_score import Stall, causes, longest_still_s, rows

H2, H3 = frozenset({Element("host", "h2")}), frozenset({Element("host", "h3")})
SEC = 10**9


def samples(*seconds_and_counts):
    return [(round(second * SEC), count) for second, count in seconds_and_counts]


@pytest.mark.parametrize(
    ("seen", "still"),
    [
        ([(9, 1), (10.5, 2), (11, 3), (20, 4)], 9.0),
        ([(9, 1), (10.5, 2), (11, 3), (19.5, 4), (20, 5)], 8.5),
        ([(9, 7), (12, 7), (14, 7), (20, 7)], 10.0),
        ([(9, 1), (11, 2), (13, 2), (14, 3), (20, 4)], 6.0),
        ([(9, 1), (10, 2), (12, 3)], 8.0),
        ([], 10.0),
        ([(9, 1), (30, 2)], 10.0),
    ],
)
def test_the_longest_time_without_progress_between_10_and_20_s(seen, still):
    assert longest_still_s(samples(*seen), 10 * SEC, 20 * SEC) == pytest.approx(still)


def test_progress_before_the_fault_is_none_after_it():
    steady = samples(*[(t / 10, t) for t in range(80, 200)])
    assert longest_still_s(steady, 10 * SEC, 19 * SEC) == pytest.approx(0.1)
    assert longest_still_s(steady[:40], 10 * SEC, 19 * SEC) == pytest.approx(7.1)


def test_all_faults_need_a_name_and_no_other_is_a_cause():
    one = Stall("freeze h2", (H2,), 9.0, {Element("host", "h2"): 1.5})
    assert (one.stalled, one.took_s, one.wrong) == (True, 1.5, frozenset())
    both = Stall("x", (H2, H3), 9.0, {Element("host", "h2"): 1.5})
    assert both.took_s is None
    named = {Element("host", "h2"): 1.5, Element("host", "h3"): 4.0, Element("leaf", "rail1"): 1.0}
    both = Stall("x", (H2, H3), 9.0, named)
    assert (both.took_s, both.wrong) == (4.0, {Element("leaf", "rail1")})
    assert not Stall("carrier h1:rail1", (H2,), 0.05).stalled


def test_the_table_counts_stalls_alone():
    table = rows([
        Stall("a", (H2,), 9.0, {Element("host", "h2"): 1.0}),
        Stall("b", (H2,), 9.0, {Element("host", "h2"): 20.5}),
        Stall("c", (H2,), 9.0, {Element("leaf", "rail0"): 2.0}),
        Stall("d", (H2,), 9.0, {Element("host", "h2"): 20.0}),
        Stall("e", (H2,), 0.1),
    ])  # fmt: skip
    assert [(row.got, row.ok) for row in table] == [(50.0, False), (1, None)]
    assert table[0].note.startswith("2 of 4 stalls of 5 jobs, median 20.0 s, latest 20.5 s")
    assert "b: host h2; c: leaf rail0" in table[0].note
    assert rows([])[0].got == 0, "nothing measured is nothing met"


def test_answers_are_read():
    cause = {"part": "process", "element": "h1", "text": "…"}
    assert causes({"causes": [cause]}) == {Element("process", "h1")}
    assert causes({"causes": []}) == frozenset()


def test_what_is_done_to_jobs():
    wanted = list(_wanted(3))
    assert wanted == list(_wanted(3)), "the same each time"
    assert [one for one in wanted if isinstance(one, int)]
    done = {fault.sort for one in wanted if not isinstance(one, int) for fault in one}
    assert done == {sort for sort in SORTS if not sort.unseen}


def test_all_rails_of_a_host_are_the_host_or_its_links():
    cable = next(sort for sort in SORTS if sort.word == "carrier")
    size = Size(4, 4)
    all_four = tuple(place(cable, ("h1", rail), size) for rail in range(4))
    [names] = _names(all_four)
    assert names == {Element("host", "h1"), *(Element("link", f"h1/{rail}") for rail in range(4))}
    assert len(_names(all_four[:3])) == 3
    assert _names(2) == (frozenset({Element("process", "h2")}),)
