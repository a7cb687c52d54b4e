"""Parts that are several, e.g. TorchTitan's containers: what is inside is protected."""

import gc

import pytest
from on_demand import on_demand

torch = on_demand("torch")
containers = on_demand("fabric_train.state.containers", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")
unprotected = on_demand("fabric_train.state.unprotected", needs="torch")


def optimizers_of(*models):
    """As ``OptimizersContainer``: an optimizer of all parameters, without a state of its own."""

    class Container(torch.optim.Optimizer):
        def __init__(self):
            self.optimizers = [torch.optim.AdamW(one.parameters()) for one in models]
            super().__init__([each for one in models for each in one.parameters()], {})

        def __iter__(self):
            return iter(self.optimizers)

        def step(self, closure=None):
            for one in self.optimizers:
                one.step()

    return Container()


def schedules_of(optimizers):
    class Container:
        def __init__(self):
            kind = torch.optim.lr_scheduler.LambdaLR
            self.schedulers = [kind(one, lambda step: 1 / (step + 1)) for one in optimizers]

        def __iter__(self):
            return iter(self.schedulers)

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    return Container()


def two_models():
    return [torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)]


def test_what_containers_hold_are_parts_of_their_own():
    models = two_models()
    optimizers = optimizers_of(*models)
    schedules = schedules_of(optimizers)
    found = containers.expanded({"model": models, "optimizer": optimizers, "rate": schedules})
    assert found == {
        "model[0]": models[0], "model[1]": models[1],
        "optimizer[0]": optimizers.optimizers[0], "optimizer[1]": optimizers.optimizers[1],
        "rate[0]": schedules.schedulers[0], "rate[1]": schedules.schedulers[1],
    }  # fmt: skip


def test_what_is_one_part_stays_so():
    class Rows:
        """Can be iterated over, and gives no optimizers."""

        def __iter__(self):
            return iter([1, 2])

        def state_dict(self):
            return {}

    one = torch.nn.ModuleList(two_models())
    parts = {
        "model": one,
        "other": torch.nn.Sequential(torch.nn.Linear(2, 2)),
        "optimizer": torch.optim.SGD(one.parameters(), lr=0.1),
        "rows": Rows(),
        "open": iter([]),
    }
    assert containers.expanded(parts) == parts


def test_a_list_without_parts_is_refused():
    with pytest.raises(TypeError, match="model: an empty list has no state"):
        containers.expanded({"model": []})


def test_a_replacement_gets_the_state_of_the_optimizers_inside():
    def made():
        torch.manual_seed(3)
        models = two_models()
        optimizers = optimizers_of(*models)
        parts = containers.expanded({"model": models, "optimizer": optimizers})
        return models, optimizers, replicated.ReplicatedState(parts)

    models, optimizers, source = made()
    for _ in range(2):
        models[1](models[0](torch.ones(4, 2))).sum().backward()
        optimizers.step()
    _, _, fresh = made()
    manifest, first, later = source.offer()
    for target, tensor in zip(fresh.accept(manifest), [*first, *later], strict=True):
        target.copy_(tensor)
    fresh.take_over(manifest)
    assert fresh.digest() == source.digest()
    names = [name for name, _ in fresh.tensors()]
    assert "optimizer[1]/0/exp_avg" in names


def test_a_container_of_protected_optimizers_is_no_unprotected_state():
    gc.collect()
    models = two_models()
    optimizers = optimizers_of(*models)
    parts = containers.expanded({"model": models, "optimizer": optimizers})
    assert unprotected.find_unprotected(parts) == []
    some = {name: part for name, part in parts.items() if name != "optimizer[1]"}
    assert any("Container (optimizer)" in one for one in unprotected.find_unprotected(some))
