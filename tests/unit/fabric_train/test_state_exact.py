"""What docs/operate/train-state.md calls exact is exact: real modules and optimizers."""

import pytest
from on_demand import on_demand
from one_rank import EVENT, Rank, Script, advance, assert_alike, at_event, replace, run

torch = on_demand("torch")
lr_scheduler = on_demand("torch.optim.lr_scheduler", needs="torch")
swa_utils = on_demand("torch.optim.swa_utils", needs="torch")

LOST, TOTAL = 5, 8
EXACT = {}


def exact(row):
    def add(script):
        EXACT.setdefault(row, []).append(script)
        return script

    return add


@exact("weights, and an optimizer's state of them")
def plain():
    return Script()


@exact("`requires_grad` of a parameter, e.g. to freeze or unfreeze")
def unfreeze():
    script = at_event(lambda script: script.model[0].requires_grad_(True))()
    script.model[0].requires_grad_(False)
    return script


@exact("`requires_grad` of a parameter, e.g. to freeze or unfreeze")
def freeze():
    return at_event(lambda script: script.model[0].requires_grad_(False))()


@exact("`train()` and `eval()` of a module")
def evaluation_mode():
    return at_event(lambda script: script.model[2].eval())()


@exact("`train()` and `eval()` of a module")
def evaluation_behind_the_gate():
    """As an evaluation after each step that leaves the model so, and a loop that sets it back."""
    script = Script()
    script.before = lambda step: script.model[2].train(step % 2 == 0)
    script.behind = lambda _step: script.model[2].eval()
    return script


@exact("a number, string, truth value or None in a module, e.g. `Dropout.p` or a counter")
def dropout_rate():
    def act(script):
        script.model[2].p = 0.5

    return at_event(act)()


@exact("a number, string, truth value or None in a module, e.g. `Dropout.p` or a counter")
def momentum():
    def act(script):
        script.model[1].momentum = None  # an average of all batches

    return at_event(act)()


@exact("a number, string, truth value or None in a module, e.g. `Dropout.p` or a counter")
def counter():
    class Counting(torch.nn.Linear):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls > 1:
                self.last = float(x.detach().sum())
            return super().forward(x) * (1 + self.calls)

    script = Script()
    script.model[3] = Counting(6, 2)
    script.optimizer = script.parts["optimizer"] = script.make_optimizer()
    return script


@exact("a number, string, truth value or None in an optimizer")
def optimizer_with_a_counter():
    class Warming(torch.optim.SGD):
        count = 0

        def step(self, closure=None):
            self.count += 1
            self.param_groups[0]["lr"] = 0.01 * self.count
            super().step(closure)

    script = Script()
    script.optimizer = Warming(script.model.parameters(), lr=0.01)
    script.parts["optimizer"] = script.optimizer
    return script


@exact("a field of an optimizer's group, e.g. `lr`, and its `defaults`")
def fields():
    def act(script):
        script.optimizer.param_groups[0] |= {"lr": 0.01, "weight_decay": 0.5, "mine": "new"}
        script.optimizer.defaults["lr"] = 0.02
        for key in ("model", "made"):
            script.optimizer.param_groups[0].pop(key, None)

    return at_event(act)()


@exact("what an optimizer keeps that is no tensor, or of no parameter")
def odd_state():
    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                fields = self.state[parameter]
                fields["count"] = fields.get("count", 0) + 1
                fields["history"] = [*fields.get("history", []), parameter.detach().sum()][-2:]
            self.state["total"] = self.state.get("total") or 0
            self.state["total"] += 1

    script = Script()
    script.optimizer = script.parts["optimizer"] = Odd(script.model.parameters(), lr=0.1)
    return script


@exact("`add_param_group` with parameters of protected modules")
def another_group():
    script = Script()
    script.optimizer = torch.optim.AdamW(script.model[3].parameters(), lr=0.05)
    script.parts["optimizer"] = script.optimizer

    def act(step):
        if step == EVENT and len(script.optimizer.param_groups) == 1:
            script.optimizer.add_param_group({"params": list(script.model[0].parameters())})

    script.before = act
    return script


