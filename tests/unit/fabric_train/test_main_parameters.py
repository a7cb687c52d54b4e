"""Parameters that an optimizer alone has: copies of a model's, in higher precision.

Megatron trains such copies, and copies them back behind the optimizer's step.
"""

import pytest
from on_demand import on_demand
from one_rank import Rank, Script, assert_alike, replace, run

torch = on_demand("torch")
gradients = on_demand("fabric_train.state.gradients", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")


class Copies(Script):
    """The model has 16 bits, its optimizer copies of 32."""

    def make_optimizer(self):
        self.model.bfloat16()
        self.main = [one.detach().float().requires_grad_(True) for one in self.model.parameters()]
        return torch.optim.AdamW(self.main, lr=0.05)

    def loss(self, step):
        numbers = torch.Generator().manual_seed(step)
        data = torch.randn(8, 4, generator=numbers).bfloat16()
        return self.model(data).float().square().mean()

    def attempt(self, step):
        self.model.zero_grad()
        self.zero()
        self.loss(step).backward()
        for copy, one in zip(self.main, self.model.parameters(), strict=True):
            copy.grad = one.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for copy, one in zip(self.main, self.model.parameters(), strict=True):
                one.copy_(copy)


def test_a_replacement_gets_copies_of_higher_precision_and_goes_on_with_the_same_bits():
    one, other, calm = (Rank(Copies(), rank) for rank in (0, 1, 1))
    run(range(3), one, other, calm)
    fresh = Rank(Copies(), 1)
    replace(other, one, fresh)
    run(range(3, 6), one, fresh, calm)
    assert_alike(fresh, calm)
    names = dict(fresh.state.tensors())
    assert [name for name in names if "#" in name] == [f"optimizer/#{place}" for place in range(6)]
    assert all(torch.equal(a, b) for a, b in zip(fresh.script.main, calm.script.main, strict=True))


def test_what_lies_in_a_parameter_of_a_model_is_sent_once():
    """Shards of parameters of 32 bits, as those of the distributed optimizer, are views."""
    model = torch.nn.Linear(4, 6)
    views = [one.detach().view(-1)[2:5].requires_grad_(True) for one in model.parameters()]
    apart = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([*views, apart])
    state = replicated.ReplicatedState({"model": model, "optimizer": optimizer})
    names = [name for name, _ in state.tensors()]
    assert names == ["model/weight", "model/bias", "optimizer/#2"]


def test_digests_of_one_part_say_nothing_of_others():
    model = torch.nn.Linear(4, 6)
    optimizer = torch.optim.SGD([torch.zeros(3, requires_grad=True)])
    state = replicated.ReplicatedState({"model": model, "optimizer": optimizer})
    before = [state.digest(part=name) for name in ("model", "optimizer")]
    optimizer.param_groups[0]["params"][0].data.fill_(1)
    after = [state.digest(part=name) for name in ("model", "optimizer")]
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert len({*before, *after, state.digest()}) == 4


class Kept:
    """Keeps how far its sums were."""

    def __init__(self):
        self.forgotten = 0

    def state_dict(self):
        return {}

    def load_state_dict(self, _state):
        """Nothing."""

    def forget_attempt(self):
        self.forgotten += 1


def test_a_part_that_keeps_how_far_an_attempt_was_hears_of_its_end():
    script = Script()
    script.parts["kept"] = kept = Kept()
    rank = Rank(script)
    before = kept.forgotten
    rank.lose_attempt(0)
    assert kept.forgotten == before + 1
    run(range(2), rank)
    assert kept.forgotten == before + 1


def test_an_optimizer_whose_copies_are_lost_is_noticed():
    """Who protects less than what is there gets another layout, not other bits."""
    one = Rank(Copies())
    manifest, _, _ = one.state.offer()
    model = torch.nn.Linear(4, 6)
    optimizer = torch.optim.AdamW(model.parameters())
    other = replicated.ReplicatedState({"model": model, "optimizer": optimizer})
    with pytest.raises(replicated.LayoutError, match="unknown here"):
        other.accept(manifest)


def test_gradients_of_a_part_of_a_parameter_are_not_watched():
    """No backward pass adds to them; torch 2.13 may end the process for a hook on such a view."""
    model = torch.nn.Linear(4, 6)
    view = model.weight.view(-1)[2:5]
    optimizer = torch.optim.SGD([model.bias])
    optimizer.param_groups[0]["params"].insert(0, view)  # as Megatron does
    model.bias.grad, view.grad = torch.ones(6), torch.ones(3)
    left = gradients.LeftGradients([optimizer])
    left.mark()
    assert [id(one) for one in left._watched.values()] == [
        id(model.bias)
    ]  # though the view is smaller
