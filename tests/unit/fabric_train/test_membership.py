import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.rules.membership import (
    Generation,
    NotEnoughSparesError,
    first_generation,
    next_generation,
)


def test_a_spare_takes_the_empty_rank_and_nobody_else_moves():
    first = first_generation(["a", "b", "c", "d"])
    second = next_generation(first, {"a", "b", "d", "s", "t"}, ["s", "t"])
    assert second == Generation(2, ("a", "b", "s", "d"))


def test_without_enough_spares_nothing_is_assigned():
    first = first_generation(["a", "b", "c"])
    with pytest.raises(NotEnoughSparesError, match="no spare for rank 2") as caught:
        next_generation(first, {"a", "s"}, ["s"])
    assert caught.value.ranks == (2,)


def test_a_process_that_holds_a_rank_is_no_spare():
    first = first_generation(["a", "b"])
    with pytest.raises(NotEnoughSparesError):
        next_generation(first, {"a"}, ["a", "a"])


def test_a_spare_that_was_built_for_a_rank_takes_it_and_no_other():
    first = first_generation(["a", "b", "c"])
    early = {"e": 1, "f": 2}
    spares = ["e", "f", "s"]
    assert next_generation(first, {"a", "c", *spares}, spares, early).slots == ("a", "e", "c")
    assert next_generation(first, {"b", "c", *spares}, spares, early).slots == ("s", "b", "c")
    assert next_generation(first, set(spares), spares, early).slots == ("s", "e", "f")
    with pytest.raises(NotEnoughSparesError, match="no spare for rank 0"):
        next_generation(first, {"b", "c", "e", "f"}, ["e", "f"], early)


@pytest.mark.parametrize("processes", [[], ["a", "a"]])
def test_each_rank_needs_a_process_of_its_own(processes):
    with pytest.raises(ValueError, match="process of its own"):
        first_generation(processes)


@given(st.data())
def test_survivors_keep_their_ranks_and_no_process_has_two(data):
    generation = first_generation([f"p{i}" for i in range(data.draw(st.integers(1, 8)))])
    names = iter(f"q{i}" for i in range(10_000))
    for _ in range(data.draw(st.integers(1, 10))):
        dead = data.draw(st.sets(st.sampled_from(generation.slots)))
        spares = [next(names) for _ in range(data.draw(st.integers(0, 4)))]
        live = set(generation.slots) - dead | set(spares)
        if len(spares) < len(dead):
            with pytest.raises(NotEnoughSparesError) as caught:
                next_generation(generation, live, spares)
            assert len(caught.value.ranks) == len(dead) - len(spares)
            continue
        following = next_generation(generation, live, spares)
        assert following.number == generation.number + 1
        assert len(set(following.slots)) == following.world == generation.world
        for rank, process in enumerate(generation.slots):
            if process in live:
                assert following.rank_of(process) == rank
        assert set(following.slots) <= live
        generation = following
