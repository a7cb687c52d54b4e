"""State that nobody has protected is found: real modules and optimizers of this process."""

import gc

import pytest
from on_demand import on_demand

nn = on_demand("torch.nn")
torch = on_demand("torch")
unprotected = on_demand("fabric_train.state.unprotected", needs="torch")


@pytest.fixture(autouse=True)
def alone():
    gc.collect()


def found(**parts):
    return "\n".join(unprotected.find_unprotected(parts))


def test_a_model_and_its_optimizer_leave_nothing_unprotected():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    assert unprotected.find_unprotected({"m": model, "o": optimizer, "s": scheduler}) == []


def test_parameters_without_an_optimizer_are_named_unless_a_part_has_their_state():
    class Copies:  # of the bias, in higher precision
        def state_dict(self):
            return {}

        def covers(self, one):
            return one is model.bias

    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD([model.weight, torch.zeros(3)])
    text = found(model=model, optimizer=optimizer)
    assert text == (
        "the optimizer state of 1 parameters of module model that no protected optimizer has (bias)"
    )
    assert found(model=model, optimizer=optimizer, copies=Copies()) == ""


def test_objects_that_were_forgotten_are_named_once_each():
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters())
    average = nn.Sequential(nn.Linear(2, 3))
    other = torch.optim.AdamW(average.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    lines = unprotected.find_unprotected({"model": model, "optimizer": optimizer})
    assert sorted(lines) == [
        "a Sequential of 9 elements that no protected part contains",
        "a StepLR that is not protected",
        "the state of a AdamW (optimizer) that is not protected",
    ]
    del average, other, scheduler


def test_what_is_no_tensor_of_a_module_is_named():
    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"calls": 5}

    model = nn.Sequential(Odd(2, 3))
    model[0].mean = torch.zeros(3)
    optimizer = torch.optim.SGD(model.parameters())
    text = found(model=model, optimizer=optimizer)
    assert "model/0.mean: a tensor that is neither parameter nor buffer" in text
    assert "model/0: the extra state of a " in text


def test_a_wrapper_and_what_shares_its_tensors_are_no_news():
    model = nn.Linear(2, 3)
    wrapper = nn.Sequential(model)
    optimizer = torch.optim.SGD(model.parameters())
    assert unprotected.find_unprotected({"model": model, "optimizer": optimizer}) == []
    assert unprotected.find_unprotected({"model": wrapper, "optimizer": optimizer}) == []
