"""Rank-local state: what a replacement takes over is what the lost rank had, bit by bit."""

import random

import pytest
from on_demand import on_demand

numpy = on_demand("numpy")
torch = on_demand("torch")
rank_local = on_demand("fabric_train.state.rank_local", needs="torch")


class Position:
    def __init__(self, at):
        self.at = at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.fixture
def buffers():
    return {
        "statistics": torch.randn(5, 3).t(),  # not contiguous
        "batches": torch.tensor(17),
        "half": torch.randn(4).to(torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "nothing": torch.empty(0, 2),
    }


def draw():
    return random.random(), torch.rand(3).tolist(), numpy.random.rand(3).tolist()


def test_random_numbers_positions_and_buffers_go_on_as_they_would_have(buffers):
    states = rank_local.LocalStates({"sampler": Position(5)})
    data = states.capture(buffers)
    expected = draw()
    target, other = Position(0), {name: torch.zeros_like(one) for name, one in buffers.items()}
    random.seed(1), torch.manual_seed(1), numpy.random.seed(1)
    rank_local.LocalStates({"sampler": target}).restore(data, other)
    assert draw() == expected
    assert target.at == 5
    for name, buffer in buffers.items():
        assert other[name].dtype == buffer.dtype
        assert torch.equal(other[name], buffer)


def test_a_buffer_that_was_not_captured_stays():
    states, untouched = rank_local.LocalStates({}), torch.ones(3)
    states.restore(states.capture({"a": torch.zeros(2)}), {"a": torch.ones(2), "b": untouched})
    assert torch.equal(untouched, torch.ones(3))


def test_a_captured_state_does_not_change_with_its_source():
    buffer, states = torch.zeros(3), rank_local.LocalStates({})
    data = states.capture({"a": buffer})
    buffer += 1
    target = torch.full((3,), 7.0)
    states.restore(data, {"a": target})
    assert torch.equal(target, torch.zeros(3))


@pytest.mark.parametrize("use", [random.random, lambda: torch.rand(1), lambda: numpy.random.rand()])
def test_a_random_number_that_was_drawn_is_noticed(use):
    before = rank_local.RandomStates.now()
    assert before.same(rank_local.RandomStates.now())
    assert before.is_now()
    use()
    assert not before.same(rank_local.RandomStates.now())
    assert not before.is_now()


def test_a_normal_number_that_numpy_held_in_reserve_is_noticed():
    """It is drawn without the generator, whose words stay as they are."""
    numpy.random.seed(5)
    numpy.random.randn()
    before = rank_local.RandomStates.now()
    assert before.is_now()
    numpy.random.randn()
    assert not before.is_now()
    assert not before.same(rank_local.RandomStates.now())


def test_another_generator_of_numpy_is_noticed():
    before, usual = rank_local.RandomStates.now(), numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(1))
    try:
        assert not before.is_now()
        other = rank_local.RandomStates.now()
        assert other.is_now()
        numpy.random.rand()
        assert not other.is_now()
    finally:
        numpy.random.set_bit_generator(usual)
