"""What the demo over RDMA says of its story; the story itself needs a virtual machine."""

from dataclasses import replace

from lab.demo.rdma import ChapterResult, failures, story, table, window
from lab.vm.rdma.perf import longest_stall_ns

GOOD = ChapterResult(
    "cable pulled", stall_ms=120, before=900, on_rail=0, on_others=1500, back_s=9.5
)


def sample(t_ms: int, moved: int) -> dict[str, object]:
    return {"type": "sample", "t_ns": t_ms * 1_000_000, "bytes": moved}


def test_a_stall_is_looked_for_from_the_last_sample_before_the_fault():
    rows = [{"type": "start", "pid": 7}, *(sample(50 * i, 10 * i + 1) for i in range(10))]
    rows += [sample(500, 91), sample(700, 91), sample(750, 200), sample(800, 300)]
    found = window(rows, 510_000_000, 780_000_000)
    assert [row["t_ns"] for row in found] == [500_000_000, 700_000_000, 750_000_000]
    assert longest_stall_ns(found) == 250_000_000
    assert window(rows, 0, 1)[0]["t_ns"] == 0


def test_each_fault_has_to_find_rdma_before_beside_and_after_it():
    assert failures([GOOD]) == []
    for lack, what in (
        ({"before": 0}, "before it"),
        ({"on_others": 0}, "the other rail"),
        ({"back_s": None}, "not back on the rail"),
    ):
        (text,) = failures([replace(GOOD, **lack)])
        assert what in text


def test_the_story_hits_a_cable_and_rdma_alone():
    kinds = [chapter.fault.kind for chapter in story()]
    assert len(set(kinds)) == len(kinds) == table([GOOD] * len(story())).row_count
