"""Ranks of a data parallel job in this process, with what fabric_train does around their steps.

All ranks draw the same batches, so their gradients are alike without a reduction. Their statistics
of batch norm are not: each drifts with its rank.
"""

import contextlib
import random

from on_demand import on_demand

torch = on_demand("torch")
rank_local = on_demand("fabric_train.state.rank_local", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")
plain_values = on_demand("fabric_train.state.plain_values", needs="torch")
step_start = on_demand("fabric_train.state.step_start", needs="torch")
gradients = on_demand("fabric_train.state.gradients", needs="torch")


EVENT = 2
"""The step in which something happens that is not the same in each step."""


class GateError(Exception):
    """Ends an attempt at its gate."""


class Script:
    """What a user writes: a model, an optimizer, and hooks into the loop."""

    def __init__(self):
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.2),
            torch.nn.Linear(6, 2),
        )  # fmt: skip
        self.optimizer = self.make_optimizer()
        self.parts = {"model": self.model, "optimizer": self.optimizer}
        self.local = {}

    def make_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=0.05)

    def before(self, step):
        """At the start of the attempt."""

    def behind(self, step):
        """After the optimizer's step."""

    def zero(self):
        self.optimizer.zero_grad()

    def loss(self, step):
        numbers = torch.Generator().manual_seed(step)
        return self.model(torch.randn(8, 4, generator=numbers)).square().mean()

    def attempt(self, step):
        self.before(step)
        self.zero()
        self.loss(step).backward()
        with torch.no_grad():
            self.model[1].running_mean.add_(0.1 * self.rank)
        self.optimizer.step()
        self.behind(step)


def at_event(act):
    """A script that does ``act`` at the start of step ``EVENT``."""

    def make():
        script = Script()
        script.before = lambda step: act(script) if step == EVENT else None
        return script

    return make


class Rank:
    """Runs ``script`` as a rank does, with random generators of its own."""

    def __init__(self, script, rank=0):
        self.script = script
        script.rank = rank
        self.state = replicated.ReplicatedState(script.parts)
        self.start = step_start.StepStart(self.state, rank_local.LocalStates(script.local))
        self.left = gradients.LeftGradients(self.state.optimizers())
        self.body = None
        self.rehearsing, self.passed, self.lost_at_gate = True, False, False
        torch.manual_seed(5), random.seed(5)
        self.numbers = torch.get_rng_state(), random.getstate()
        for optimizer in self.state.optimizers():
            optimizer.register_step_pre_hook(self._gate)
        for _ in range(2):
            self.lose_attempt(0)
        self.rehearsing = False
        self.state.begin()

    @contextlib.contextmanager
    def own_numbers(self):
        torch.set_rng_state(self.numbers[0]), random.setstate(self.numbers[1])
        yield
        self.numbers = torch.get_rng_state(), random.getstate()

    def _gate(self, *_):
        if self.passed:
            return
        if self.rehearsing or self.lost_at_gate:
            raise GateError
        self.state.check()
        self.body = self.start.capture_next()
        self.passed = True

    def begin(self):
        with self.own_numbers():
            self.start.capture()
            self.left.mark()
            self.body = self.start.late_state() or self.body

    def attempt(self, step):
        self.passed = False
        with self.own_numbers():
            self.script.attempt(step)

    def lose_attempt(self, step):
        """An attempt that is taken back."""
        self.begin()
        self.lost_at_gate = True
        with contextlib.suppress(GateError):
            self.attempt(step)
        self.lost_at_gate = False
        with self.own_numbers():
            self.start.forget_next()
            self.start.restore()


def advance(step, *ranks):
    """All of them run this step, which has begun; they vote first."""
    said = {rank.start.digest for rank in ranks} - {None}
    for rank in ranks:
        rank.start.voted(equal=len(said) <= 1)
        rank.attempt(step)


def run(steps, *ranks):
    for step in steps:
        for rank in ranks:
            rank.begin()
        advance(step, *ranks)


def replace(lost, source, fresh):
    """``fresh`` takes over the rank of ``lost``. Returns what is lost for good, by name."""
    manifest, first, later = source.state.offer()
    for mine, its in zip(fresh.state.accept(manifest), [*first, *later], strict=True):
        mine.copy_(its)
    fresh.state.take_over(manifest)
    fresh.body = lost.body
    with fresh.own_numbers():
        return fresh.start.take_over(lost.body)


def assert_alike(one, other):
    """Two ranks have the same state, bit by bit."""
    mine, its = dict(one.state.tensors()), dict(other.state.tensors())
    assert mine.keys() == its.keys()
    assert [name for name in mine if not torch.equal(mine[name], its[name])] == []
    values = [rank.state.settings.values(rank.state.settings.now()) for rank in (one, other)]
    assert values[0] == values[1]
    assert one.state.groups.membership() == other.state.groups.membership()
    scalars = [plain_values.unpack(rank.state.scalars()) for rank in (one, other)]
    assert step_start._same(*scalars), scalars
    assert torch.equal(one.numbers[0], other.numbers[0])
    for name, part in one.script.local.items():
        assert part.state_dict() == other.script.local[name].state_dict()
