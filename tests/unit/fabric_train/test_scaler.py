"""A protected gradient scaler goes on as undisturbed, also when an attempt is taken back."""

import pytest
from on_demand import on_demand

torch = on_demand("torch")
rank_local = on_demand("fabric_train.state.rank_local", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")
step_start = on_demand("fabric_train.state.step_start", needs="torch")


def build():
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    state = replicated.ReplicatedState({"model": model, "optimizer": optimizer, "scaler": scaler})
    return model, optimizer, scaler, state


class LostError(Exception):
    """A rank was lost at the gate."""


def attempt(parts, step, *, factor=1.0, gate=None):
    model, optimizer, scaler, _ = parts
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    scaler.scale(model(x).square().mean() * factor).backward()
    hook = optimizer.register_step_pre_hook(gate) if gate else None
    try:
        scaler.step(optimizer)
    finally:
        if hook:
            hook.remove()
    scaler.update()


def lose(*_):
    raise LostError


def result(parts):
    model, _, scaler, _ = parts
    return model.weight.tolist(), model.bias.tolist(), scaler.state_dict()


STEPS = [1.0, 1.0, float("inf"), 1.0, 1.0, 1.0]


@pytest.fixture
def undisturbed():
    parts = build()
    for step, factor in enumerate(STEPS):
        attempt(parts, step, factor=factor)
    assert parts[2].get_scale() != 1024.0  # it grew and fell
    return result(parts)


@pytest.mark.parametrize("lost", range(len(STEPS)))
def test_an_attempt_that_is_taken_back_and_run_again_changes_nothing(undisturbed, lost):
    parts = build()
    start = step_start.StepStart(parts[3], rank_local.LocalStates({}))
    for step, factor in enumerate(STEPS):
        start.capture()
        if step == lost:
            if factor == 1.0:
                with pytest.raises(LostError):
                    attempt(parts, step, factor=factor, gate=lose)
            else:
                attempt(parts, step, factor=factor, gate=lose)  # it skips the optimizer
            start.restore()
        attempt(parts, step, factor=factor)
    assert result(parts) == undisturbed


def test_a_replacement_gets_scale_and_growth(undisturbed):
    source, target = build(), build()
    for step in range(4):
        attempt(source, step, factor=STEPS[step])
    with pytest.raises(LostError):
        attempt(target, 0, gate=lose)  # as a spare's rehearsal ends
    for mine, its in zip(target[0].parameters(), source[0].parameters(), strict=True):
        mine.data.copy_(its.data)
    target[3].apply_scalars(source[3].scalars())
    for step in range(4, len(STEPS)):
        attempt(target, step)
    assert result(target) == undisturbed


def test_scales_that_differ_between_ranks_are_seen_at_the_start():
    _, _, _, state = build()
    assert state.facts()["scaler scale"] == "1024.0"


def test_a_scaler_that_is_switched_off_has_no_state_and_does_no_harm():
    state = replicated.ReplicatedState({"scaler": torch.amp.GradScaler("cpu", enabled=False)})
    state.apply_scalars(state.scalars())
    assert state.facts() == {}