def schedulers():
    """One of each class, by name. A new class of torch has to be added here."""
    flat = lambda optimizer: lr_scheduler.ConstantLR(optimizer, 0.5, 2)  # noqa: E731
    steep = lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.8)  # noqa: E731
    return {
        "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
        "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
        "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
        "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 4]),
        "ConstantLR": flat,
        "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=6),
        "ExponentialLR": steep,
        "SequentialLR": lambda o: lr_scheduler.SequentialLR(o, [flat(o), steep(o)], [3]),
        "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
        "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([flat(o), steep(o)], o),
        "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
        "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
        "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
        "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
        "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6),
        "LRScheduler": None,  # the base class
        "SWALR": lambda o: swa_utils.SWALR(o, 0.01, anneal_epochs=3),
    }


def scheduled(name):
    def make():
        script = Script()
        scheduler = schedulers()[name](script.optimizer)
        script.parts["scheduler"] = scheduler
        arguments = (1.0,) if name == "ReduceLROnPlateau" else ()
        script.behind = lambda _step: scheduler.step(*arguments)
        return script

    return make


@exact("a `GradScaler` that is protected: scale, growth, settings")
def scaled():
    class Scaled(Script):
        def attempt(self, step):
            self.zero()
            self.scaler.scale(self.loss(step)).backward()
            if step == EVENT:
                self.scaler.set_growth_factor(8.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()

    script = Scaled()
    script.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    script.parts["scaler"] = script.scaler
    return script


def averaged(*, use_buffers):
    def make():
        script = Script()
        decay = swa_utils.get_ema_avg_fn(0.9)
        average = swa_utils.AveragedModel(script.model, avg_fn=decay, use_buffers=use_buffers)
        script.parts["average"] = average
        script.behind = lambda _step: average.update_parameters(script.model)
        return script

    return make


AVERAGED = "an `AveragedModel` that is protected, with `use_buffers` or without"
exact(AVERAGED)(averaged(use_buffers=True))
exact(AVERAGED)(averaged(use_buffers=False))
exact("buffers that a forward pass changes: each rank gets its own")(plain)


@exact("buffers and numbers that change after `optimizer.step()`, on each rank to its own values")
def behind():
    script = Script()
    script.model.register_buffer("seen", torch.zeros(1))

    def act(step):
        script.model.seen += step * (script.rank + 1)
        script.model.last = script.rank + step + 0.5
        if step == EVENT:
            script.model.once = script.rank + 0.25

    script.behind = act
    return script


@exact("buffers and numbers that change after `optimizer.step()`, on each rank to its own values")
def statistics_that_are_reset_behind_the_gate():
    script = Script()
    script.behind = lambda step: script.model[1].reset_running_stats() if step == LOST - 1 else None
    return script


class Meter:
    """A position or a statistic of this rank."""

    def __init__(self):
        self.values = {}

    def state_dict(self):
        return {"values": dict(self.values)}

    def load_state_dict(self, state):
        self.values = dict(state["values"])


@exact("the state of a `local` part, also after `optimizer.step()`")
def metered():
    script = Script()
    script.local["meter"] = meter = Meter()
    script.behind = lambda step: meter.values.update({step: script.rank})
    return script


def all_exact():
    row = "a scheduler of `torch.optim.lr_scheduler`, and `SWALR`, that is protected"
    known = {row: [scheduled(name) for name, make in schedulers().items() if make]}
    return [(row, make) for row, scripts in (EXACT | known).items() for make in scripts]


@pytest.mark.parametrize("part", range(3))
def test_every_exact_row_is_exact_after_two_takeovers_and_after_attempts_that_are_run_again(part):
    cases = all_exact()
    assert len(cases) > 30
    for row, make in cases[part::3]:
        undisturbed = Rank(make(), 1)
        run(range(TOTAL), undisturbed)
        source, lost = Rank(make()), Rank(make(), 1)
        run(range(LOST), source, lost)
        source.begin(), lost.begin()
        fresh = Rank(make(), 1)
        assert replace(lost, source, fresh) == frozenset(), row
        fresh.begin()
        advance(LOST, source, fresh)
        source.begin(), fresh.begin()
        again = Rank(make(), 1)
        assert replace(fresh, source, again) == frozenset(), row
        for step in range(LOST + 1, TOTAL):
            source.lose_attempt(step)
            again.lose_attempt(step)
            run([step], source, again)
        assert_alike(again, undisturbed)
