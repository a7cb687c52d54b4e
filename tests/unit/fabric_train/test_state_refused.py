"""What docs/operate/train-state.md calls refused is refused before its step is applied."""

import pytest
from on_demand import on_demand
from one_rank import EVENT, Rank, Script, advance, at_event, run

torch = on_demand("torch")
lr_scheduler = on_demand("torch.optim.lr_scheduler", needs="torch")
structure = on_demand("fabric_train.state.structure", needs="torch")
step_start = on_demand("fabric_train.state.step_start", needs="torch")

REFUSED = {}


def refused(row, text):
    def add(script):
        REFUSED.setdefault(row, []).append((script, text))
        return script

    return add


ADDED = "modules that are added, removed or replaced: pruning, parametrizations"


@refused(ADDED, r"model: modules were added, removed or replaced in the loop \(4\)")
def another_module():
    return at_event(lambda script: script.model.append(torch.nn.ReLU()))()


@refused(ADDED, "model/0: ")
def pruned():
    from torch.nn.utils import prune

    return at_event(lambda script: prune.random_unstructured(script.model[0], "weight", 0.5))()


@refused(ADDED, "model/0: it was a Linear when the loop began and is a ParametrizedLinear")
def parametrized():
    from torch.nn.utils import parametrizations

    return at_event(lambda script: parametrizations.orthogonal(script.model[0]))()


PARAMETERS = "parameters that are added, removed, replaced, or get another type or size"


@refused(PARAMETERS, r"model/3: parameters were .* \(bias\)")
def replaced():
    def act(script):
        script.model[3].bias = torch.nn.Parameter(torch.zeros(2))

    return at_event(act)()


@refused(PARAMETERS, r"model/0: parameters were .* \(weight\)")
def another_type():
    script = at_event(lambda script: script.model.double())()
    script.loss = lambda _step: sum(one.sum() for one in script.model.parameters())
    return script


BUFFERS = "buffers that are added, removed, or get another type or size"


@refused(BUFFERS, r"model/3: buffers were .* \(mask\)")
def another_buffer():
    return at_event(lambda script: script.model[3].register_buffer("mask", torch.ones(2)))()


@refused(BUFFERS, r"model: buffers were .* \(seen\)")
def longer_buffer():
    def act(script):
        script.model.seen = torch.zeros(3)

    script = at_event(act)()
    script.model.register_buffer("seen", torch.zeros(2))
    return script


HOOKS = "hooks of a module, or of an optimizer's step"


@refused(HOOKS, "model/2: 0 forward hooks when the loop began, 1 now")
def hooked():
    return at_event(lambda script: script.model[2].register_forward_hook(lambda *_: None))()


@refused(HOOKS, "optimizer: 0 step post-hooks when the loop began, 1 now")
def hooked_step():
    return at_event(lambda script: script.optimizer.register_step_post_hook(lambda *_: None))()


@refused("a `forward` that is replaced, `Module.compile`", "model/2: its forward was replaced")
def another_forward():
    def act(script):
        script.model[2].forward = lambda x: x

    return at_event(act)()


@refused("a `forward` that is replaced, `Module.compile`", "model/2: its forward was replaced")
def compiled():
    def act(script):
        script.model[2].compile(backend="eager")
        script.loss = lambda _step: sum(one.sum() for one in script.model.parameters())

    return at_event(act)()


@refused("the first scheduler of an optimizer, made in the loop", "optimizer: its step was wrapped")
def scheduler_in_the_loop():
    return at_event(lambda script: lr_scheduler.StepLR(script.optimizer, 2))()


SWITCHES = (
    "torch's default type, deterministic algorithms, precision of matrix products, cuDNN's switches"
)


@refused(SWITCHES, r"torch.get_default_dtype\(\) was torch.float32 .* and is torch.float64")
def default_type():
    script = at_event(lambda _: torch.set_default_dtype(torch.float64))()
    script.loss = lambda _step: sum(one.sum() for one in script.model.parameters())
    return script


@refused(SWITCHES, "torch.are_deterministic_algorithms_enabled")
def deterministic():
    return at_event(lambda _: torch.use_deterministic_algorithms(True))()


@refused(SWITCHES, "torch.get_float32_matmul_precision")
def precision():
    return at_event(lambda _: torch.set_float32_matmul_precision("medium"))()


@refused(SWITCHES, "torch.backends.cudnn.benchmark")
def cudnn():
    def act(_script):
        torch.backends.cudnn.benchmark = True

    return at_event(act)()


IN_PLACE = (
    "a parameter that is changed in place before `optimizer.step()`: SAM, `Embedding(max_norm=…)`"
)


@refused(IN_PLACE, r"model/0.weight was changed in place before optimizer.step\(\)")
def in_place():
    @torch.no_grad()
    def act(script):
        script.model[0].weight.mul_(0.5)

    return at_event(act)()


@refused(IN_PLACE, r"model/words.weight was changed in place before optimizer.step\(\)")
def renormalized():
    script = Script()
    script.model.add_module("words", torch.nn.Embedding(3, 4, max_norm=0.1))
    script.optimizer = script.parts["optimizer"] = script.make_optimizer()
    script.loss = lambda _step: script.model.words(torch.tensor([1])).sum()
    script.event = 0
    return script


@refused(
    "a parameter that is unfrozen and was frozen when `DistributedDataParallel` was built",
    "0.weight needs gradients, and DistributedDataParallel was built while it needed none",
)
def not_reduced():
    """DDP without a process group: as its constructor leaves it."""
    ddp = torch.nn.parallel.DistributedDataParallel
    script = at_event(lambda script: script.model[0].requires_grad_(True))()
    script.model[0].requires_grad_(False)
    made = ddp.__new__(ddp)
    torch.nn.Module.__init__(made)
    made.module, made.parameters_to_ignore = script.model, set()
    made._module_parameters = [one for one in script.model.parameters() if one.requires_grad]
    script.parts["model"] = made
    return script


@refused("gradients that are left for the next attempt", "adds to gradients of the attempt before")
def left():
    script = Script()
    script.zero = lambda: None
    script.event = 1
    return script


@refused("`add_param_group` with other parameters", "optimizer: group 1 has got 1 parameters")
def strange_group():
    other = torch.nn.Parameter(torch.zeros(2))
    return at_event(lambda script: script.optimizer.add_param_group({"params": [other]}))()


@pytest.fixture
def switches():
    yield
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize("row", REFUSED)
def test_what_is_refused_is_named_before_the_step_is_applied(row):
    for make, text in REFUSED[row]:
        rank = Rank(make())
        event = getattr(rank.script, "event", EVENT)
        run(range(event), rank)
        rank.begin()
        before = [one.detach().clone() for one in rank.script.optimizer.param_groups[0]["params"]]
        with pytest.raises(structure.ChangedError, match=text):
            advance(event, rank)
        assert not rank.passed
        torch.set_default_dtype(torch.float32)
        now = rank.script.optimizer.param_groups[0]["params"]
        if make not in (in_place, renormalized, another_type, parametrized):
            assert all(map(torch.equal, before, now)), row


def test_random_numbers_behind_the_step_are_refused():
    rank = Rank(Script())
    rank.script.behind = lambda _step: torch.rand(1)
    run([0], rank)
    with pytest.raises(step_start.DrawnError, match="between optimizer"):
        rank.begin()
